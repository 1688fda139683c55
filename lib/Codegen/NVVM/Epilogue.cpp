//===- Epilogue.cpp - norm, scale and gate of rows ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"
#include "GpuMath.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

Epilogue::Epilogue(AttentionKernel &kernel, Value batch, Value head,
                   GpuParam output)
    : kernel(kernel), b(kernel.b), batch(batch), head(head), output(output),
      type(output == GpuParam::O   ? kernel.spec.resultType
           : output == GpuParam::X ? kernel.spec.savedType
                                   : kernel.spec.secondType),
      gateType(output == GpuParam::O ? kernel.spec.gateType : Type()) {
  outBase = kernel.headBase(output, batch, head);
  if (gateType)
    gateBase = kernel.headBase(GpuParam::Gate, batch, head);
}

Epilogue::Row Epilogue::locate(Value query) {
  Value wide = b.toI64(query);
  Row row{kernel.stridePointer(type, outBase, wide, kernel.rowStride(output)),
          Value()};
  if (gateType)
    row.gate = kernel.stridePointer(gateType, gateBase, wide,
                                    kernel.rowStride(GpuParam::Gate));
  return row;
}

Value Epilogue::finish(Value x, Value factor, const Row &row, Value column,
                       Value gate) {
  if (output != GpuParam::O)
    return x;
  const GpuKernelSpec &spec = kernel.spec;
  auto load = [&](Type type, Value base, GpuParam stride) {
    return b.loadAsF32(type, kernel.stridePointer(type, base, b.toI64(column),
                                                  kernel.param(stride)));
  };
  auto loadWeight = [&] {
    return load(spec.normWeightType, kernel.param(GpuParam::NormWeight),
                GpuParam::NormWeightW);
  };
  auto getGate = [&] {
    return gate ? gate : load(spec.gateType, row.gate, GpuParam::GateW);
  };
  RowEnd end{factor, kernel.param(GpuParam::OutScale), nullptr, nullptr};
  if (spec.normWeightType)
    end.normWeight = loadWeight;
  if (spec.gateType)
    end.gate = getGate;
  GpuMath math(b);
  return emitRowEnd(math, x, end);
}

std::array<Value, 2> Epilogue::finishBoth(const std::array<Value, 2> &pair,
                                          Value factor, const Row &row,
                                          Value column) {
  // One load from a row that all pairs share: an address for each element was
  // seen to take the registers of 300 bytes.
  std::array<Value, 2> gates;
  if (gateType)
    gates = b.loadPairAsF32(gateType,
                            b.element(gateType, row.gate, b.toI64(column)));
  return {finish(pair[0], factor, row, column, gates[0]),
          finish(pair[1], factor, row, b.add(column, 1), gates[1])};
}

void Epilogue::storeOne(Value x, Value factor, const Row &row, Value column,
                        int64_t maxColumn) {
  auto store = [&] {
    Value y = b.round(type, finish(x, factor, row, column));
    b.store(y, kernel.stridePointer(type, row.out, b.toI64(column),
                                    kernel.param(getGpuStride(output, 3))));
  };
  int64_t width = kernel.spec.valueDim;
  if (maxColumn < width)
    store();
  else
    b.branch(b.compare(LLVM::ICmpPredicate::slt, column, b.i32(width)), store);
}

void Epilogue::storeColumns(ArrayRef<Value> x, Value factor, Value query) {
  Row row = locate(query);
  for (auto [i, value] : llvm::enumerate(x))
    storeOne(value, factor, row, b.add(kernel.lane, 32 * i), 32 * i + 31);
}

