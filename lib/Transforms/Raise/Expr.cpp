//===- Expr.cpp - building, folding and comparing expressions -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Raise/Expr.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "mlir/IR/Matchers.h"

#include <cmath>

namespace mlir::diffattn::raise {

/// `number` as a value of `type` holds it.
static double roundTo(double number, Type type) {
  if (type && (type.isF32() || type.isF16() || type.isBF16())) {
    llvm::APFloat value(number);
    bool lost;
    value.convert(cast<FloatType>(type).getFloatSemantics(),
                  llvm::APFloat::rmNearestTiesToEven, &lost);
    return value.convertToDouble();
  }
  return number;
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

static bool compareF(int64_t predicate, double a, double b) {
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

static bool compareI(int64_t predicate, double a, double b) {
  switch (static_cast<arith::CmpIPredicate>(predicate)) {
  case arith::CmpIPredicate::eq:
    return a == b;
  case arith::CmpIPredicate::ne:
    return a != b;
  case arith::CmpIPredicate::slt:
  case arith::CmpIPredicate::ult:
    return a < b;
  case arith::CmpIPredicate::sle:
  case arith::CmpIPredicate::ule:
    return a <= b;
  case arith::CmpIPredicate::sgt:
  case arith::CmpIPredicate::ugt:
    return a > b;
  case arith::CmpIPredicate::sge:
  case arith::CmpIPredicate::uge:
    return a >= b;
  }
  llvm_unreachable("unknown predicate");
}

std::optional<double> ExprGraph::fold(Kind kind, Type type, ArrayRef<double> v,
                                      int64_t predicate) const {
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
  case Kind::Max:
    return std::fmax(v[0], v[1]);
  case Kind::Min:
    return std::fmin(v[0], v[1]);
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
  case Kind::FromInt:
    return v[0];
  case Kind::CmpF:
    return compareF(predicate, v[0], v[1]);
  case Kind::CmpI:
    return compareI(predicate, v[0], v[1]);
  case Kind::Select:
    return v[0] != 0 ? v[1] : v[2];
  // Bits of a wider integer are not ours to know: only truth values fold.
  case Kind::And:
    return type.isInteger(1) ? std::optional<double>(v[0] != 0 && v[1] != 0)
                             : std::nullopt;
  case Kind::Or:
    return type.isInteger(1) ? std::optional<double>(v[0] != 0 || v[1] != 0)
                             : std::nullopt;
  case Kind::Xor:
    return type.isInteger(1) ? std::optional<double>((v[0] != 0) != (v[1] != 0))
                             : std::nullopt;
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
    return o[1] == o[2] ? o[1] : nullptr;
  case Kind::CmpF:
    return simplifyChosenNumbers(kind, o, predicate);
  case Kind::CmpI: {
    if (Expr condition = simplifyChosenNumbers(kind, o, predicate))
      return condition;
    if (o[0]->kind != Kind::Index || o[1]->kind != Kind::Index)
      return nullptr;
    const IndexPoly &a = o[0]->index, &b = o[1]->index;
    std::optional<bool> less, greater;
    if (space.provablyLess(a, b))
      less = true, greater = false;
    else if (space.provablyLess(b, a))
      less = false, greater = true;
    else if (a == b)
      less = false, greater = false;
    else {
      if (space.provablyNonNegative(b - a))
        greater = false;
      if (space.provablyNonNegative(a - b))
        less = false;
    }
    Type boolean = IntegerType::get(context, 1);
    auto decide = [&](std::optional<bool> truth) -> Expr {
      return truth ? constant(*truth, boolean) : nullptr;
    };
    auto negate = [](std::optional<bool> truth) {
      return truth ? std::optional<bool>(!*truth) : truth;
    };
    switch (static_cast<arith::CmpIPredicate>(predicate)) {
    case arith::CmpIPredicate::slt:
    case arith::CmpIPredicate::ult:
      return decide(less);
    case arith::CmpIPredicate::sge:
    case arith::CmpIPredicate::uge:
      return decide(negate(less));
    case arith::CmpIPredicate::sgt:
    case arith::CmpIPredicate::ugt:
      return decide(greater);
    case arith::CmpIPredicate::sle:
    case arith::CmpIPredicate::ule:
      return decide(negate(greater));
    case arith::CmpIPredicate::eq:
    case arith::CmpIPredicate::ne: {
      std::optional<bool> same;
      if ((less && *less) || (greater && *greater))
        same = false;
      else if (a == b)
        same = true;
      return decide(static_cast<arith::CmpIPredicate>(predicate) ==
                            arith::CmpIPredicate::eq
                        ? same
                        : negate(same));
    }
    }
    return nullptr;
  }
  default:
    return nullptr;
  }
}

Expr ExprGraph::make(Kind kind, Type type, ArrayRef<Expr> operands,
                     int64_t predicate) {
  if (kind == Kind::Cast && operands[0]->type == type)
    return operands[0];
  if ((kind == Kind::Add || kind == Kind::Sub || kind == Kind::Mul) &&
      operands[0]->kind == Kind::Index && operands[1]->kind == Kind::Index) {
    const IndexPoly &a = operands[0]->index, &b = operands[1]->index;
    return index(kind == Kind::Add ? a + b : kind == Kind::Sub ? a - b : a * b);
  }
  if (Expr simpler = simplify(kind, operands, predicate))
    return simpler;
  SmallVector<double> numbers;
  for (Expr operand : operands) {
    std::optional<int64_t> integer;
    if (operand->kind == Kind::Const)
      numbers.push_back(operand->number);
    else if (operand->kind == Kind::Index &&
             (integer = operand->index.constant()))
      numbers.push_back(*integer);
  }
  if (numbers.size() == operands.size())
    if (std::optional<double> number = fold(kind, type, numbers, predicate))
      return constant(*number, type);
  Node node(kind, type);
  node.operands.assign(operands.begin(), operands.end());
  node.predicate = predicate;
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
  if (expr->kind == Kind::Reduce || expr->kind == Kind::Opaque ||
      expr->kind == Kind::Softmax) {
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

bool ExprGraph::equalNodes(Expr a, Expr b, unsigned depth) {
  if (a == b)
    return true;
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
      same = equalNodes(x, rename.empty() ? y : substitute(y, rename), depth);
    }
    if (same)
      return true;
    // a + b = b + a
    if (a->kind == Kind::Add || a->kind == Kind::Mul || a->kind == Kind::Max ||
        a->kind == Kind::And || a->kind == Kind::Or)
      if (equalNodes(a->operands[0], b->operands[1], depth) &&
          equalNodes(a->operands[1], b->operands[0], depth))
        return true;
  }
  if (depth == 0)
    return false;
  // Both at once: opening either alone first would double the work per level.
  Expr openA = a->kind == Kind::Load ? expand(a) : nullptr;
  Expr openB = b->kind == Kind::Load ? expand(b) : nullptr;
  if (!openA && !openB)
    return false;
  return equalNodes(openA ? openA : a, openB ? openB : b, depth - 1);
}

bool ExprGraph::equal(Expr a, Expr b) { return equalNodes(a, b, /*depth=*/8); }

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

Expr ExprGraph::close(Expr expr) {
  switch (expr->kind) {
  case Kind::Const:
  case Kind::Index:
    return expr;
  case Kind::Load:
    if (Attribute elements; matchPattern(expr->value, m_Constant(&elements)))
      return constantAt(elements, 0) ? expr : nullptr;
    if (Expr opened = expand(expr))
      return close(opened);
    return nullptr;
  case Kind::Scalar:
  case Kind::Reduce:
  case Kind::Softmax:
    return nullptr;
  case Kind::Opaque:
    if (isa<math::AbsFOp>(expr->proto))
      if (Expr closed = close(expr->operands[0]);
          closed && closed->kind == Kind::Const)
        return constant(std::fabs(closed->number), expr->type);
    return nullptr;
  default:
    break;
  }
  SmallVector<Expr> operands;
  for (Expr operand : expr->operands) {
    Expr closed = close(operand);
    if (!closed)
      return nullptr;
    operands.push_back(closed);
  }
  return make(expr->kind, expr->type, operands, expr->predicate);
}

std::optional<double>
ExprGraph::evaluate(Expr expr, const llvm::DenseMap<AtomId, int64_t> &at) {
  switch (expr->kind) {
  case Kind::Const:
    return expr->number;
  case Kind::Index: {
    std::optional<int64_t> value = space.evaluate(expr->index, at);
    return value ? std::optional<double>(*value) : std::nullopt;
  }
  case Kind::Load: {
    Attribute elements;
    if (!matchPattern(expr->value, m_Constant(&elements)))
      return std::nullopt;
    auto type = cast<ShapedType>(expr->value.getType());
    int64_t position = 0;
    for (auto [axis, poly] : llvm::enumerate(expr->indices)) {
      std::optional<int64_t> value = space.evaluate(poly, at);
      if (!value || *value < 0 || *value >= type.getDimSize(axis))
        return std::nullopt;
      position = position * type.getDimSize(axis) + *value;
    }
    return constantAt(elements, position);
  }
  default:
    break;
  }
  SmallVector<double, 3> values;
  for (Expr operand : expr->operands) {
    std::optional<double> value = evaluate(operand, at);
    if (!value)
      return std::nullopt;
    values.push_back(*value);
  }
  std::optional<double> result =
      fold(expr->kind, expr->type, values, expr->predicate);
  return result ? std::optional<double>(roundTo(*result, expr->type)) : result;
}

std::optional<double> ExprGraph::constantValue(Expr expr) {
  if (expr->kind == Kind::Const)
    return expr->number;
  Expr closed = close(expr);
  if (!closed)
    return std::nullopt;
  return evaluate(closed, llvm::DenseMap<AtomId, int64_t>());
}

} // namespace mlir::diffattn::raise
