//===- Expr.cpp - building, comparing and evaluating expressions ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "mlir/IR/Matchers.h"

#include <cmath>

namespace mlir::diffattn::tensorexpr {

double roundTo(double number, Type type) {
  auto narrow = dyn_cast_or_null<FloatType>(type);
  if (narrow && narrow.getWidth() < 64) {
    llvm::APFloat value(number);
    bool lost;
    value.convert(narrow.getFloatSemantics(),
                  llvm::APFloat::rmNearestTiesToEven, &lost);
    return value.convertToDouble();
  }
  return number;
}

Expr ExprGraph::add(Node node) {
  constexpr unsigned most = 1u << 30;
  node.size = 1;
  for (Expr operand : node.operands)
    node.size = std::min(most, node.size + operand->size);
  nodes.push_back(std::move(node));
  return &nodes.back();
}

Expr ExprGraph::constant(double number, Type type) {
  Node node(Kind::Const, type);
  node.number = roundTo(number, type);
  return add(std::move(node));
}

Expr ExprGraph::index(const IndexPoly &poly) {
  Node node(Kind::Index, Type());
  node.index = poly;
  return add(std::move(node));
}

Expr ExprGraph::make(Kind kind, Type type, ArrayRef<Expr> operands,
                     int64_t predicate) {
  if (kind == Kind::Cast && operands[0]->type == type)
    return operands[0];
  if ((kind == Kind::Add || kind == Kind::Sub || kind == Kind::Mul) &&
      operands[0]->kind == Kind::Index && operands[1]->kind == Kind::Index) {
    const IndexPoly &a = operands[0]->index, &b = operands[1]->index;
    IndexPoly result = kind == Kind::Add   ? a + b
                       : kind == Kind::Sub ? a - b
                                           : a * b;
    // In a narrow type it may wrap around.
    if (holds(type, result) && isSmall(result))
      return index(result);
  }
  if (Expr simpler = simplify(kind, operands, predicate))
    return simpler;
  Node node(kind, type);
  node.operands.assign(operands.begin(), operands.end());
  node.predicate = predicate;
  bool numbers = llvm::all_of(operands, [](Expr operand) {
    return operand->kind == Kind::Const ||
           (operand->kind == Kind::Index && operand->index.constant());
  });
  const llvm::DenseMap<AtomId, int64_t> anywhere;
  if (numbers && isInteger(type)) {
    if (std::optional<int64_t> number = evaluateInteger(&node, anywhere))
      return index(*number);
  } else if (numbers) {
    if (std::optional<double> number = evaluate(&node, anywhere))
      return constant(*number, type);
  }
  return add(std::move(node));
}

Expr ExprGraph::notOf(Expr condition) {
  Type boolean = IntegerType::get(context, 1);
  return make(Kind::Xor, boolean, {condition, constant(1, boolean)});
}

Expr ExprGraph::softmax(Expr scores, AtomId key, const IndexPoly &at) {
  Node node(Kind::Softmax, scores->type);
  node.operands = {scores};
  node.bound = {key};
  node.index = at;
  return add(std::move(node));
}

Expr ExprGraph::withBody(Expr reduce, Expr body) {
  Node node = *reduce;
  node.operands = {body};
  return add(std::move(node));
}

Expr ExprGraph::substitute(Expr expr, const IndexSpace::Substitution &map) {
  switch (expr->kind) {
  case Kind::Const:
  case Kind::Scalar:
    return expr;
  case Kind::Index:
    return index(space.substitute(expr->index, map));
  case Kind::Load: {
    SmallVector<IndexPoly> indices;
    for (const IndexPoly &poly : expr->indices)
      indices.push_back(space.substitute(poly, map));
    return load(expr->value, indices);
  }
  default:
    break;
  }
  SmallVector<Expr> operands;
  for (Expr operand : expr->operands)
    operands.push_back(substitute(operand, map));
  if (expr->kind == Kind::Opaque)
    return operation(expr->proto, expr->type, operands);
  if (expr->kind == Kind::Reduce || expr->kind == Kind::Softmax) {
    Node node = *expr;
    node.operands.assign(operands.begin(), operands.end());
    node.index = space.substitute(expr->index, map);
    return add(std::move(node));
  }
  return make(expr->kind, expr->type, operands, expr->predicate);
}

bool ExprGraph::mentions(Expr expr, AtomId id) {
  if (space.mentions(expr->index, id))
    return true;
  for (const IndexPoly &poly : expr->indices)
    if (space.mentions(poly, id))
      return true;
  return llvm::any_of(expr->operands,
                      [&](Expr operand) { return mentions(operand, id); });
}

/// True if both hold the same numbers. A module may hold a constant twice,
/// under two names.
static bool sameConstants(Attribute a, Attribute b) {
  if (a == b)
    return true;
  auto x = dyn_cast<DenseResourceElementsAttr>(a),
       y = dyn_cast<DenseResourceElementsAttr>(b);
  if (!x || !y || x.getType() != y.getType())
    return false;
  AsmResourceBlob *p = x.getRawHandle().getBlob(),
                  *q = y.getRawHandle().getBlob();
  return p && q && p->getData() == q->getData();
}

bool ExprGraph::equalNodes(Expr a, Expr b, unsigned depth, unsigned &steps) {
  if (a == b)
    return true;
  if (++steps > 4 * kMaxNodes)
    return false;
  if (a->kind == Kind::Load && b->kind == Kind::Load &&
      a->indices == b->indices) {
    Attribute lhs, rhs;
    if (a->value == b->value ||
        (matchPattern(a->value, m_Constant(&lhs)) &&
         matchPattern(b->value, m_Constant(&rhs)) && sameConstants(lhs, rhs)))
      return true;
  }
  // Names of bound loops do not matter.
  if (a->kind == b->kind && a->type == b->type &&
      a->predicate == b->predicate && a->number == b->number &&
      a->operands.size() == b->operands.size() &&
      a->bound.size() == b->bound.size() && a->kind != Kind::Load) {
    bool same = a->index == b->index && a->value == b->value;
    if (a->kind == Kind::Opaque)
      same = a->proto->getName() == b->proto->getName() &&
             a->proto->getAttrDictionary() == b->proto->getAttrDictionary();
    IndexSpace::Substitution rename;
    for (auto [x, y] : llvm::zip(a->bound, b->bound)) {
      same &= space.extent(x) == space.extent(y);
      rename[y] = IndexPoly::atom(x);
    }
    for (auto [x, y] : llvm::zip(a->operands, b->operands)) {
      if (!same)
        break;
      same = equalNodes(x, rename.empty() ? y : substitute(y, rename), depth,
                        steps);
    }
    if (same)
      return true;
    // a + b = b + a
    if (a->kind == Kind::Add || a->kind == Kind::Mul || a->kind == Kind::Max ||
        a->kind == Kind::And || a->kind == Kind::Or)
      if (equalNodes(a->operands[0], b->operands[1], depth, steps) &&
          equalNodes(a->operands[1], b->operands[0], depth, steps))
        return true;
  }
  if (depth == 0)
    return false;
  // Both at once: opening either alone first would double the work per level.
  Expr openA = a->kind == Kind::Load ? expand(a) : nullptr;
  Expr openB = b->kind == Kind::Load ? expand(b) : nullptr;
  if (!openA && !openB)
    return false;
  return equalNodes(openA ? openA : a, openB ? openB : b, depth - 1, steps);
}

bool ExprGraph::equal(Expr a, Expr b) {
  unsigned steps = 0;
  return equalNodes(a, b, /*depth=*/8, steps);
}

Expr ExprGraph::withoutLoop(Expr expr, AtomId loop) {
  for (Expr opened = expr; opened; opened = expand(stripCasts(opened)))
    if (!mentions(opened, loop))
      return opened;
  return expr;
}

Expr ExprGraph::peelCasts(Expr expr) {
  while (true) {
    expr = stripCasts(expr);
    Expr opened = expand(expr);
    if (!opened || opened->kind != Kind::Cast)
      return expr;
    expr = opened;
  }
}

Expr ExprGraph::open(Expr expr) {
  expr = stripCasts(expr);
  while (Expr opened = expand(expr))
    expr = stripCasts(opened);
  return expr;
}

} // namespace mlir::diffattn::tensorexpr
