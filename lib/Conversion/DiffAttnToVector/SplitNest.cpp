//===- SplitNest.cpp - attention of few queries, keys split over threads --===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SplitNest.h"

#include "DiffAttn/Kernel/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

/// A partial state: maximum and sum of map 1, of map 2, then both outputs from
/// `kStateHeader` on, padded to whole vectors.
static constexpr int64_t kStateHeader = 16;

SplitNest::SplitNest(KernelBuilder &b, const NestSpec &spec, Value context)
    : b(b), spec(spec), v(b, spec, context) {
  partials = b.load(b.pointer, context, b.i64, b.index(spec.slots));
  sizes.batch = v.size(spec.batch);
  sizes.signalHeads = v.size(spec.signalHeads);
  sizes.noiseHeads = v.size(spec.noiseHeads);
  sizes.key1Heads = v.size(spec.key1Heads);
  sizes.key2Heads = v.size(spec.key2Heads);
  sizes.valueHeads = v.size(spec.valueHeads);
  sizes.queries = v.size(spec.queries);
  sizes.keys = v.size(spec.keys);
  sizes.headDim = v.size(spec.headDim);
  sizes.valueDim = v.size(spec.valueDim);
  groups = getGroups(b, sizes);
  paddedValueDim = b.roundUp(sizes.valueDim, b.lanes);
  blocks = b.ceilDiv(sizes.keys, spec.schedule.splitKeys);
}

HeadGroups SplitNest::getGroups(KernelBuilder &b, const NestCallSizes &sizes) {
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

SplitScratch SplitNest::layOut(KernelBuilder &b, const NestSpec &spec,
                               Value base, const NestCallSizes &sizes) {
  SplitScratch s;
  Value at = b.index(0);
  // Every part begins on a cache line.
  auto take = [&](Value count) {
    Value part = base ? b.at(base, b.f32, at) : Value();
    at = b.add(at, b.roundUp(count, 16));
    return part;
  };
  HeadGroups groups = getGroups(b, sizes);
  s.queryStride = b.roundUp(sizes.headDim, b.lanes);
  // A width that is not known has a last step of masked keys, perhaps of none:
  // the query must be 0 there, not what lay in memory.
  if (!spec.headDim.isStatic())
    s.queryStride = b.add(s.queryStride, b.lanes);
  // Scores are written in whole vectors.
  s.scoreStride = b.index(spec.schedule.splitKeys + b.lanes);
  for (int map : {0, 1}) {
    Value rows = b.mul(map ? groups.noise : groups.signal, sizes.queries);
    s.queries[map] = take(b.mul(rows, s.queryStride));
    s.scores[map] = take(b.mul(rows, s.scoreStride));
  }
  s.keyPanel = take(b.mul(s.queryStride, b.lanes));
  s.valuePanel =
      take(b.mul(b.roundUp(sizes.valueDim, b.lanes), valueTile(spec)));
  s.total = at;
  return s;
}

Value SplitNest::stateSize(KernelBuilder &b, Value valueDim) {
  return b.add(b.mul(b.roundUp(valueDim, b.lanes), 2), kStateHeader);
}

Value SplitNest::getState(Value head, Value query, Value block) {
  Value number = b.add(b.mul(batch, sizes.signalHeads), head);
  number = b.add(b.mul(number, sizes.queries), query);
  number = b.add(b.mul(number, blocks), block);
  return b.at(partials, b.f32, b.mul(number, stateSize(b, sizes.valueDim)));
}

Value SplitNest::getOutput(Value state, int map) {
  return b.at(state, b.f32,
              b.add(b.mul(paddedValueDim, map), b.index(kStateHeader)));
}

void SplitNest::writeHeader(int map, Value head, Value query, Value maximum,
                            Value sum) {
  Value state = getGroupState(head, query);
  b.store(maximum, state, b.index(2 * map));
  b.store(sum, state, b.index(2 * map + 1));
}

KeyRange SplitNest::getSeenKeys(Value query) {
  if (!spec.hasPositionMask())
    return {b.index(0), n};
  KeyRange range = getKeyRange(v, positions, query);
  auto clamp = [&](Value key) {
    return b.max(b.min(b.sub(key, begin), n), b.index(0));
  };
  // Without a window, a row sees every key before its last.
  Value low = spec.windowLeft >= 0 ? clamp(range.low) : b.index(0);
  return {low, clamp(range.high)};
}

Value SplitNest::scaleExponent(Value difference) {
  std::optional<float> factor = spec.exponentFactor();
  return factor ? b.mulf(difference, b.splat(*factor)) : difference;
}

void SplitNest::emitItem(Value index, Value scratch) {
  s = layOut(b, spec, scratch, sizes);
  block = b.rem(index, blocks);
  Value rest = b.div(index, blocks);
  group = b.rem(rest, groups.groups);
  batch = b.div(rest, groups.groups);
  positions = getNestPositions(v, batch);
  int64_t size = spec.schedule.splitKeys;
  // Keys that any query sees.
  KeyRange first = getKeyRange(v, positions, b.index(0));
  KeyRange last = getKeyRange(v, positions, b.add(sizes.queries, -1));
  begin = b.max(first.low, b.mul(block, size));
  Value end = b.min(last.high, b.mul(b.add(block, 1), size));
  n = b.sub(end, begin);
  b.ifElse(
      b.less(b.index(0), n),
      [&] {
        for (int map : {0, 1})
          scoreMap(map);
        multiplyValues();
      },
      [&] {
        Value lowest =
            emitConstant(b, b.f32, -std::numeric_limits<float>::max());
        Value nothing = emitConstant(b, b.f32, 0.0f);
        b.loop(groups.signal, [&](Value head) {
          b.loop(sizes.queries, [&](Value query) {
            for (int map : {0, 1})
              writeHeader(map, head, query, lowest, nothing);
          });
        });
      });
}

void SplitNest::emitMerge(Value index, Value scratch) {
  Value query = b.rem(index, sizes.queries), rest = b.div(index, sizes.queries);
  Value head = b.rem(rest, sizes.signalHeads);
  batch = b.div(rest, sizes.signalHeads);
  NestHeads heads = getNestHeads(v, head);
  Value lambda = emitLambdaScalar(v, batch, heads, query);
  Value lambdas = b.splat(lambda);
  if (spec.lambdaSigmoid)
    lambdas = emitSigmoid(b, lambdas);
  b.loop(b.index(0), paddedValueDim, b.lanes,
         [&](Value c) { b.store(b.zero(), scratch, c); });
  for (int map : {0, 1}) {
    auto header = [&](Value block, int64_t i) {
      Value state = getState(head, query, block);
      return b.splat(b.load(b.f32, state, b.index(2 * map + i)));
    };
    Value floor = b.splat(-std::numeric_limits<float>::max());
    Value maximum = b.loop(b.index(0), blocks, 1, floor,
                           [&](Value block, ValueRange carried) {
                             return SmallVector<Value>{
                                 emitMaximum(b, carried[0], header(block, 0))};
                           })[0];
    auto factor = [&](Value block) {
      return emitExp2(b, scaleExponent(b.subf(header(block, 0), maximum)));
    };
    Value sum = b.loop(
        b.index(0), blocks, 1, b.zero(), [&](Value block, ValueRange carried) {
          return SmallVector<Value>{
              b.fma(header(block, 1), factor(block), carried[0])};
        })[0];
    Value empty =
        arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, sum, b.zero());
    Value numerator = map ? b.subf(b.zero(), lambdas) : b.splat(1.0f);
    Value weight = b.select(empty, b.zero(), b.divf(numerator, sum));
    b.loop(blocks, [&](Value block) {
      // A state that saw no key has no output.
      Value used = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                                         b.lane(header(block, 1), 0),
                                         emitConstant(b, b.f32, 0.0f));
      b.ifThen(used, [&] {
        Value scale = b.mulf(factor(block), weight);
        Value output = getOutput(getState(head, query, block), map);
        b.loop(b.index(0), paddedValueDim, b.lanes, [&](Value c) {
          b.store(b.fma(b.load(b.vector, output, c), scale,
                        b.load(b.vector, scratch, c)),
                  scratch, c);
        });
      });
    });
  }
  emitFinishRow(v, scratch, batch, head, query);
}

