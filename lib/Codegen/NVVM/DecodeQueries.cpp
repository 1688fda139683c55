//===- DecodeQueries.cpp - the queries of a block of keys -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DecodeKernel.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

DecodeKernel::QuerySource DecodeKernel::locateQuery(Value tileRow,
                                                    Value column) {
  using P = GpuParam;
  const bool isOne = spec.maps == 1;
  Value isSecond, row = tileRow;
  if (!isOne) {
    isSecond = b.compare(LLVM::ICmpPredicate::uge, tileRow, b.i32(8));
    row = b.andI(tileRow, 7);
  }
  Value group = kernel.param(P::Group);
  Value inside = b.compare(LLVM::ICmpPredicate::slt, row, countRows());
  if (spec.headDim != spec.getPaddedHeadDim()) {
    Value hasColumn =
        b.compare(LLVM::ICmpPredicate::slt, column, b.i32(spec.headDim));
    inside = b.andI(inside, hasColumn);
    column = b.select(hasColumn, column, b.i32(0));
  }
  row = b.select(inside, row, b.i32(0));
  Value query = b.divU(row, group);
  Value head = b.add(firstHead, b.sub(row, b.mul(query, group)));
  if (!isOne)
    head = b.select(isSecond, kernel.noiseHeadOf(head), head);
  auto ofMap = [&](auto get) {
    return isOne ? get(P::Q1) : b.select(isSecond, get(P::Q2), get(P::Q1));
  };
  Value pointer = ofMap([&](P tensor) { return kernel.param(tensor); });
  const Value indices[] = {batch, head, queryAt(query), column};
  for (auto [axis, index] : llvm::enumerate(indices)) {
    const unsigned number = axis;
    if (number == 3 && !spec.elementwise)
      pointer = b.element(kernel.element, pointer, b.toI64(index));
    else
      pointer = kernel.stridePointer(
          kernel.element, pointer, b.toI64(index), ofMap([&](P tensor) {
            return kernel.param(getGpuStride(tensor, number));
          }));
  }
  return {inside, pointer};
}

/// Copies queries to shared memory, 16 bytes at a time, or single elements if
/// these are not contiguous: each row has a head and a query of its own. Places
/// without a row, or beyond the width, read element 0 and become zeros.
void DecodeKernel::bringQueries() {
  const int64_t step = spec.elementwise ? 1 : kChunkElements,
                perRow = spec.getPaddedHeadDim() / step,
                all = layout.stateRows * perRow,
                threads = spec.getReadingThreads();
  auto bring = [&](Value at) {
    Value row = b.divU(at, perRow), column = b.mul(b.remU(at, perRow), step);
    Value chunk = b.xorI(b.mul(b.divU(column, kChunkElements), kChunkBytes),
                         SharedTile::swizzle(b, layout.headPitch, row));
    Value target =
        b.bytes(kernel.shared, b.add(b.mul(row, layout.headPitch), chunk));
    auto [inside, source] = locateQuery(row, column);
    if (!spec.elementwise) {
      NVVM::CpAsyncOp::create(b, target, source, kChunkBytes,
                              NVVM::LoadCacheModifierKind::CG,
                              b.select(inside, b.i32(kChunkBytes), b.i32(0)));
      return;
    }
    Type half = b.getI16Type();
    Value zero = LLVM::ConstantOp::create(b, half, b.getI16IntegerAttr(0));
    Value loaded = b.select(inside, b.loadConstant(half, source), zero);
    b.store(loaded, b.bytes(target, b.mul(b.remU(column, kChunkElements),
                                          kElementBytes)));
  };
  b.loop(kernel.thread, b.i32(all), threads, ValueRange(),
         [&](Value at, ValueRange) -> GpuBuilder::Values {
           bring(at);
           return {};
         });
}

void DecodeKernel::keepQueries() {
  atom = createMmaSync16816(kernel, /*valueChunk=*/{});
  queries.base = kernel.shared;
  if (spec.getTiles().qInRegisters)
    queries.fragments.push_back(atom->loadQueries(queries.base, 0));
}
