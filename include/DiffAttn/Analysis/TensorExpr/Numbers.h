//===- Numbers.h - constants, and arithmetic on them ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Results of single ops, exact: an integer at its own width, a float rounded to
// its own type. A result without a defined value (a division by zero, a shift
// by the width or more, an integer out of range) is none.
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_ANALYSIS_TENSOREXPR_NUMBERS_H
#define DIFFATTN_ANALYSIS_TENSOREXPR_NUMBERS_H

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Operation.h"

#include <optional>

namespace mlir::diffattn::tensorexpr {

/// The type of the elements of `tensor`.
inline Type elementType(Value tensor) {
  return cast<ShapedType>(tensor.getType()).getElementType();
}

/// True for integers other than truth values, and for indices.
bool isInteger(Type type);

/// True for floats whose numbers are numbers of f64 too.
inline bool isNumberOfF64(Type type) {
  auto real = dyn_cast_or_null<FloatType>(type);
  return real && real.getWidth() <= 64;
}

/// The result of an op of arith or math on integers of up to 64 bits. Operands
/// and result are extended by their sign, truth values are 0 or 1.
std::optional<int64_t> evaluateInteger(Operation *op,
                                       ArrayRef<int64_t> operands);

/// The number of `type` nearest to `number`, ties to even.
double roundTo(double number, Type type);

/// The result of an arith::CmpFPredicate, or of an arith::CmpIPredicate on
/// integers that are extended by their sign.
bool compareF(int64_t predicate, double a, double b);
bool compareI(int64_t predicate, int64_t a, int64_t b);

/// The number that `integer` is, if it is a constant that fits into 64 bits.
std::optional<int64_t> constantInteger(Value integer);

/// Element `position` (row-major) of the constant `elements`, dense or a
/// resource; none beyond its end, and for elements of another kind.
std::optional<double> constantAt(Attribute elements, int64_t position);
/// Element `position` of a constant of integers, exactly.
std::optional<int64_t> integerAt(Attribute elements, int64_t position);

} // namespace mlir::diffattn::tensorexpr

#endif // DIFFATTN_ANALYSIS_TENSOREXPR_NUMBERS_H
