//===- Epilogue.cpp - norm, scale, gate and the one rounding --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Epilogue.h"
#include "BodyMath.h"
#include "SoftmaxSteps.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using namespace mlir::diffattn;
using utils::IteratorType;

// Loops of the generics below, in their order: batch, signal head, query,
// column.
static constexpr int64_t b = 0, s = 1, i = 2, c = 3;
static constexpr IteratorType par = IteratorType::parallel;
static constexpr IteratorType red = IteratorType::reduction;

StructuredInput diffattn::lambdaInput(StructuredBuilder &sb, Value lambda,
                                      OpFoldResult signalHeads) {
  auto type = cast<ShapedType>(lambda.getType());
  if (type.getRank() == 0)
    return {lambda, {}};
  if (type.getRank() == 1)
    return {lambda, {s}};
  return {lambda, {b, i, Axis(s, sb.ratio(signalHeads, sb.size(lambda, 2)))}};
}

Value diffattn::activated(ImplicitLocOpBuilder &b, Value lambda,
                          bool isSigmoid) {
  BodyMath math(b);
  return isSigmoid ? emitSigmoid(math, lambda) : lambda;
}

Value diffattn::normalized(ImplicitLocOpBuilder &b, Value weight, Value sum) {
  BodyMath math(b);
  return emitPerSum(math, weight, sum);
}

Value diffattn::zeroWithoutKeys(ImplicitLocOpBuilder &b, Value sum1, Value sum2,
                                Value value) {
  BodyMath math(b);
  Value zero = f32(b, 0.0f);
  Value empty = arith::AndIOp::create(b, math.isEqual(sum1, zero),
                                      math.isEqual(sum2, zero));
  return arith::SelectOp::create(b, empty, zero, value);
}

Value diffattn::buildSquares(StructuredBuilder &sb, Value x) {
  Value squares =
      sb.filled({sb.size(x, 0), sb.size(x, 1), sb.size(x, 2)}, 0.0f);
  return sb.generic(
      {{x, {b, s, i, c}}}, squares, {b, s, i}, {par, par, par, red},
      [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        Value square = arith::MulFOp::create(ib, args[0], args[0]);
        return arith::AddFOp::create(ib, args[1], square);
      });
}

Value diffattn::narrow(ImplicitLocOpBuilder &b, Value value, Type element) {
  if (element.isF32())
    return value;
  return arith::TruncFOp::create(b, element, value);
}

/// 1 / rms of a row whose squares sum to `sum`; 0 for a row of zeros.
static Value inverseRms(ImplicitLocOpBuilder &b, Value sum, Value width,
                        const EpilogueRules &rules) {
  BodyMath math(b);
  Value mean = math.divide(sum, width);
  Value inverse =
      emitInverseRms(math, mean, f32(b, rules.eps), rules.epsOutside);
  return emitUnlessZeros(math, inverse, mean);
}

Value diffattn::buildEpilogue(StructuredBuilder &sb, Value x, Value init,
                              const EpilogueInputs &epilogue) {
  const EpilogueRules &rules = epilogue.rules;
  const SmallVector<Axis> all = {b, s, i, c}, row = {b, s, i};
  const SmallVector<Axis> result = layoutAxes(epilogue.oLayout, b, s, i, c);
  Value width;

  SmallVector<StructuredInput> inputs = {{x, all}};
  if (rules.rmsNorm) {
    width = sb.sizeAsF32(x, 3);
    inputs.push_back({buildSquares(sb, x), row});
  }
  if (epilogue.normWeight)
    inputs.push_back({epilogue.normWeight, {c}});
  if (epilogue.gate)
    inputs.push_back({epilogue.gate, result});

  return sb.generic(
      inputs, init, result, {par, par, par, par},
      [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        unsigned next = 0;
        Value y = args[next++];
        if (rules.rmsNorm)
          y = arith::MulFOp::create(ib, y,
                                    inverseRms(ib, args[next++], width, rules));
        if (epilogue.normWeight)
          y = arith::MulFOp::create(ib, y, widen(ib, args[next++]));
        if (rules.outScale != 1.0f)
          y = arith::MulFOp::create(ib, y, f32(ib, rules.outScale));
        if (epilogue.gate)
          y = arith::MulFOp::create(
              ib, y, activated(ib, widen(ib, args[next++]), true));
        return narrow(ib, y, args.back().getType());
      });
}
