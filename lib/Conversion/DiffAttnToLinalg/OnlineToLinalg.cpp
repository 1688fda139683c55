//===- OnlineToLinalg.cpp - states of the maps as linalg ops --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Conversion/DiffAttnToLinalg.h"

#include "BodyMath.h"
#include "Epilogue.h"
#include "SoftmaxSteps.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;
using utils::IteratorType;

// Loops of the generics below, in their order: batch, head, query, key, column.
static constexpr int64_t b = 0, h = 1, i = 2, j = 3, c = 4;
static constexpr IteratorType par = IteratorType::parallel;
static constexpr IteratorType red = IteratorType::reduction;

namespace {
/// The running state of one map.
struct State {
  Value max, sum, acc;
};
} // namespace

/// exp(from - to), the factor that moves a state to a larger maximum; 0 for a
/// state that has seen no key.
static Value rescale(ImplicitLocOpBuilder &b, Value from, Value to) {
  BodyMath math(b);
  return emitWeight(math, from, to);
}

static int64_t headsOf(Value value) {
  return cast<ShapedType>(value.getType()).getDimSize(1);
}

/// Places of a state: a row of head `h / group`, with its width at rank 4.
static SmallVector<Axis> rowOf(StructuredBuilder &sb, int64_t group) {
  return {b, Axis(h, sb.builder.getIndexAttr(group)), i};
}
static SmallVector<Axis> allOf(unsigned rank) {
  return rank == 4 ? SmallVector<Axis>{b, h, i, 3} : SmallVector<Axis>{b, h, i};
}

/// Multiplies `value`, [B,H,T] or [B,Ha,T,dv], by the factor of each row.
static Value buildRescale(StructuredBuilder &sb, Value value, Value from,
                          Value to) {
  unsigned rank = cast<ShapedType>(value.getType()).getRank();
  SmallVector<Axis> row = rowOf(sb, headsOf(value) / headsOf(from));
  return sb.generic({{from, row}, {to, row}}, value, allOf(rank),
                    SmallVector<IteratorType>(rank, par),
                    [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                      return arith::MulFOp::create(
                          ib, args[2], rescale(ib, args[0], args[1]));
                    });
}

/// Adds keys to the state of one map. Accumulator head `h` reads value head
/// `h / (heads of acc / value heads)`.
static State buildStep(StructuredBuilder &sb, const MapOperands &map,
                       const ScoreInputs &inputs, Value v, Layout vLayout,
                       State state) {
  Value scores = buildScores(sb, map, inputs);
  Value max = buildRowMax(sb, scores, sb.copyToUpdate(state.max));
  Value weights = buildExp(sb, scores, max, sb.empty(sb.sizes(scores)));
  State next;
  next.sum =
      buildRowSum(sb, weights, buildRescale(sb, state.sum, state.max, max));
  Value acc = buildRescale(sb, state.acc, state.max, max);
  int64_t accHeads = headsOf(state.acc);
  int64_t valueHeads =
      cast<ShapedType>(v.getType()).getDimSize(AttentionOp::headAxis(vLayout));
  Axis mapHead(h, sb.ratio(sb.builder.getIndexAttr(accHeads), map.heads));
  Axis valueHead(h, sb.builder.getIndexAttr(accHeads / valueHeads));
  next.acc = sb.generic(
      {{scores, {b, mapHead, i, j}},
       {weights, {b, mapHead, i, j}},
       {v, layoutAxes(vLayout, b, valueHead, j, c)}},
      acc, {b, h, i, c}, {par, par, par, red, par},
      [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        // A key that is not seen gives nothing, NaN included.
        Value product = arith::MulFOp::create(ib, args[1], widen(ib, args[2]));
        Value sum = arith::AddFOp::create(ib, args[3], product);
        return arith::SelectOp::create(ib, isHidden(ib, args[0]), args[3], sum);
      });
  next.max = sb.store(max, state.max);
  return next;
}

