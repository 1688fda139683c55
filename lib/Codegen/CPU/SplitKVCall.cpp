//===- SplitKVCall.cpp - sizes and memory of few queries ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SplitKVCall.h"

#include "TileBuilder.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

SplitKVCall::SplitKVCall(KernelBuilder &b, const AttentionSpec &spec,
                         const CallSizes &sizes, Value context)
    : b(b), spec(spec), schedule(spec.splitKV), atom(spec.getAtom()),
      v(b, spec, context), sizes(sizes) {
  groups = getGroups();
  groupRows[0] = b.mul(groups.signal, sizes.queries);
  groupRows[1] =
      spec.hasSecondMap() ? b.mul(groups.noise, sizes.queries) : b.index(0);
  queryStride = b.roundUp(sizes.headDim, b.lanes);
  // A width that is not known has a last step of masked keys, perhaps of none:
  // the query must be 0 there, not what lay in memory.
  if (!spec.headDim.isStatic())
    queryStride = b.add(queryStride, b.lanes);
  paddedValueDim = b.roundUp(sizes.valueDim, b.lanes);
  blocks = b.ceilDiv(sizes.keys, schedule.getKvSplitSize());
  paddedBlocks = b.roundUp(blocks, b.lanes);
  m = layOutMemory(context
                       ? b.load(b.pointer, context, b.i64, b.index(spec.slots))
                       : Value());
  scratchSizes = layOutScratch(Value());
}

HeadGroups SplitKVCall::getGroups() {
  // The signal heads of one head of each operand; groups must be made of whole
  // ones. (A noise head's lie within those of its head of K2.)
  Value all = sizes.signalHeads, size = b.index(1);
  Value parts[] = {b.div(all, sizes.key1Heads), b.div(all, sizes.key2Heads),
                   b.div(all, sizes.valueHeads)};
  for (Value part : parts)
    size = b.max(size, part);
  Value most = size;
  for (Value part : parts)
    size = b.select(b.equal(b.rem(most, part), b.index(0)), size, all);
  HeadGroups result;
  result.groups = b.div(all, size);
  result.signal = size;
  result.noise = b.div(sizes.noiseHeads, result.groups);
  result.key1 = b.div(sizes.key1Heads, result.groups);
  result.key2 = b.div(sizes.key2Heads, result.groups);
  result.value = b.div(sizes.valueHeads, result.groups);
  return result;
}

/// Lays parts one after another, each on a cache line.
static auto partTaker(KernelBuilder &b, Value base, Value &at) {
  at = b.index(0);
  return [&b, base, &at](Value count) {
    Value part = base ? b.at(base, b.f32, at) : Value();
    at = b.add(at, b.roundUp(count, 16));
    return part;
  };
}

SplitKVMemory SplitKVCall::layOutMemory(Value base) {
  SplitKVMemory m;
  auto take = partTaker(b, base, m.total);
  Value rows[] = {b.mul(sizes.signalHeads, sizes.queries),
                  b.mul(sizes.noiseHeads, sizes.queries)};
  for (int map : spec.maps()) {
    Value count = b.mul(b.mul(sizes.batch, rows[map]), paddedBlocks);
    m.maxima[map] = take(count);
    m.sums[map] = take(count);
  }
  m.factors = take(b.mul(b.mul(b.mul(sizes.batch, rows[0]), paddedBlocks),
                         spec.maps().size()));
  Value items = getItems();
  Value both = b.add(groupRows[0], groupRows[1]);
  m.scores = take(b.mul(b.mul(items, both), schedule.getKvSplitSize()));
  m.outputs = take(b.mul(b.mul(items, groupRows[0]), paddedValueDim));
  return m;
}

SplitKVScratch SplitKVCall::layOutScratch(Value base) {
  SplitKVScratch s;
  {
    auto take = partTaker(b, base, s.scores);
    if (atom.usesTiles) {
      Value pairs = b.div(b.roundUp(sizes.headDim, kTileDepth), 2);
      s.queries = take(b.mul(pairs, kTileLanes));
      s.keyPanel = take(b.mul(pairs, kTileRows));
      s.tileSums = take(b.index(schedule.getKvSplitSize() * kTileLanes));
    } else {
      s.queries = take(b.mul(queryStride, schedule.getQkRows()));
      s.keyPanel = take(b.mul(queryStride, b.lanes));
    }
  }
  auto take = partTaker(b, base, s.values);
  s.weights = take(b.mul(groupRows[0], schedule.getKvSplitSize()));
  s.outputs = take(b.mul(groupRows[0], paddedValueDim));
  s.valuePanel = take(b.mul(paddedValueDim, schedule.getPvKeys()));
  return s;
}

SplitKVSizes SplitKVCall::getSizes() {
  SplitKVSizes result;
  result.items = getItems();
  result.rows = b.mul(b.mul(sizes.batch, sizes.signalHeads), sizes.queries);
  result.stateBytes = b.mul(m.total, 4);
  result.scoresScratch = b.mul(scratchSizes.scores, 4);
  result.valuesScratch = b.mul(scratchSizes.values, 4);
  result.rowScratch = b.mul(paddedValueDim, 4);
  return result;
}

SplitKVCall::Map SplitKVCall::getMap(int number) {
  const bool second = number == 1;
  return {{&spec.queriesOf(number), v},
          {&spec.keysOf(number), v},
          second ? sizes.noiseHeads : sizes.signalHeads,
          second ? groups.noise : groups.signal,
          second ? groups.key2 : groups.key1,
          groupRows[number],
          second ? groupRows[0] : b.index(0),
          m.maxima[number],
          m.sums[number]};
}

Value SplitKVCall::getHeader(Value part, const Map &map, Value batch,
                             Value head, Value query) {
  Value number = row(b.add(b.mul(batch, map.allHeads), head), query);
  return b.at(part, b.f32, b.mul(number, paddedBlocks));
}

Value SplitKVCall::getFactors(int map, Value batch, Value head, Value query) {
  Value number = row(b.add(b.mul(batch, sizes.signalHeads), head), query);
  number = b.add(b.mul(number, spec.maps().size()), map);
  return b.at(m.factors, b.f32, b.mul(number, paddedBlocks));
}

Value SplitKVCall::getOutput(Value item, Value row) {
  Value number = b.add(b.mul(item, groupRows[0]), row);
  return b.at(m.outputs, b.f32, b.mul(number, paddedValueDim));
}

PolynomialMath SplitKVCall::lanes(int degree) {
  std::optional<float> factor = spec.exponentFactor();
  return PolynomialMath(b, b.vector, degree,
                        factor ? b.splat(*factor) : Value());
}

Value SplitKVCall::highest(Value vector) {
  SmallVector<int64_t> order(b.lanes);
  for (int64_t half = b.lanes / 2; half; half /= 2) {
    for (int64_t i = 0; i < b.lanes; ++i)
      order[i] = (i + half) % b.lanes;
    vector = emitMaximum(b, vector,
                         vector::ShuffleOp::create(b, vector, vector, order));
  }
  return vector;
}
