//===- QuantizedGemm.cpp - products with quantized weights ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// B is read once, in the order of its addresses, and widened in registers. An
// element of C is a vector of sums over the groups of its row of B; the sum of
// a group is a vector that begins at zero, and is multiplied with the scale
// once. So the order of all sums is that of k, for each lane, whatever the
// tile: a row of C is the same for every number of rows.
//
// Rows of A are copied first, as f32 and in the order in which a unit of B
// gives its integers.
//
//===----------------------------------------------------------------------===//
#include "QuantizedBuilder.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Bytes of a line of a cache.
static constexpr int64_t kLineBytes = 64;

namespace {
/// Slots of a work item's arguments. X is the copy of A.
enum Slot { X, B, Scales, C, LdC, M, K, NumSlots };

class GemmKernel {
public:
  GemmKernel(QuantizedBuilder &b)
      : b(b),
        types{b.pointer, b.pointer, b.pointer, b.pointer, b.i64, b.i64, b.i64} {
  }

  /// The copy of row `i` of A at row `i` of `x`.
  void copyRows(Value a, Value lda, Value x, Value m, Value k);
  void emitItem(Value context, Value index);

  ArrayRef<Type> getTypes() const { return types; }

private:
  void emitPass(Value firstRow, Value lastRow);
  void emitRows(Value firstRow, Value lastRow, Value n, int64_t columns);
  void emitTile(Value m, Value n, int64_t rows, int64_t columns);
  /// Adds the products of so many vectors from number `k` of the rows on.
  void addVectors(ArrayRef<Value> xRows, ArrayRef<Value> bRows, Value k,
                  int64_t vectors, MutableArrayRef<Value> sums);
  /// The vectors of a group that are multiplied between two jumps.
  int64_t getUnroll() const;

  QuantizedBuilder &b;
  SmallVector<Type> types;
  /// From what is read to what is fetched.
  Value prefetchBytes;
  QuantizedBuilder::Item item;
};
} // namespace

void GemmKernel::copyRows(Value a, Value lda, Value x, Value m, Value k) {
  b.loop(m, [&](Value row) {
    Value from = b.at(a, b.spec.aType, b.mul(row, lda)),
          to = b.at(x, b.f32, b.mul(row, k));
    b.loop(b.index(0), k, b.unit, [&](Value at) {
      SmallVector<Value> vectors;
      for (int64_t part = 0; part < b.parts; ++part)
        vectors.push_back(
            b.loadWide(from, b.spec.aType, b.add(at, part * b.lanes)));
      for (auto [part, vector] : llvm::enumerate(b.toUnit(vectors)))
        b.store(vector, to, b.add(at, static_cast<int64_t>(part) * b.lanes));
    });
  });
}

int64_t GemmKernel::getUnroll() const {
  const int64_t units = b.spec.group / b.unit;
  int64_t unroll = std::max<int64_t>(1, b.schedule.unroll / b.parts);
  while (units % unroll)
    --unroll;
  return unroll * b.parts;
}

void GemmKernel::addVectors(ArrayRef<Value> xRows, ArrayRef<Value> bRows,
                            Value k, int64_t vectors,
                            MutableArrayRef<Value> sums) {
  for (int64_t first = 0; first < vectors; first += b.parts) {
    Value at = b.add(k, first * b.lanes), byte = b.bytesOf(at);
    SmallVector<SmallVector<Value>> weights;
    for (Value row : bRows) {
      // Once a line.
      if (first / b.parts * b.lanes % kLineBytes == 0)
        b.prefetch(row, b.add(byte, prefetchBytes));
      weights.push_back(b.loadUnit(row, byte));
    }
    for (int64_t part = 0; part < b.parts; ++part)
      for (auto [r, row] : llvm::enumerate(xRows)) {
        Value x = b.load(b.vector, row, b.add(at, part * b.lanes));
        for (size_t c = 0; c < bRows.size(); ++c) {
          Value &sum = sums[r * bRows.size() + c];
          sum = b.fma(x, weights[c][part], sum);
        }
      }
  }
}

