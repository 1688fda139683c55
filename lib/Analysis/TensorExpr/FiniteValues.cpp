//===- FiniteValues.cpp - guards against NaN and infinities ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// nan_to_num and its like choose another number where a value is NaN or
// infinite. Exporters spell the question in many ways: comparisons with itself
// or an infinity, of the value or of its magnitude, joined with its sign.
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/Conditions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include <cmath>

namespace mlir::diffattn::tensorexpr {

namespace {
struct FiniteTruth {
  ExprGraph &graph;
  llvm::function_ref<bool(Expr)> isFinite;
  bool &testsNan;

  std::optional<bool> of(Expr condition);

private:
  std::optional<bool> ofComparison(Expr compare);
  bool known(Expr expr);
};
} // namespace

/// A value that is finite, or the magnitude or the opposite of one.
bool FiniteTruth::known(Expr expr) {
  expr = graph.stripCasts(expr);
  if (isFinite(expr))
    return true;
  Expr opened = expr->kind == Kind::Load ? graph.expand(expr) : expr;
  if (!opened)
    return false;
  opened = graph.stripCasts(opened);
  if (opened->kind == Kind::Neg ||
      (opened->kind == Kind::Opaque && isa<math::AbsFOp>(opened->proto)))
    return known(opened->operands[0]);
  return opened != expr && isFinite(opened);
}

std::optional<bool> FiniteTruth::ofComparison(Expr compare) {
  using P = arith::CmpFPredicate;
  auto predicate = static_cast<P>(compare->predicate);
  Expr a = graph.stripCasts(compare->operands[0]),
       b = graph.stripCasts(compare->operands[1]);
  // -1, 0, 1: a is less than, equal to, greater than b
  std::optional<int> order;
  auto infinity = [](Expr e) {
    return e->kind == Kind::Const && std::isinf(e->number)
               ? (e->number > 0 ? 1 : -1)
               : 0;
  };
  if (known(a) && known(b) && graph.equal(a, b)) {
    order = 0;
    testsNan = true;
  } else if (known(a) && infinity(b)) {
    order = -infinity(b);
  } else if (known(b) && infinity(a)) {
    order = infinity(a);
  }
  if (!order)
    return std::nullopt;
  switch (predicate) {
  case P::OEQ:
  case P::UEQ:
    return *order == 0;
  case P::ONE:
  case P::UNE:
    return *order != 0;
  case P::OLT:
  case P::ULT:
    return *order < 0;
  case P::OLE:
  case P::ULE:
    return *order <= 0;
  case P::OGT:
  case P::UGT:
    return *order > 0;
  case P::OGE:
  case P::UGE:
    return *order >= 0;
  case P::ORD:
    return true;
  case P::UNO:
    return false;
  case P::AlwaysFalse:
    return false;
  case P::AlwaysTrue:
    return true;
  }
  llvm_unreachable("unknown predicate");
}

std::optional<bool> FiniteTruth::of(Expr condition) {
  while (condition->kind == Kind::Load) {
    Expr opened = graph.expand(condition);
    if (!opened)
      return std::nullopt;
    condition = opened;
  }
  switch (condition->kind) {
  case Kind::Const:
    return condition->number != 0;
  case Kind::CmpF:
    return ofComparison(condition);
  case Kind::And:
  case Kind::Or: {
    bool decides = condition->kind == Kind::Or;
    std::optional<bool> a = of(condition->operands[0]),
                        b = of(condition->operands[1]);
    if ((a && *a == decides) || (b && *b == decides))
      return decides;
    return a && b ? std::optional<bool>(!decides) : std::nullopt;
  }
  case Kind::Xor: {
    std::optional<bool> a = of(condition->operands[0]),
                        b = of(condition->operands[1]);
    return a && b ? std::optional<bool>(*a != *b) : std::nullopt;
  }
  case Kind::Opaque:
    if (condition->operands.size() != 1 || !known(condition->operands[0]))
      return std::nullopt;
    if (isa<math::IsNaNOp>(condition->proto)) {
      testsNan = true;
      return false;
    }
    if (isa<math::IsInfOp>(condition->proto))
      return false;
    if (isa<math::IsFiniteOp>(condition->proto)) {
      testsNan = true;
      return true;
    }
    return std::nullopt;
  default:
    return std::nullopt;
  }
}

std::optional<bool> truthIfFinite(ExprGraph &graph, Expr condition,
                                  llvm::function_ref<bool(Expr)> isFinite,
                                  bool &testsNan) {
  return FiniteTruth{graph, isFinite, testsNan}.of(condition);
}

} // namespace mlir::diffattn::tensorexpr
