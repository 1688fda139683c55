//===- ScalarOps.cpp - scalar ops as expressions --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/TypeSwitch.h"

#include <cmath>

namespace mlir::diffattn::tensorexpr {

std::optional<IndexPoly> ExprGraph::positionOf(Expr expr) {
  if (expr->kind == Kind::Index)
    return expr->index;
  // Broadcasting at run time: position 0 if the size is 1.
  if (expr->kind == Kind::Select) {
    std::optional<IndexPoly> a = positionOf(expr->operands[1]),
                             b = positionOf(expr->operands[2]);
    Expr condition = expr->operands[0];
    if (a && b && condition->kind == Kind::CmpI &&
        condition->operands[0]->kind == Kind::Index &&
        condition->operands[1]->kind == Kind::Index) {
      auto predicate = static_cast<arith::CmpIPredicate>(condition->predicate);
      bool equal = predicate == arith::CmpIPredicate::eq;
      if (!equal && predicate != arith::CmpIPredicate::ne)
        return std::nullopt;
      const IndexPoly &zero = equal ? *a : *b, &other = equal ? *b : *a;
      IndexPoly size = condition->operands[0]->index;
      if (size == IndexPoly(1))
        size = condition->operands[1]->index;
      else if (condition->operands[1]->index != IndexPoly(1))
        return std::nullopt;
      if (zero == IndexPoly(0))
        return space.broadcast(other, size);
    }
  }
  return std::nullopt;
}

static Expr truthAsNumber(ExprGraph &graph, Expr truth, double one, Type type) {
  return graph.make(
      Kind::Select, type,
      {truth, graph.constant(one, type), graph.constant(0, type)});
}

Expr ExprGraph::exprOf(Operation *op, ArrayRef<Expr> o) {
  Type type = getElementTypeOrSelf(op->getResult(0).getType());
  auto unary = [&](Kind kind) { return make(kind, type, {o[0]}); };
  auto binary = [&](Kind kind) { return make(kind, type, {o[0], o[1]}); };
  auto opaque = [&]() { return operation(op, type, o); };
  return TypeSwitch<Operation *, Expr>(op)
      .Case<arith::AddFOp>([&](auto) { return binary(Kind::Add); })
      .Case<arith::SubFOp>([&](auto) { return binary(Kind::Sub); })
      .Case<arith::MulFOp>([&](auto) { return binary(Kind::Mul); })
      .Case<arith::DivFOp>([&](auto) { return binary(Kind::Div); })
      .Case<arith::NegFOp>([&](auto) { return unary(Kind::Neg); })
      .Case<arith::MaximumFOp, arith::MaxNumFOp>(
          [&](auto) { return binary(Kind::Max); })
      .Case<arith::MinimumFOp, arith::MinNumFOp>(
          [&](auto) { return binary(Kind::Min); })
      .Case<math::ExpOp>([&](auto) { return unary(Kind::Exp); })
      .Case<math::Exp2Op>([&](auto) { return unary(Kind::Exp2); })
      .Case<math::LogOp>([&](auto) { return unary(Kind::Log); })
      .Case<math::SqrtOp>([&](auto) { return unary(Kind::Sqrt); })
      .Case<math::RsqrtOp>([&](auto) { return unary(Kind::Rsqrt); })
      .Case<math::TanhOp>([&](auto) { return unary(Kind::Tanh); })
      .Case<math::AbsFOp>([&](auto) -> Expr {
        return o[0]->kind == Kind::Const
                   ? constant(std::fabs(o[0]->number), type)
                   : opaque();
      })
      .Case<math::FPowIOp>([&](auto) -> Expr {
        if (o[1]->kind == Kind::Index && o[1]->index == IndexPoly(2))
          return make(Kind::Mul, type, {o[0], o[0]});
        if (o[1]->kind == Kind::Index && o[1]->index == IndexPoly(-1))
          return make(Kind::Div, type, {constant(1, type), o[0]});
        return opaque();
      })
      .Case<math::PowFOp>([&](auto) -> Expr {
        if (o[1]->isConst(2))
          return make(Kind::Mul, type, {o[0], o[0]});
        if (o[1]->isConst(1))
          return o[0];
        if (o[1]->isConst(0.5))
          return make(Kind::Sqrt, type, {o[0]});
        if (o[1]->isConst(-0.5))
          return make(Kind::Rsqrt, type, {o[0]});
        if (o[1]->isConst(-1))
          return make(Kind::Div, type, {constant(1, type), o[0]});
        if (o[0]->isConst(2))
          return make(Kind::Exp2, type, {o[1]});
        // In 16 bits, the number next to e is another base.
        if (type.getIntOrFloatBitWidth() >= 32 &&
            (o[0]->isConst(M_E) || o[0]->isConst(static_cast<float>(M_E))))
          return make(Kind::Exp, type, {o[1]});
        return opaque();
      })
      .Case<arith::ExtFOp>([&](auto) { return unary(Kind::Cast); })
      .Case([&](arith::TruncFOp cast) {
        // A cast is one to the nearest number. Raising looks through casts, but
        // rounding to 8 bits or less is quantization, which must stay.
        return cast.getRoundingmode().value_or(
                   arith::RoundingMode::to_nearest_even) ==
                           arith::RoundingMode::to_nearest_even &&
                       type.getIntOrFloatBitWidth() >= 16
                   ? unary(Kind::Cast)
                   : opaque();
      })
      .Case<arith::SIToFPOp, arith::UIToFPOp>([&](auto) -> Expr {
        if (o[0]->type && o[0]->type.isInteger(1))
          return truthAsNumber(*this, o[0], isa<arith::SIToFPOp>(op) ? -1 : 1,
                               type);
        // A number without a sign is one with a sign where that is not set.
        bool isSigned =
            isa<arith::SIToFPOp>(op) ||
            (o[0]->kind == Kind::Index && isNeverNegative(o[0]->index));
        return isSigned ? unary(Kind::FromInt) : opaque();
      })
      .Case([&](arith::CmpFOp compare) {
        return make(Kind::CmpF, type, {o[0], o[1]},
                    static_cast<int64_t>(compare.getPredicate()));
      })
      .Case<arith::SelectOp>([&](auto) -> Expr {
        if (o[0]->kind == Kind::CmpI)
          if (type.isIntOrIndex() && !type.isInteger(1)) {
            Node node(Kind::Select, type);
            node.operands.assign(o.begin(), o.end());
            Expr select = add(std::move(node));
            if (std::optional<IndexPoly> at = positionOf(select))
              return index(*at);
          }
        return make(Kind::Select, type, {o[0], o[1], o[2]});
      })
      .Default([&](Operation *) { return opaque(); });
}

Expr ExprGraph::operation(Operation *op, Type type, ArrayRef<Expr> operands) {
  if (Expr result = integerOp(op, operands))
    return result;
  Node node(Kind::Opaque, type);
  node.operands.assign(operands.begin(), operands.end());
  node.proto = op;
  return add(std::move(node));
}

// Scalars may be computed by long chains that use each value twice. What models
// compute as scalars stays far below.
static constexpr unsigned kMaxScalarDepth = 100, kMaxScalarSteps = 500;

Expr ExprGraph::scalar(Value value) {
  if (scalarDepth == 0)
    scalarSteps = 0;
  if (scalarDepth == kMaxScalarDepth || ++scalarSteps > kMaxScalarSteps) {
    if (isInteger(value.getType()))
      return index(space.opaque(value));
    Node node(Kind::Scalar, value.getType());
    node.value = value;
    return add(std::move(node));
  }
  ++scalarDepth;
  Expr expr = readScalar(value);
  --scalarDepth;
  return expr;
}

Expr ExprGraph::readScalar(Value value) {
  Type type = value.getType();
  Attribute attribute;
  if (matchPattern(value, m_Constant(&attribute))) {
    if (auto number = dyn_cast<FloatAttr>(attribute);
        number && isNumberOfF64(type))
      return constant(number.getValueAsDouble(), type);
    if (auto number = dyn_cast<IntegerAttr>(attribute)) {
      if (type.isInteger(1))
        return constant(number.getValue().getBoolValue(), type);
      if (number.getValue().isSignedIntN(64))
        return index(number.getValue().getSExtValue());
    }
  }
  if (Operation *op = value.getDefiningOp()) {
    if (auto extract = dyn_cast<tensor::ExtractOp>(op)) {
      SmallVector<IndexPoly> indices;
      for (Value at : extract.getIndices())
        indices.push_back(polyOf(at));
      return load(extract.getTensor(), indices);
    }
    if (isInteger(type))
      return index(polyOf(value));
    if (op->getNumRegions() == 0 && op->getNumResults() == 1 && isPure(op) &&
        op->getNumOperands() > 0 &&
        isa<arith::ArithDialect, math::MathDialect>(op->getDialect())) {
      SmallVector<Expr> operands;
      for (Value operand : op->getOperands())
        operands.push_back(scalar(operand));
      return exprOf(op, operands);
    }
  }
  if (type.isIntOrIndex() && !type.isInteger(1))
    return index(polyOf(value));
  Node node(Kind::Scalar, type);
  node.value = value;
  return add(std::move(node));
}

} // namespace mlir::diffattn::tensorexpr
