//===- AttentionMath.cpp - formulas that code generators share ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Semantics/AttentionMath.h"
#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;

MathBuilder::~MathBuilder() = default;

//===----------------------------------------------------------------------===//
// Formulas
//===----------------------------------------------------------------------===//

static constexpr float kInf = std::numeric_limits<float>::infinity();

Value mlir::diffattn::emitSigmoid(MathBuilder &b, Value x) {
  Value power = b.exponentialOfMinus(x);
  return b.invert(b.add(b.constant(1.0f), power));
}

Value mlir::diffattn::emitSigmoidSlope(MathBuilder &b, Value x) {
  Value minus = b.subtract(b.constant(0.0f), x);
  return b.multiply(emitSigmoid(b, x), emitSigmoid(b, minus));
}

Value mlir::diffattn::emitTanhSlope(MathBuilder &b, Value x) {
  // 4 e / (1 + e)^2 with e = exp(-2 x).
  Value e = b.exponentialOfMinus(b.add(x, x));
  Value root = b.divide(b.constant(2.0f), b.add(b.constant(1.0f), e));
  return b.multiply(e, b.multiply(root, root));
}

Value mlir::diffattn::emitCapped(MathBuilder &b, Value x, Value cap) {
  return b.multiply(b.tanh(x), cap);
}

Value mlir::diffattn::emitSubtrahend(MathBuilder &b, Value max) {
  Value none = b.isEqual(max, b.constant(-kInf));
  return b.select(none, b.constant(0.0f), max);
}

Value mlir::diffattn::emitWeight(MathBuilder &b, Value score, Value max,
                                 bool mayBeHidden) {
  // The difference first: a score of -3.4e38 would overflow if it were scaled.
  Value weight = b.exponential(b.subtract(score, max));
  if (!mayBeHidden)
    return weight;
  // The lowest power is not 0, and times an infinite value it would be seen;
  // -inf - (-inf) of an empty row is NaN.
  Value hidden = b.isEqual(score, b.constant(-kInf));
  return b.select(hidden, b.constant(0.0f), weight);
}

Value mlir::diffattn::emitPerSum(MathBuilder &b, Value weight, Value sum) {
  Value zero = b.constant(0.0f);
  Value empty = b.isEqual(sum, zero);
  return b.select(empty, zero, b.divide(weight, sum));
}

Value mlir::diffattn::emitInverseRms(MathBuilder &b, Value mean, Value eps,
                                     bool epsOutside) {
  if (epsOutside)
    return b.invert(b.add(b.squareRoot(mean), eps));
  return b.invertSquareRoot(b.add(mean, eps));
}

Value mlir::diffattn::emitUnlessZeros(MathBuilder &b, Value factor,
                                      Value squares) {
  Value zero = b.constant(0.0f);
  return b.select(b.isEqual(squares, zero), zero, factor);
}

Value mlir::diffattn::emitRowEnd(MathBuilder &b, Value x, const RowEnd &end) {
  if (end.factor)
    x = b.multiply(x, end.factor);
  if (end.outScale)
    x = b.multiply(x, end.outScale);
  if (end.normWeight)
    x = b.multiply(x, end.normWeight());
  if (end.gate)
    x = b.multiply(x, emitSigmoid(b, end.gate()));
  return x;
}

//===----------------------------------------------------------------------===//
// By arith
//===----------------------------------------------------------------------===//

Value ArithMath::constant(float value) { return emitConstant(b, type, value); }
Value ArithMath::add(Value x, Value y) {
  return arith::AddFOp::create(b, x, y);
}
Value ArithMath::subtract(Value x, Value y) {
  return arith::SubFOp::create(b, x, y);
}
Value ArithMath::multiply(Value x, Value y) {
  return arith::MulFOp::create(b, x, y);
}
Value ArithMath::isEqual(Value x, Value y) {
  return arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, x, y);
}
Value ArithMath::select(Value condition, Value x, Value y) {
  return arith::SelectOp::create(b, condition, x, y);
}
Value ArithMath::divide(Value x, Value y) {
  return arith::DivFOp::create(b, x, y);
}
Value ArithMath::invert(Value x) { return divide(constant(1.0f), x); }
Value ArithMath::squareRoot(Value x) { return math::SqrtOp::create(b, x); }
Value ArithMath::invertSquareRoot(Value x) { return invert(squareRoot(x)); }
