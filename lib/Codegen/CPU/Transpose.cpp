//===- Transpose.cpp - rows of memory as columns, in registers ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Transpose.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;

SmallVector<Value> mlir::diffattn::emitTranspose(KernelBuilder &b,
                                                 ArrayRef<Value> rows) {
  // Blocks of 1, 2, 4, ... lanes change places between rows as far apart.
  SmallVector<Value> values(rows);
  const int64_t lanes = rows.size();
  for (int64_t size = 1; size < lanes; size *= 2) {
    SmallVector<int64_t> low, high;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      bool second = lane / size % 2;
      low.push_back(second ? lanes + lane - size : lane);
      high.push_back(second ? lanes + lane : lane + size);
    }
    for (int64_t row = 0; row < lanes; ++row) {
      if (row / size % 2)
        continue;
      Value x = values[row], y = values[row + size];
      values[row] = vector::ShuffleOp::create(b, x, y, low);
      values[row + size] = vector::ShuffleOp::create(b, x, y, high);
    }
  }
  return values;
}

SmallVector<Value> mlir::diffattn::emitTransposeRows(KernelBuilder &b,
                                                     ArrayRef<Value> vectors) {
  // The lowest bit of a number's place becomes the highest, once for each bit
  // of a column.
  SmallVector<int64_t> even, odd;
  const int64_t lanes = cast<VectorType>(vectors[0].getType()).getDimSize(0);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    even.push_back(2 * lane);
    odd.push_back(2 * lane + 1);
  }
  SmallVector<Value> values(vectors);
  const size_t half = vectors.size() / 2;
  for (size_t width = vectors.size(); width > 1; width /= 2) {
    SmallVector<Value> next(values.size());
    for (size_t i = 0; i < half; ++i) {
      Value x = values[2 * i], y = values[2 * i + 1];
      next[i] = vector::ShuffleOp::create(b, x, y, even);
      next[half + i] = vector::ShuffleOp::create(b, x, y, odd);
    }
    values = next;
  }
  return values;
}

namespace {
/// Rows in memory that become the lanes of vectors at `to`, `stride` elements
/// of type `packed` apart. Lanes above `last` repeat that row.
struct TransposedRows {
  Value from, rowStride, last;
  Type element, packed;
  /// Elements in each lane of `packed`.
  int64_t pack;
  Value to;
  int64_t stride;
};
} // namespace

/// `count` elements of each row, a multiple of a vector; `load` makes one of
/// packs from the elements of a row that begin at an index.
static void copyTransposed(KernelBuilder &b, const TransposedRows &rows,
                           Value count,
                           function_ref<Value(Value, Value)> load) {
  SmallVector<Value> bases;
  for (int64_t lane = 0; lane < b.lanes; ++lane)
    bases.push_back(
        b.at(rows.from, rows.element,
             b.mul(b.min(b.index(lane), rows.last), rows.rowStride)));
  b.loop(b.index(0), count, b.lanes * rows.pack, [&](Value index) {
    SmallVector<Value> vectors;
    for (Value row : bases)
      vectors.push_back(load(row, index));
    Value first = b.div(index, rows.pack);
    for (auto [i, column] : llvm::enumerate(emitTranspose(b, vectors)))
      b.store(column, rows.to, rows.packed,
              b.mul(b.add(first, i), rows.stride));
  });
}

static std::string packName(KernelBuilder &b, StringRef what, Type element,
                            StringRef suffix, int64_t stride) {
  std::string type;
  llvm::raw_string_ostream(type) << element;
  return b.kernelName(what + "_" + Twine(type) + suffix + "_r" + Twine(stride));
}

LLVM::LLVMFuncOp mlir::diffattn::getPackQueriesKernel(KernelBuilder &b,
                                                      ModuleOp module,
                                                      Type element,
                                                      int64_t stride,
                                                      const ProductAtom &atom) {
  Type p = b.pointer, i = b.i64;
  return b.getOrEmitFunction(
      module, packName(b, "pack_queries", element, atom.suffix, stride),
      {p, i, i, i, b.f32, p}, [&](ValueRange args) {
        Value factor = atom.scalesQueries ? b.splat(args[4]) : Value();
        copyTransposed(b,
                       {args[0], args[1], args[2], element, atom.getPacked(b),
                        atom.pack, args[5], stride},
                       args[3], [&](Value row, Value index) -> Value {
                         Value packs = atom.loadRow(b, row, element, index,
                                                    /*mask=*/Value());
                         return factor ? b.mulf(packs, factor) : packs;
                       });
      });
}

LLVM::LLVMFuncOp mlir::diffattn::getPackBiasKernel(KernelBuilder &b,
                                                   ModuleOp module,
                                                   Type element,
                                                   int64_t stride) {
  const bool isFlag = element.isInteger(1);
  Type memory = isFlag ? b.i8 : element, p = b.pointer, i = b.i64;
  return b.getOrEmitFunction(
      module, packName(b, "pack_bias", element, "", stride), {p, i, i, i, p},
      [&](ValueRange args) {
        Value hidden = b.splat(-std::numeric_limits<float>::infinity());
        copyTransposed(b,
                       {args[0], args[1], args[2], memory, b.f32, /*pack=*/1,
                        args[4], stride},
                       args[3], [&](Value row, Value index) -> Value {
                         if (!isFlag)
                           return b.loadWide(row, element, index);
                         VectorType type = VectorType::get({b.lanes}, b.i8);
                         Value flags = b.load(type, row, b.i8, index);
                         Value zeros =
                             arith::ConstantOp::create(b, b.getZeroAttr(type));
                         Value isHidden = arith::CmpIOp::create(
                             b, arith::CmpIPredicate::eq, flags, zeros);
                         return b.select(isHidden, hidden, b.zero());
                       });
      });
}
