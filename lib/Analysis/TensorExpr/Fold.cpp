//===- Fold.cpp - operations on numbers, and what needs none -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include <cmath>

namespace mlir::diffattn::tensorexpr {

bool compareF(int64_t predicate, double a, double b) {
  bool unordered = std::isnan(a) || std::isnan(b);
  switch (static_cast<arith::CmpFPredicate>(predicate)) {
  case arith::CmpFPredicate::AlwaysFalse:
    return false;
  case arith::CmpFPredicate::OEQ:
    return !unordered && a == b;
  case arith::CmpFPredicate::OGT:
    return !unordered && a > b;
  case arith::CmpFPredicate::OGE:
    return !unordered && a >= b;
  case arith::CmpFPredicate::OLT:
    return !unordered && a < b;
  case arith::CmpFPredicate::OLE:
    return !unordered && a <= b;
  case arith::CmpFPredicate::ONE:
    return !unordered && a != b;
  case arith::CmpFPredicate::ORD:
    return !unordered;
  case arith::CmpFPredicate::UEQ:
    return unordered || a == b;
  case arith::CmpFPredicate::UGT:
    return unordered || a > b;
  case arith::CmpFPredicate::UGE:
    return unordered || a >= b;
  case arith::CmpFPredicate::ULT:
    return unordered || a < b;
  case arith::CmpFPredicate::ULE:
    return unordered || a <= b;
  case arith::CmpFPredicate::UNE:
    return unordered || a != b;
  case arith::CmpFPredicate::UNO:
    return unordered;
  case arith::CmpFPredicate::AlwaysTrue:
    return true;
  }
  llvm_unreachable("unknown predicate");
}

bool compareI(int64_t predicate, int64_t a, int64_t b) {
  return arith::applyCmpPredicate(static_cast<arith::CmpIPredicate>(predicate),
                                  APInt(64, a, /*isSigned=*/true),
                                  APInt(64, b, /*isSigned=*/true));
}

std::optional<double> ExprGraph::fold(Kind kind, ArrayRef<double> v) const {
  switch (kind) {
  case Kind::Add:
    return v[0] + v[1];
  case Kind::Sub:
    return v[0] - v[1];
  case Kind::Mul:
    return v[0] * v[1];
  case Kind::Div:
    return v[0] / v[1];
  case Kind::Neg:
    return -v[0];
  // Ops of these kinds differ in their results for NaN.
  case Kind::Max:
  case Kind::Min:
    if (std::isnan(v[0]) || std::isnan(v[1]))
      return std::nullopt;
    return kind == Kind::Max ? std::fmax(v[0], v[1]) : std::fmin(v[0], v[1]);
  case Kind::Exp:
    return std::exp(v[0]);
  case Kind::Exp2:
    return std::exp2(v[0]);
  case Kind::Log:
    return std::log(v[0]);
  case Kind::Sqrt:
    return std::sqrt(v[0]);
  case Kind::Rsqrt:
    return 1.0 / std::sqrt(v[0]);
  case Kind::Tanh:
    return std::tanh(v[0]);
  case Kind::Cast:
    return v[0];
  default:
    return std::nullopt;
  }
}

/// select(c, number, number) compared with a number is c, not c or known.
Expr ExprGraph::simplifyChosenNumbers(Kind compare, ArrayRef<Expr> o,
                                      int64_t predicate) {
  auto isNumber = [](Expr e) {
    return e->kind == Kind::Const ||
           (e->kind == Kind::Index && e->index.constant());
  };
  Type boolean = IntegerType::get(context, 1);
  for (unsigned i : {0, 1}) {
    if (o[i]->kind != Kind::Select || !isNumber(o[1 - i]) ||
        !isNumber(o[i]->operands[1]) || !isNumber(o[i]->operands[2]))
      continue;
    SmallVector<Expr, 2> first(o), second(o);
    first[i] = o[i]->operands[1];
    second[i] = o[i]->operands[2];
    return make(Kind::Select, boolean,
                {o[i]->operands[0], make(compare, boolean, first, predicate),
                 make(compare, boolean, second, predicate)});
  }
  return nullptr;
}

/// True if `a` is `b` wherever `condition` holds: where they are one
/// expression, or at the one position that it allows, as i < 1.
bool ExprGraph::sameWhereChosen(Expr condition, const IndexPoly &a,
                                const IndexPoly &b) {
  if (a == b)
    return true;
  if (condition->kind != Kind::CmpI ||
      condition->operands[0]->kind != Kind::Index ||
      condition->operands[1]->kind != Kind::Index ||
      static_cast<arith::CmpIPredicate>(condition->predicate) !=
          arith::CmpIPredicate::slt)
    return false;
  const IndexPoly &position = condition->operands[0]->index,
                  &end = condition->operands[1]->index;
  if (!isBounded(position) || !isBounded(end))
    return false;
  std::optional<AtomId> loop = (position - end + 1).asAtom();
  return loop && space[*loop].kind == IndexSpace::Atom::Loop &&
         space.substitute(a, {{*loop, 0}}) == space.substitute(b, {{*loop, 0}});
}

Expr ExprGraph::simplify(Kind kind, ArrayRef<Expr> o, int64_t predicate) {
  auto isTrue = [](Expr e) { return e->kind == Kind::Const && e->number != 0; };
  auto isFalse = [](Expr e) { return e->isConst(0); };
  switch (kind) {
  case Kind::Add:
    if (o[0]->isConst(0))
      return o[1];
    [[fallthrough]];
  case Kind::Sub:
    return o[1]->isConst(0) ? o[0] : nullptr;
  case Kind::Mul:
    if (o[0]->isConst(1))
      return o[1];
    [[fallthrough]];
  case Kind::Div:
    return o[1]->isConst(1) ? o[0] : nullptr;
  case Kind::And:
    for (unsigned i : {0, 1}) {
      if (isTrue(o[i]))
        return o[1 - i];
      if (isFalse(o[i]))
        return o[i];
    }
    return nullptr;
  case Kind::Or:
    for (unsigned i : {0, 1}) {
      if (isFalse(o[i]))
        return o[1 - i];
      if (isTrue(o[i]))
        return o[i];
    }
    return nullptr;
  case Kind::Xor:
    for (unsigned i : {0, 1})
      if (isFalse(o[i]))
        return o[1 - i];
    // not (not x)
    for (unsigned i : {0, 1})
      if (isTrue(o[i]) && o[1 - i]->kind == Kind::Xor)
        for (unsigned k : {0, 1})
          if (isTrue(o[1 - i]->operands[k]))
            return o[1 - i]->operands[1 - k];
    return nullptr;
  case Kind::Select:
    if (o[0]->kind == Kind::Const)
      return o[0]->number != 0 ? o[1] : o[2];
    if (isTrue(o[1]) && isFalse(o[2]) && o[1]->type.isInteger(1))
      return o[0];
    if (isFalse(o[1]) && isTrue(o[2]) && o[1]->type.isInteger(1))
      return notOf(o[0]);
    if (o[1]->kind == Kind::Index && o[2]->kind == Kind::Index &&
        sameWhereChosen(o[0], o[1]->index, o[2]->index))
      return o[2];
    return o[1] == o[2] ? o[1] : nullptr;
  case Kind::CmpF:
    return simplifyChosenNumbers(kind, o, predicate);
  case Kind::CmpI: {
    if (Expr condition = simplifyChosenNumbers(kind, o, predicate))
      return condition;
    if (o[0]->kind != Kind::Index || o[1]->kind != Kind::Index)
      return nullptr;
    return compareIndices(o[0], o[1], predicate);
  }
  default:
    return nullptr;
  }
}

} // namespace mlir::diffattn::tensorexpr
