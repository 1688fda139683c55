//===- Activations.h - exponentials that kernels share ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_SEMANTICS_ACTIVATIONS_H
#define DIFFATTN_SEMANTICS_ACTIVATIONS_H

#include "DiffAttn/Semantics/AttentionMath.h"

namespace mlir::diffattn {

/// A constant of `type` (f32, or a vector of f32) with every element `value`.
Value emitConstant(ImplicitLocOpBuilder &b, Type type, float value);

/// How x is cut, before a polynomial takes the rest, into an integer and the
/// rest.
enum class ExponentCut {
  /// The nearest integer, by a sum with a large number.
  Nearest,
  /// The integer below, which an instruction of AVX-512DQ cuts off and another
  /// finds again in x: on a vector of 16. For a polynomial of degree 3.
  BelowByAvx512,
  /// The integer below, on every CPU; the result has the bits of BelowByAvx512.
  Below,
};

/// 2^x for x <= 126, by a polynomial of degree 3 to 5 (relative error 8e-5,
/// 3e-6, 2e-7). Values below -126 give 2^-126, and NaN stays NaN. `x` is f32 or
/// a vector of f32.
Value emitExp2(ImplicitLocOpBuilder &b, Value x, int degree = 5,
               ExponentCut cut = ExponentCut::Nearest);

/// The natural logarithm of an x of at least 2^-126, by a polynomial (error
/// 1e-7 of the result or of 1, whichever is larger). Infinity and NaN stay what
/// they are. `x` is f32 or a vector of f32.
Value emitLogarithm(ImplicitLocOpBuilder &b, Value x);

/// Formulas by polynomials: a CPU has no instruction for powers, and a call of
/// libm for each lane costs more than all else.
class PolynomialMath final : public ArithMath {
public:
  /// Scores are kept in a unit of which `factor` makes powers of two; null: in
  /// log2 already. `degree` and `cut`: of `emitExp2`.
  PolynomialMath(ImplicitLocOpBuilder &b, Type type, int degree = 5,
                 Value factor = {}, ExponentCut cut = ExponentCut::Nearest)
      : ArithMath(b, type), degree(degree), factor(factor), cut(cut) {}

  Value exponentialOfMinus(Value x) override;
  Value exponential(Value difference) override;
  /// Accurate relative to the result also for small x.
  Value tanh(Value x) override;

private:
  int degree;
  Value factor;
  ExponentCut cut;
};

/// 1 / (1 + e^-x), by polynomials.
Value emitSigmoid(ImplicitLocOpBuilder &b, Value x);

/// 1 / cap, or a number that is finite: where it would be infinite, 0 / cap
/// must still be 0, and any other score is far beyond such a cap.
float invertSoftcap(float cap);

/// cap * tanh(x / cap), by polynomials.
Value emitSoftcap(ImplicitLocOpBuilder &b, Value x, float cap);

/// The larger of two values as one instruction; `a` if `b` is NaN, so a running
/// maximum forgets the NaN and leaves it to the exponential.
Value emitMaximum(ImplicitLocOpBuilder &b, Value running, Value next);

} // namespace mlir::diffattn

#endif // DIFFATTN_SEMANTICS_ACTIVATIONS_H
