//===- Sequences.cpp - the sequence of a block ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

void AttentionKernel::enterSequence(Value sequence) {
  masks = std::make_unique<GpuMasks>(*this, sequence);
  if (spec.isPaged())
    pages = std::make_unique<PageTable>(*this, sequence);
}

void AttentionKernel::locateBlock(QueryBlock &place) {
  const int64_t blocks = spec.getClusterBlocks();
  place.noiseHead = noiseHeadOf(place.head);
  place.firstRow = place.clusterRow;
  if (blocks == 1)
    return;
  place.rank = b.remU(b.blockId(0), blocks);
  place.firstRow = b.add(place.clusterRow, b.mul(place.rank, spec.getRows()));
}

QueryBlock AttentionKernel::locate(Value cluster, Value head, Value batch) {
  const int64_t rows = spec.getClusterRows();
  QueryBlock place;
  place.head = head;
  place.batch = place.sequence = batch;
  if (spec.isPacked()) {
    Part part = enterPart(cluster, b.i32(rows));
    place.sequence = part.sequence;
    place.clusterRow = part.firstRow;
  } else {
    place.clusterRow = b.mul(cluster, rows);
  }
  locateBlock(place);
  return place;
}

void AttentionKernel::forQueries(function_ref<void(const QueryBlock &)> body) {
  // Blocks start in order of their number: rows that see most keys come first.
  const int64_t blocks = spec.getClusterBlocks();
  Value cluster = b.sub(b.add(b.divU(b.gridSize(0), blocks), -1),
                        b.divU(b.blockId(0), blocks));
  Value head = b.blockId(1);
  QueryBlock place = locate(cluster, head, batchOfBlock());
  unlessEmpty(place.clusterRow, [&] { body(place); });
}

void AttentionKernel::unlessEmpty(Value firstRow, function_ref<void()> body) {
  if (!spec.isPacked())
    return body();
  // All blocks of a cluster, or none.
  Value rows = spec.kind == GpuKernelKind::GradientKeys ? keys() : queries();
  b.branch(b.compare(LLVM::ICmpPredicate::slt, firstRow, rows), body);
}

Values AttentionKernel::getSequenceBounds() const {
  Values bounds{firstQuery, queryCount};
  if (keyCount)
    bounds.append({firstKey, keyCount});
  return bounds;
}

void AttentionKernel::setSequenceBounds(ValueRange bounds) {
  firstQuery = bounds[0];
  queryCount = bounds[1];
  if (!spec.keyBoundType)
    return;
  firstKey = bounds[2];
  keyCount = bounds[3];
}

Value AttentionKernel::loadBound(GpuParam bounds, Value number) {
  const bool isOfKeys = bounds == GpuParam::KeyBounds;
  Type type = isOfKeys ? spec.keyBoundType : spec.queryBoundType;
  Value all = b.toI64(param(isOfKeys ? GpuParam::Keys : GpuParam::Queries));
  Value bound = b.toI64(b.loadConstant(
      type, stridePointer(type, param(bounds), b.toI64(number),
                          param(isOfKeys ? GpuParam::KeyBoundsN
                                         : GpuParam::QueryBoundsN))));
  b.checkIndex(getGpuParam(bounds).name,
               b.compare(LLVM::ICmpPredicate::ugt, bound, all), bound);
  return b.toI32(b.minS(b.maxS(bound, b.i64(0)), all));
}

Value AttentionKernel::findSequence(GpuParam bounds, Value part, Value rows) {
  // Lanes look at a bound each; the last one that begins early enough counts.
  Values last = b.loop(
      lane, param(GpuParam::Sequences), 32, b.i32(0),
      [&](Value number, ValueRange carried) -> Values {
        Value first = b.add(b.divU(loadBound(bounds, number), rows), number);
        return {b.select(b.compare(LLVM::ICmpPredicate::sle, first, part),
                         number, carried[0])};
      });
  return b.warpMaxS(last[0]);
}

AttentionKernel::Part AttentionKernel::enterPart(Value part, Value rows) {
  const bool isOfKeys = spec.kind == GpuKernelKind::GradientKeys;
  Value sequence = findSequence(
      isOfKeys ? GpuParam::KeyBounds : GpuParam::QueryBounds, part, rows);
  Value next = b.add(sequence, 1);
  auto enter = [&](GpuParam bounds, Value &first, Value &count) {
    first = loadBound(bounds, sequence);
    count = b.sub(loadBound(bounds, next), first);
  };
  auto getFirst = [&](Value first) {
    return b.add(b.divU(first, rows), sequence);
  };
  enter(GpuParam::QueryBounds, firstQuery, queryCount);
  Value before = getFirst(firstQuery);
  if (spec.keyBoundType)
    enter(GpuParam::KeyBounds, firstKey, keyCount);
  if (isOfKeys)
    before = getFirst(firstKey);
  return {sequence, b.mul(b.sub(part, before), rows)};
}