SmallVector<Value> diffattn::decomposeOnlineAttention(OpBuilder &builder,
                                                      OnlineAttentionOp op) {
  StructuredBuilder sb(builder, op.getLoc(),
                       /*onTensors=*/!op.getResults().empty());
  int64_t signal = op.getSignalHeads(), noise = op.getNoiseHeads();
  ScoreInputs inputs = getScoreInputs(op);
  if (op.getKOffset())
    inputs.keyOffset = arith::IndexCastOp::create(
        builder, op.getLoc(), builder.getI64Type(), op.getKOffset());
  auto count = [&](int64_t value) -> OpFoldResult {
    return builder.getIndexAttr(value);
  };
  State map1 =
      buildStep(sb,
                {op.getQ1(), op.getK1(), count(signal),
                 count(signal / op.getKey1Heads()), count(signal / noise)},
                inputs, op.getV(), op.getVLayout(),
                {op.getMax1(), op.getSum1(), op.getAcc1()});
  SmallVector<Value> states = {map1.max, map1.sum, map1.acc};
  if (op.hasSecondMap()) {
    State map2 = buildStep(sb,
                           {op.getQ2(), op.getK2(), count(noise),
                            count(noise / op.getKey2Heads()), count(1)},
                           inputs, op.getV(), op.getVLayout(),
                           {op.getMax2(), op.getSum2(), op.getAcc2()});
    states.append({map2.max, map2.sum, map2.acc});
  }
  sb.freeTemporaries();
  return states;
}

/// a * exp(maxA - max) + init * exp(initMax - max), written over `init`.
static Value buildJoin(StructuredBuilder &sb, Value a, Value maxA, Value init,
                       Value initMax, Value max) {
  unsigned rank = cast<ShapedType>(init.getType()).getRank();
  SmallVector<Axis> row = rowOf(sb, headsOf(init) / headsOf(max));
  return sb.generic({{a, allOf(rank)}, {maxA, row}, {initMax, row}, {max, row}},
                    init, allOf(rank), SmallVector<IteratorType>(rank, par),
                    [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                      Value left = arith::MulFOp::create(
                          ib, args[0], rescale(ib, args[1], args[3]));
                      Value right = arith::MulFOp::create(
                          ib, args[4], rescale(ib, args[2], args[3]));
                      return arith::AddFOp::create(ib, left, right);
                    });
}

SmallVector<Value> diffattn::decomposeMerge(OpBuilder &builder, MergeOp op) {
  StructuredBuilder sb(builder, op.getLoc(),
                       /*onTensors=*/!op.getResults().empty());
  const SmallVector<Axis> row = {b, h, i};
  Value max = sb.generic(
      {{op.getMax(), row}}, sb.copyToUpdate(op.getInitMax()), row,
      {par, par, par}, [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        return arith::MaximumFOp::create(ib, args[0], args[1]);
      });
  Value sum = buildJoin(sb, op.getSum(), op.getMax(), op.getInitSum(),
                        op.getInitMax(), max);
  Value acc = buildJoin(sb, op.getAcc(), op.getMax(), op.getInitAcc(),
                        op.getInitMax(), max);
  max = sb.store(max, op.getInitMax());
  sb.freeTemporaries();
  return {max, sum, acc};
}

/// The state with `sink`, float [heads], in its sum, in new storage; a state
/// that has seen no key keeps a sum of 0.
static State addSink(StructuredBuilder &sb, const State &state, Value sink) {
  const SmallVector<Axis> row = {b, h, i};
  const SmallVector<IteratorType> loops = {par, par, par};
  State next;
  next.max = sb.generic(
      {{state.max, row}, {sink, {h}}}, sb.empty(sb.sizes(state.max)), row,
      loops, [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        return arith::MaximumFOp::create(ib, args[0], widen(ib, args[1]));
      });
  next.sum = sb.generic(
      {{state.sum, row}, {state.max, row}, {next.max, row}, {sink, {h}}},
      sb.empty(sb.sizes(state.sum)), row, loops,
      [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        BodyMath math(ib);
        Value moved = math.multiply(args[0], rescale(ib, args[1], args[2]));
        Value sum = math.add(moved, rescale(ib, widen(ib, args[3]), args[2]));
        Value isEmpty = math.isEqual(args[0], math.constant(0.0f));
        return math.select(isEmpty, args[0], sum);
      });
  next.acc = buildRescale(sb, sb.copyToUpdate(state.acc), state.max, next.max);
  return next;
}