/// `rows` x `columns` elements of C from [m, n] on.
void GemmKernel::emitTile(Value m, Value n, int64_t rows, int64_t columns) {
  Value k = item.slots[K], groups = b.div(k, b.spec.group);
  SmallVector<Value> xRows, bRows, scales;
  for (int64_t r = 0; r < rows; ++r)
    xRows.push_back(b.at(item.slots[X], b.f32, b.mul(b.add(m, r), k)));
  for (int64_t c = 0; c < columns; ++c) {
    bRows.push_back(
        b.at(item.slots[B], b.i8, b.mul(b.add(n, c), b.bytesOf(k))));
    scales.push_back(
        b.at(item.slots[Scales], b.f32, b.mul(b.add(n, c), groups)));
  }
  const int64_t unroll = getUnroll(), vectors = b.spec.group / b.lanes;
  SmallVector<Value> zeros(rows * columns, b.zero());
  SmallVector<Value> totals = b.loop(
      b.index(0), groups, 1, zeros, [&](Value group, ValueRange carried) {
        Value first = b.mul(group, b.spec.group);
        SmallVector<Value> sums(zeros);
        if (unroll == vectors)
          addVectors(xRows, bRows, first, unroll, sums);
        else
          sums = b.loop(first, b.add(first, b.spec.group), unroll * b.lanes,
                        zeros, [&](Value at, ValueRange inner) {
                          SmallVector<Value> next(inner);
                          addVectors(xRows, bRows, at, unroll, next);
                          return next;
                        });
        SmallVector<Value> next(carried);
        for (int64_t c = 0; c < columns; ++c) {
          Value scale = b.splat(b.load(b.f32, scales[c], group));
          for (int64_t r = 0; r < rows; ++r)
            next[r * columns + c] =
                b.fma(sums[r * columns + c], scale, next[r * columns + c]);
        }
        return next;
      });
  Value c = item.slots[C];
  Type type = b.spec.cType;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t column = 0; column < columns; ++column) {
      Value sum = b.sum(totals[r * columns + column]);
      Value at = b.add(b.mul(b.add(m, r), item.slots[LdC]), b.add(n, column));
      if (b.spec.accumulate)
        sum = b.addf(sum, b.loadWideScalar(c, type, at));
      b.storeNarrow(sum, c, type, at);
    }
}

/// All rows from `firstRow` on with `columns` rows of B from `n` on.
void GemmKernel::emitRows(Value firstRow, Value lastRow, Value n,
                          int64_t columns) {
  // The rest by halves, so that B is widened for as few tiles as there can be.
  for (int64_t rows = b.schedule.rows; rows; rows /= 2) {
    Value whole =
        b.add(firstRow, b.mul(b.div(b.sub(lastRow, firstRow), rows), rows));
    b.loop(firstRow, whole, rows,
           [&](Value m) { emitTile(m, n, rows, columns); });
    firstRow = whole;
  }
}

void GemmKernel::emitPass(Value firstRow, Value lastRow) {
  const int64_t columns = b.schedule.columns;
  Value together = b.add(
      item.first, b.mul(b.div(b.sub(item.last, item.first), columns), columns));
  Value isFew =
      b.less(b.sub(lastRow, firstRow), b.index(b.schedule.fewRows + 1));
  together = b.select(isFew, item.first, together);
  auto emitColumns = [&](Value first, Value last, int64_t count) {
    // A tile of several rows fetches those of the next tile, `count` rows
    // ahead. Rows one at a time are one stream.
    prefetchBytes = b.index(b.schedule.prefetchBytes);
    if (count > 1)
      prefetchBytes =
          b.max(b.mul(b.bytesOf(item.slots[K]), count), prefetchBytes);
    b.loop(first, last, count,
           [&](Value n) { emitRows(firstRow, lastRow, n, count); });
  };
  emitColumns(item.first, together, columns);
  emitColumns(together, item.last, 1);
}

void GemmKernel::emitItem(Value context, Value index) {
  item = b.readItem(context, index, types);
  Value m = item.slots[M];
  b.loop(b.index(0), m, b.schedule.passRows, [&](Value first) {
    emitPass(first, b.min(b.add(first, b.schedule.passRows), m));
  });
}

LLVM::LLVMFuncOp
mlir::diffattn::getOrEmitQuantizedGemm(ModuleOp module, Location loc,
                                       const QuantizedGemmSpec &spec) {
  QuantizedBuilder b(loc, spec);
  std::string name = b.nameOf("quantized_gemm");
  if (auto existing = module.lookupSymbol<LLVM::LLVMFuncOp>(name))
    return existing;
  GemmKernel kernel(b);
  Type p = b.pointer, i = b.i64;
  LLVM::LLVMFuncOp item = b.getOrEmitFunction(
      module, name + "_item", {p, i, p},
      [&](ValueRange args) { kernel.emitItem(args[0], args[1]); });
  LLVM::LLVMFuncOp mark = b.getRuntimeFunction(module, RuntimeFunction::mark),
                   alloc = b.getRuntimeFunction(module, RuntimeFunction::alloc),
                   release =
                       b.getRuntimeFunction(module, RuntimeFunction::release);
  return b.getOrEmitFunction(
      module, name, {p, i, p, p, p, i, i, i, i, i}, [&](ValueRange args) {
        Value a = args[0], lda = args[1], bytes = args[2], scales = args[3],
              c = args[4], ldc = args[5], m = args[6], n = args[7], k = args[8];
        Value before = LLVM::CallOp::create(b, mark, ValueRange()).getResult();
        Value x =
            LLVM::CallOp::create(b, alloc, b.mul(b.mul(m, k), 4)).getResult();
        kernel.copyRows(a, lda, x, m, k);
        b.callItems(module, item, n, k, {x, bytes, scales, c, ldc, m, k},
                    args[9]);
        LLVM::CallOp::create(b, release, before);
      });
}
