//===- Clamp.cpp - a value kept on one side of a number -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/Conditions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

namespace mlir::diffattn::tensorexpr {

/// True for "less than", false for "greater than", none for anything else.
static std::optional<bool> isLess(int64_t predicate) {
  switch (static_cast<arith::CmpFPredicate>(predicate)) {
  case arith::CmpFPredicate::OLT:
  case arith::CmpFPredicate::OLE:
  case arith::CmpFPredicate::ULT:
  case arith::CmpFPredicate::ULE:
    return true;
  case arith::CmpFPredicate::OGT:
  case arith::CmpFPredicate::OGE:
  case arith::CmpFPredicate::UGT:
  case arith::CmpFPredicate::UGE:
    return false;
  default:
    return std::nullopt;
  }
}

std::optional<Clamp> matchClamp(ExprGraph &graph, Expr expr) {
  bool isMaximum = expr->kind == Kind::Max;
  Expr a = nullptr, b = nullptr;
  if (expr->kind == Kind::Max || expr->kind == Kind::Min) {
    a = expr->operands[0];
    b = expr->operands[1];
  } else if (expr->kind == Kind::Select &&
             expr->operands[0]->kind == Kind::CmpF) {
    Expr compare = expr->operands[0];
    a = compare->operands[0];
    b = compare->operands[1];
    std::optional<bool> less = isLess(compare->predicate);
    bool straight = graph.equal(expr->operands[1], a) &&
                    graph.equal(expr->operands[2], b),
         crossed = graph.equal(expr->operands[1], b) &&
                   graph.equal(expr->operands[2], a);
    if (!less || straight == crossed)
      return std::nullopt;
    // a < b ? a : b
    isMaximum = *less != straight;
  }
  for (Expr value : {a, b}) {
    if (!value)
      continue;
    if (std::optional<double> bound = graph.constantValue(value == a ? b : a))
      return Clamp{value, *bound, isMaximum};
  }
  return std::nullopt;
}

} // namespace mlir::diffattn::tensorexpr
