//===- AttentionMath.h - formulas that code generators share ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The formulas stand here once, in calls of a MathBuilder. Each code generator
// has one of its own, and where the three compute on purpose in different ways,
// that is a function of the builder: polynomials on the CPU, approximations by
// one instruction on a GPU, the math dialect in a linalg body.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_SEMANTICS_ATTENTIONMATH_H
#define DIFFATTN_SEMANTICS_ATTENTIONMATH_H

#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace mlir::diffattn {

/// log2(e): softmax runs on powers of two.
constexpr float kLog2E = 1.44269504088896340736f;

/// Arithmetic on f32, or on lanes of f32.
class MathBuilder {
public:
  virtual ~MathBuilder();

  virtual Value constant(float value) = 0;
  virtual Value add(Value x, Value y) = 0;
  virtual Value subtract(Value x, Value y) = 0;
  virtual Value multiply(Value x, Value y) = 0;
  /// False for NaN.
  virtual Value isEqual(Value x, Value y) = 0;
  virtual Value select(Value condition, Value x, Value y) = 0;

  /// x / y, 1 / x, 1 / sqrt(x): a GPU has an instruction for inverses alone.
  virtual Value divide(Value x, Value y) = 0;
  virtual Value invert(Value x) = 0;
  virtual Value squareRoot(Value x) = 0;
  virtual Value invertSquareRoot(Value x) = 0;

  /// e^-x where it is added to 1: a builder whose powers end before infinity
  /// gives the largest one.
  virtual Value exponentialOfMinus(Value x) = 0;
  /// e^difference, of two scores in the unit in which the builder's kernel
  /// keeps them, the second of which is no smaller.
  virtual Value exponential(Value difference) = 0;
  /// tanh(x). A GPU is given powers: x is 2 log2(e) times the argument.
  virtual Value tanh(Value x) = 0;
};

/// 1 / (1 + e^-x).
Value emitSigmoid(MathBuilder &b, Value x);

/// The derivative of the sigmoid at x, also where 1 - sigmoid(x) rounds to 0.
Value emitSigmoidSlope(MathBuilder &b, Value x);

/// The derivative of tanh at x and -x, x >= 0, also where 1 - tanh(x)^2 rounds
/// to 0. Not for a builder that gives x in a unit of its own.
Value emitTanhSlope(MathBuilder &b, Value x);

/// cap * tanh(x), where x is what `tanh` takes for score / cap.
Value emitCapped(MathBuilder &b, Value x, Value cap);

/// The number that a row subtracts from its scores: its maximum, or 0 where
/// that is -inf, because it has seen no key, so that its scores stay -inf.
Value emitSubtrahend(MathBuilder &b, Value max);

/// e^(score - max); 0 for a score of -inf, also where the maximum is, unless
/// none `mayBeHidden`.
Value emitWeight(MathBuilder &b, Value score, Value max,
                 bool mayBeHidden = true);

/// weight / sum, or 0 for a row without keys, whatever the weight is. NaN stays
/// NaN.
Value emitPerSum(MathBuilder &b, Value weight, Value sum);

/// 1 / sqrt(mean + eps) or 1 / (sqrt(mean) + eps).
Value emitInverseRms(MathBuilder &b, Value mean, Value eps, bool epsOutside);

/// `factor`, or 0 where `squares` is 0: a row of zeros stays one, also where
/// eps is 0 or so small that its inverse overflows.
Value emitUnlessZeros(MathBuilder &b, Value factor, Value squares);

/// Factors of a row of x at the end; null where absent. Weight and gate are
/// loaded when their turn comes.
struct RowEnd {
  Value factor, outScale;
  llvm::function_ref<Value()> normWeight, gate;
};
/// x * factor * out_scale * norm_weight * sigmoid(gate), from left to right:
/// out_scale / root may overflow where the result does not.
Value emitRowEnd(MathBuilder &b, Value x, const RowEnd &end);

/// The builder's functions by arith, on `type`: f32 or a vector of it.
class ArithMath : public MathBuilder {
public:
  ArithMath(ImplicitLocOpBuilder &b, Type type) : b(b), type(type) {}

  Value constant(float value) override;
  Value add(Value x, Value y) override;
  Value subtract(Value x, Value y) override;
  Value multiply(Value x, Value y) override;
  Value isEqual(Value x, Value y) override;
  Value select(Value condition, Value x, Value y) override;
  Value divide(Value x, Value y) override;
  Value invert(Value x) override;
  Value squareRoot(Value x) override;
  Value invertSquareRoot(Value x) override;

protected:
  ImplicitLocOpBuilder &b;
  Type type;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_SEMANTICS_ATTENTIONMATH_H