/// The rows of both states subtracted, in new storage of `sizes`.
static Value subtractStates(StructuredBuilder &sb, FinalizeOp op,
                            const State &map1, const State &map2,
                            ArrayRef<OpFoldResult> sizes) {
  OpBuilder &builder = sb.builder;
  int64_t signal = op.getSignalHeads(), noise = op.getNoiseHeads();
  const bool isSigmoid = getEpilogueRules(op).lambdaSigmoid;
  const SmallVector<Axis> all = {b, h, i, 3};
  Axis group(h, builder.getIndexAttr(signal / noise));
  Axis acc2Head(h, builder.getIndexAttr(signal / headsOf(op.getAcc2())));
  return sb.generic(
      {{map1.acc, all},
       {map1.sum, {b, h, i}},
       {map2.acc, {b, acc2Head, i, 3}},
       {map2.sum, {b, group, i}},
       lambdaInput(sb, op.getLambda(), builder.getIndexAttr(signal))},
      sb.empty(sizes), all, {par, par, par, par},
      [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        Value lambda = activated(ib, args[4], isSigmoid);
        Value x1 = normalized(ib, args[0], args[1]);
        Value x2 = normalized(ib, args[2], args[3]);
        Value x = arith::SubFOp::create(ib, x1,
                                        arith::MulFOp::create(ib, lambda, x2));
        // Without keys 0, whatever lambda is.
        return zeroWithoutKeys(ib, args[1], args[3], x);
      });
}

SmallVector<Value> diffattn::decomposeFinalize(OpBuilder &builder,
                                               FinalizeOp op) {
  StructuredBuilder sb(builder, op.getLoc(),
                       /*onTensors=*/static_cast<bool>(op.getResult()));
  EpilogueRules epilogue = getEpilogueRules(op);
  SmallVector<OpFoldResult> sizes = {
      sb.size(op.getAcc1(), 0), builder.getIndexAttr(op.getSignalHeads()),
      sb.size(op.getAcc1(), 2), sb.size(op.getAcc1(), 3)};
  const SmallVector<Axis> all = {b, h, i, 3};
  auto getState = [&](State state, Value sink) {
    return sink ? addSink(sb, state, sink) : state;
  };
  const State map1 = getState({op.getMax1(), op.getSum1(), op.getAcc1()},
                              op.getSink()),
              map2 = getState({op.getMax2(), op.getSum2(), op.getAcc2()},
                              op.getSink2());
  Value x =
      op.hasSecondMap()
          ? subtractStates(sb, op, map1, map2, sizes)
          : sb.generic({{map1.acc, all}, {map1.sum, {b, h, i}}},
                       sb.empty(sizes), all, {par, par, par, par},
                       [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                         return normalized(ib, args[0], args[1]);
                       });
  SmallVector<Value> results = {buildEpilogue(
      sb, x, op.getInit(),
      {epilogue, op.getNormWeight(), op.getGate(), op.getOLayout()})};
  if (op.getLse1())
    results.push_back(buildLogSum(
        sb, {{}, {}, op.getMax1(), map1.max, map1.sum}, op.getLse1()));
  if (op.getLse2())
    results.push_back(buildLogSum(
        sb, {{}, {}, op.getMax2(), map2.max, map2.sum}, op.getLse2()));
  sb.freeTemporaries();
  return results;
}