void Epilogue::storePairs(ArrayRef<std::array<Value, 2>> pairs, Value factor,
                          const Row &row, const QuadColumns &columns) {
  Value first = b.add(columns.start, b.mul(kernel.laneColumn, 2));
  int64_t width = kernel.spec.valueDim;
  for (size_t n = 0; n < pairs.size(); ++n) {
    const std::array<Value, 2> &pair = pairs[n];
    int64_t offset = columns.offset(n);
    Value column = b.add(first, offset);
    if (kernel.spec.elementwise) {
      for (int64_t i = 0; i < 2; ++i)
        storeOne(pair[i], factor, row, b.add(column, i),
                 columns.maxStart + offset + i + 6);
      continue;
    }
    // Widths are multiples of 8 here: a tile is inside or outside.
    if (offset >= width)
      continue;
    auto store = [&] {
      b.store(b.pack(finishBoth(pair, factor, row, column)),
              b.element(type, row.out, b.toI64(column)), 8);
    };
    if (offset + columns.maxStart < width)
      store();
    else
      b.branch(b.compare(LLVM::ICmpPredicate::slt, column, b.i32(width)),
               store);
  }
}

void Epilogue::transposeQuads(std::array<Value, 4> &words) {
  for (int64_t bit : {1, 2}) {
    Value set = b.compare(LLVM::ICmpPredicate::ne,
                          b.andI(kernel.laneColumn, bit), b.i32(0));
    for (int64_t low = 0; low < 4; ++low) {
      if (low & bit)
        continue;
      Value &a = words[low], &c = words[low | bit];
      Value taken = b.shuffleXor(b.select(set, a, c), bit);
      a = b.select(set, taken, a);
      c = b.select(set, c, taken);
    }
  }
}

Value Epilogue::finishPair(const std::array<Value, 2> &pair, Value factor,
                           const Row &row, const QuadColumns &columns,
                           int64_t tile) {
  const int64_t width = kernel.spec.valueDim, offset = columns.offset(tile);
  // Widths are multiples of 8 here: a tile is inside or outside.
  if (offset >= width)
    return b.i32(0);
  Value column = b.add(columns.start, offset);
  if (offset + columns.maxStart >= width)
    column = b.minS(column, b.i32(width - 8));
  column = b.add(column, b.mul(kernel.laneColumn, 2));
  auto [first, second] = finishBoth(pair, factor, row, column);
  return b.packPair(type, first, second);
}

void Epilogue::storeRow(ArrayRef<std::array<Value, 2>> pairs, Value factor,
                        Value query, const QuadColumns &columns) {
  int64_t width = kernel.spec.valueDim;
  Value queries = kernel.queries();
  Value inside = b.compare(LLVM::ICmpPredicate::slt, query, queries);
  // In f32 the pairs of a quad are 32 bytes side by side, and nothing needs to
  // be exchanged for whole sectors.
  if (kernel.spec.elementwise || type.isF32()) {
    b.branch(inside,
             [&] { storePairs(pairs, factor, locate(query), columns); });
    return;
  }
  // A row beyond the last one reads the last one's gate and is not stored.
  Row row = locate(b.minS(query, b.add(queries, -1)));
  // The tile that this lane stores of four, in columns.
  Value t = kernel.laneColumn;
  Value own = columns.alternating
                  ? b.add(b.mul(b.divU(t, 2), 32), b.mul(b.andI(t, 1), 8))
                  : b.mul(t, 8);
  own = b.add(columns.start, own);
  int64_t tiles = pairs.size();
  for (int64_t group = 0; group < tiles; group += 4) {
    std::array<Value, 4> words;
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t n = group + i;
      words[i] =
          n < tiles ? finishPair(pairs[n], factor, row, columns, n) : b.i32(0);
    }
    transposeQuads(words);
    int64_t first = columns.offset(group);
    Value column = b.add(own, first), stored = inside;
    if (columns.offset(group + 3) + columns.maxStart >= width)
      stored = b.andI(
          stored, b.compare(LLVM::ICmpPredicate::slt, column, b.i32(width)));
    if (group + 4 > tiles)
      stored = b.andI(
          stored, b.compare(LLVM::ICmpPredicate::slt, t, b.i32(tiles - group)));
    b.branch(stored, [&] {
      b.store(b.pack(words), b.element(type, row.out, b.toI64(column)), 16);
    });
  }
}
