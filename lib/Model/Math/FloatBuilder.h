//===- FloatBuilder.h - arithmetic on floats of one type --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_MATH_FLOATBUILDER_H
#define DIFFATTN_LIB_MODEL_MATH_FLOATBUILDER_H

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn {

/// Makes the ops from which expansions of functions on `type` are written.
struct FloatBuilder {
  ImplicitLocOpBuilder &b;
  FloatType type;

  Value constant(const APFloat &value) const {
    return arith::ConstantOp::create(b, b.getFloatAttr(type, value));
  }
  Value constant(double value) const {
    return arith::ConstantOp::create(b, b.getFloatAttr(type, value));
  }
  Value compare(arith::CmpFPredicate predicate, Value x, Value y) const {
    return arith::CmpFOp::create(b, predicate, x, y);
  }
  Value add(Value x, Value y) const { return arith::AddFOp::create(b, x, y); }
  Value subtract(Value x, Value y) const {
    return arith::SubFOp::create(b, x, y);
  }
  Value multiply(Value x, Value y) const {
    return arith::MulFOp::create(b, x, y);
  }
  Value divide(Value x, Value y) const {
    return arith::DivFOp::create(b, x, y);
  }
  Value both(Value x, Value y) const { return arith::AndIOp::create(b, x, y); }
  Value choose(Value condition, Value x, Value y) const {
    return arith::SelectOp::create(b, condition, x, y);
  }
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_MATH_FLOATBUILDER_H
