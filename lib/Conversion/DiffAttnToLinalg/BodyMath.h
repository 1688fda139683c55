//===- BodyMath.h - formulas in the body of a generic -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_BODYMATH_H
#define DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_BODYMATH_H

#include "DiffAttn/Semantics/AttentionMath.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

namespace mlir::diffattn {

/// Ops of the math dialect, which later passes expand or call libm for: this
/// path is for what must be right. Scores have their natural unit.
class BodyMath final : public ArithMath {
public:
  explicit BodyMath(ImplicitLocOpBuilder &b) : ArithMath(b, b.getF32Type()) {}

  Value exponentialOfMinus(Value x) override {
    return math::ExpOp::create(b, arith::NegFOp::create(b, x));
  }
  Value exponential(Value difference) override {
    return math::ExpOp::create(b, difference);
  }
  Value tanh(Value x) override { return math::TanhOp::create(b, x); }
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_BODYMATH_H