SplitNestFunctions mlir::diffattn::emitSplitNest(KernelBuilder &b,
                                                 ModuleOp module,
                                                 StringRef name,
                                                 const NestSpec &spec) {
  SmallVector<Type> arguments = {b.pointer, b.i64, b.pointer};
  SplitNestFunctions functions;
  functions.item = b.getOrEmitFunction(
      module, (name + "_split").str(), arguments, [&](ValueRange args) {
        SplitNest(b, spec, args[0]).emitItem(args[1], args[2]);
      });
  functions.merge = b.getOrEmitFunction(
      module, (name + "_merge").str(), arguments, [&](ValueRange args) {
        SplitNest(b, spec, args[0]).emitMerge(args[1], args[2]);
      });
  return functions;
}

SplitNestSizes mlir::diffattn::emitSplitNestSizes(KernelBuilder &b,
                                                  const NestSpec &spec,
                                                  const NestCallSizes &sizes) {
  SplitNestSizes result;
  Value blocks = b.ceilDiv(sizes.keys, spec.schedule.splitKeys);
  Value groups = SplitNest::getGroups(b, sizes).groups;
  result.items = b.mul(b.mul(sizes.batch, groups), blocks);
  result.rows = b.mul(b.mul(sizes.batch, sizes.signalHeads), sizes.queries);
  result.stateBytes = b.mul(b.mul(b.mul(result.rows, blocks),
                                  SplitNest::stateSize(b, sizes.valueDim)),
                            4);
  result.itemScratch =
      b.mul(SplitNest::layOut(b, spec, Value(), sizes).total, 4);
  result.rowScratch = b.mul(b.roundUp(sizes.valueDim, b.lanes), 4);
  return result;
}
