//===- Sums.cpp - sums of integers over positions -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

namespace mlir::diffattn::tensorexpr {

/// How many positions of `loop` there are at which `condition` holds, where
/// that is a polynomial: those up to a limit, or from a limit on.
std::optional<IndexPoly> ExprGraph::countOf(Expr condition, AtomId loop) {
  using P = arith::CmpIPredicate;
  if (condition->kind != Kind::CmpI ||
      condition->operands[0]->kind != Kind::Index ||
      condition->operands[1]->kind != Kind::Index)
    return std::nullopt;
  const IndexPoly &a = condition->operands[0]->index,
                  &b = condition->operands[1]->index;
  if (!isBounded(a) || !isBounded(b))
    return std::nullopt;
  IndexPoly room; // holds where this is not negative
  switch (static_cast<P>(condition->predicate)) {
  case P::slt:
    room = b - a - 1;
    break;
  case P::sle:
    room = b - a;
    break;
  case P::sgt:
    room = a - b - 1;
    break;
  case P::sge:
    room = a - b;
    break;
  default:
    return std::nullopt;
  }
  IndexPoly extent = space.extent(loop), at = IndexPoly::atom(loop);
  IndexPoly count;
  if (IndexPoly last = room + at; !space.mentions(last, loop))
    count = last + 1; // loop <= last
  else if (IndexPoly first = at - room; !space.mentions(first, loop))
    count = extent - first; // first <= loop
  else
    return std::nullopt;
  if (!isBounded(count) || !space.provablyNonNegative(count) ||
      !space.provablyNonNegative(extent - count))
    return std::nullopt;
  return count;
}

Expr ExprGraph::sumOf(Expr body, AtomId loop, Type type) {
  auto summed = [&](Expr term, const IndexPoly &count) -> Expr {
    if (term->kind != Kind::Index || space.mentions(term->index, loop))
      return nullptr;
    IndexPoly total = term->index * count;
    return holds(type, total) ? index(total) : nullptr;
  };
  const IndexPoly extent = space.extent(loop);
  if (body->kind == Kind::Index)
    return summed(body, extent);
  if (body->kind != Kind::Select)
    return nullptr;
  std::optional<IndexPoly> count = countOf(body->operands[0], loop);
  if (!count)
    return nullptr;
  Expr inside = summed(body->operands[1], *count),
       outside = summed(body->operands[2], extent - *count);
  if (!inside || !outside || !holds(type, inside->index + outside->index))
    return nullptr;
  return index(inside->index + outside->index);
}

} // namespace mlir::diffattn::tensorexpr
