//===- AttentionToLinalg.cpp - diffattn.attention as linalg ops -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Conversion/DiffAttnToLinalg.h"

#include "Epilogue.h"
#include "SoftmaxSteps.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;
using utils::IteratorType;

// Loops of the generics below, in their order: batch, signal head, query, key,
// column.
static constexpr int64_t b = 0, s = 1, i = 2, j = 3, c = 4;
static constexpr IteratorType par = IteratorType::parallel;
static constexpr IteratorType red = IteratorType::reduction;

/// The weights of `map` divided by their sums, in their place.
static Value normalizeMap(StructuredBuilder &sb, const SoftmaxMap &map) {
  return sb.generic({{map.sum, {b, s, i}}}, map.weights, {b, s, i, j},
                    {par, par, par, par},
                    [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                      return normalized(ib, args[1], args[0]);
                    });
}

/// P = A1 - lambda * A2, over the weights of map 1. `group`: the noise head.
static Value subtractMaps(StructuredBuilder &sb, AttentionOp op,
                          const SoftmaxMap &map1, const SoftmaxMap &map2,
                          const Axis &group, OpFoldResult signal) {
  const bool isSigmoid = getEpilogueRules(op).lambdaSigmoid;
  return sb.generic({{map1.sum, {b, s, i}},
                     {map2.weights, {b, group, i, j}},
                     {map2.sum, {b, group, i}},
                     lambdaInput(sb, op.getLambda(), signal)},
                    map1.weights, {b, s, i, j}, {par, par, par, par},
                    [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                      Value a1 = normalized(ib, args[4], args[0]),
                            a2 = normalized(ib, args[1], args[2]);
                      Value lambda = activated(ib, args[3], isSigmoid);
                      return arith::SubFOp::create(
                          ib, a1, arith::MulFOp::create(ib, lambda, a2));
                    });
}

/// weights * V over the keys that are seen in one of the maps of `scores`,
/// which have the axes of their heads: a NaN in a value that is not seen must
/// not reach the row, and 0 * NaN is NaN.
static Value multiplyValues(StructuredBuilder &sb, AttentionOp op,
                            ArrayRef<StructuredInput> scores,
                            StructuredInput weights, OpFoldResult signal) {
  OpFoldResult perValue = sb.ratio(
      signal, sb.size(op.getV(), AttentionOp::headAxis(op.getVLayout())));
  Value zeros =
      sb.filled({sb.size(op.getQ1(), 0), signal,
                 sb.size(op.getQ1(), AttentionOp::lengthAxis(op.getQLayout())),
                 sb.size(op.getV(), 3)},
                0.0f);
  SmallVector<StructuredInput> factors(scores);
  factors.push_back(weights);
  factors.push_back(
      {op.getV(), layoutAxes(op.getVLayout(), b, Axis(s, perValue), j, c)});
  const size_t maps = scores.size();
  return sb.generic(
      factors, zeros, {b, s, i, c}, {par, par, par, red, par},
      [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        Value hidden = isHidden(ib, args[0]);
        for (Value score : args.take_front(maps).drop_front())
          hidden = arith::AndIOp::create(ib, hidden, isHidden(ib, score));
        Value weight = args[maps], value = args[maps + 1], before = args.back();
        Value product = arith::MulFOp::create(ib, weight, widen(ib, value));
        Value sum = arith::AddFOp::create(ib, before, product);
        return arith::SelectOp::create(ib, hidden, before, sum);
      });
}

SmallVector<Value> diffattn::decomposeAttention(OpBuilder &builder,
                                                AttentionOp op) {
  StructuredBuilder sb(builder, op.getLoc(),
                       /*onTensors=*/static_cast<bool>(op.getResult()));
  auto heads = [&](Value value, Layout layout) {
    return sb.size(value, AttentionOp::headAxis(layout));
  };
  const bool hasSecond = op.hasSecondMap();
  OpFoldResult signal = heads(op.getQ1(), op.getQLayout());
  OpFoldResult noise = hasSecond ? heads(op.getQ2(), op.getQLayout()) : signal;
  OpFoldResult perNoise = sb.ratio(signal, noise);
  OpFoldResult perKey1 = sb.ratio(signal, heads(op.getK1(), op.getKLayout()));
  OpFoldResult perKey2 =
      hasSecond ? sb.ratio(noise, heads(op.getK2(), op.getKLayout()))
                : OpFoldResult();
  ScoreInputs inputs = getScoreInputs(op);
  EpilogueRules epilogue = getEpilogueRules(op);

  SmallVector<SoftmaxMap> maps = {
      buildSoftmax(sb, {op.getQ1(), op.getK1(), signal, perKey1, perNoise},
                   inputs, op.getSink())};
  const Axis group(s, perNoise);
  Value p;
  if (hasSecond) {
    maps.push_back(buildSoftmax(
        sb, {op.getQ2(), op.getK2(), noise, perKey2, builder.getIndexAttr(1)},
        inputs, op.getSink2()));
    p = subtractMaps(sb, op, maps[0], maps[1], group, signal);
  } else {
    p = normalizeMap(sb, maps[0]);
  }

  SmallVector<StructuredInput> scores = {{maps[0].scores, {b, s, i, j}}};
  if (hasSecond)
    scores.push_back({maps[1].scores, {b, group, i, j}});
  Value x = multiplyValues(sb, op, scores, {p, {b, s, i, j}}, signal);

  SmallVector<Value> results = {buildEpilogue(
      sb, x, op.getInit(),
      {epilogue, op.getNormWeight(), op.getGate(), op.getOLayout()})};
  if (op.getX())
    results.push_back(
        buildEpilogue(sb, x, op.getX(), {{}, {}, {}, op.getOLayout()}));
  if (op.getLse1())
    results.push_back(buildLogSum(sb, maps[0], op.getLse1()));
  if (op.getLse2())
    results.push_back(buildLogSum(sb, maps[1], op.getLse2()));
  if (op.getO2()) {
    Value o2 =
        multiplyValues(sb, op, {{maps[1].scores, {b, group, i, j}}},
                       {normalizeMap(sb, maps[1]), {b, group, i, j}}, signal);
    results.push_back(
        buildEpilogue(sb, o2, op.getO2(), {{}, {}, {}, op.getOLayout()}));
  }
  sb.freeTemporaries();
  return results;
}
