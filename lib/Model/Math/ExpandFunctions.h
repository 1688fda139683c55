//===- ExpandFunctions.h - functions of floats, no library ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_MATH_EXPANDFUNCTIONS_H
#define DIFFATTN_LIB_MODEL_MATH_EXPANDFUNCTIONS_H

#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/IR/PatternMatch.h"

namespace mlir::diffattn {

/// Rewrites `math.sin` and `math.cos` on scalars of f32 to arithmetic, right to
/// a few units in the last place for every finite number.
void populateTrigonometryPatterns(RewritePatternSet &patterns);

/// 2^exponent in f32, for a scalar of f64; of NaN, NaN.
Value powerOfTwo(ImplicitLocOpBuilder &b, Value exponent);

/// Rewrites `math.atan` and `math.atan2`, and with `all` `math.powf` and
/// `math.cbrt`, on scalars of f32 to arithmetic, with the special values of C.
void populatePowerPatterns(RewritePatternSet &patterns, bool all);

/// Rewrites `math.fpowi` to powers in f64; with `all`, on scalars of f32 to
/// arithmetic.
void populateIntegerPowerPatterns(RewritePatternSet &patterns, bool all);

/// Rewrites hyperbolic functions and their inverses, and with `all`
/// `math.log10`, on scalars of f32.
void populateHyperbolicPatterns(RewritePatternSet &patterns, bool all);

/// Rewrites `math.round` and `arith.remf` on scalars of every type of float to
/// arithmetic, exactly.
void populateRoundingPatterns(RewritePatternSet &patterns);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_MATH_EXPANDFUNCTIONS_H
