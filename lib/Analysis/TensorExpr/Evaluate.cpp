//===- Evaluate.cpp - expressions as numbers ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Matchers.h"

#include <cmath>

namespace mlir::diffattn::tensorexpr {

/// Whether `op`, which has no kind of its own, is evaluated.
static bool isEvaluated(Operation *op) {
  auto isInt = [](Type type) {
    return getElementTypeOrSelf(type).isIntOrIndex();
  };
  return isa<arith::UIToFPOp, arith::FPToSIOp, arith::FPToUIOp>(op) ||
         (isa<arith::ArithDialect, math::MathDialect>(op->getDialect()) &&
          llvm::all_of(op->getOperandTypes(), isInt) &&
          llvm::all_of(op->getResultTypes(), isInt));
}

Expr ExprGraph::close(Expr expr) {
  unsigned steps = 0;
  return close(expr, steps);
}

Expr ExprGraph::close(Expr expr, unsigned &steps) {
  if (++steps > kMaxNodes)
    return nullptr;
  switch (expr->kind) {
  case Kind::Const:
  case Kind::Index:
    return expr;
  case Kind::Load:
    if (Attribute elements; matchPattern(expr->value, m_Constant(&elements)))
      return constantAt(elements, 0) ? expr : nullptr;
    if (Expr opened = expand(expr))
      return close(opened, steps);
    return nullptr;
  case Kind::Reduce:
    if (isInteger(expr->type) && expr->combiner() == Combiner::Sum &&
        expr->bound.size() == 1)
      if (Expr body = close(expr->operands[0], steps))
        return sumOf(body, expr->bound[0], expr->type);
    return nullptr;
  case Kind::Scalar:
  case Kind::Softmax:
    return nullptr;
  case Kind::Opaque:
    if (isa<math::AbsFOp>(expr->proto))
      if (Expr closed = close(expr->operands[0], steps);
          closed && closed->kind == Kind::Const)
        return constant(std::fabs(closed->number), expr->type);
    if (!isEvaluated(expr->proto))
      return nullptr;
    break;
  default:
    break;
  }
  SmallVector<Expr> operands;
  for (Expr operand : expr->operands) {
    Expr closed = close(operand, steps);
    if (!closed)
      return nullptr;
    operands.push_back(closed);
  }
  if (expr->kind == Kind::Opaque)
    return operation(expr->proto, expr->type, operands);
  return make(expr->kind, expr->type, operands, expr->predicate);
}

/// The element that `load` reads of a constant.
static std::optional<int64_t>
placeOf(IndexSpace &space, Expr load,
        const llvm::DenseMap<AtomId, int64_t> &at) {
  auto type = cast<ShapedType>(load->value.getType());
  int64_t position = 0;
  for (auto [axis, poly] : llvm::enumerate(load->indices)) {
    std::optional<int64_t> value = space.evaluate(poly, at);
    if (!value || *value < 0 || *value >= type.getDimSize(axis))
      return std::nullopt;
    position = position * type.getDimSize(axis) + *value;
  }
  return position;
}

static std::optional<int64_t> convertToInteger(double number, Type type,
                                               bool isSigned) {
  unsigned width = type.isIndex() ? 64 : type.getIntOrFloatBitWidth();
  if (width > 64)
    return std::nullopt;
  llvm::APSInt integer(width, /*isUnsigned=*/!isSigned);
  bool exact;
  // A number that does not fit has no defined value.
  if (llvm::APFloat(number).convertToInteger(
          integer, llvm::APFloat::rmTowardZero, &exact) ==
      llvm::APFloat::opInvalidOp)
    return std::nullopt;
  return width == 1 ? static_cast<int64_t>(integer.getZExtValue())
                    : APInt(integer).getSExtValue();
}

static std::optional<double> convertToFloat(int64_t integer, Type from,
                                            Type type, bool isSigned) {
  auto target = dyn_cast<FloatType>(type);
  unsigned width = !from || from.isIndex() ? 64 : from.getIntOrFloatBitWidth();
  if (!target || target.getWidth() > 64 || width > 64)
    return std::nullopt;
  llvm::APFloat number(target.getFloatSemantics());
  number.convertFromAPInt(APInt(64, integer, /*isSigned=*/true).trunc(width),
                          isSigned, llvm::APFloat::rmNearestTiesToEven);
  return number.convertToDouble();
}

std::optional<int64_t>
ExprGraph::evaluateInteger(Expr expr,
                           const llvm::DenseMap<AtomId, int64_t> &at) {
  switch (expr->kind) {
  case Kind::Const:
    return static_cast<int64_t>(expr->number);
  case Kind::Index:
    return space.evaluate(expr->index, at);
  case Kind::Load: {
    Attribute elements;
    if (!matchPattern(expr->value, m_Constant(&elements)))
      return std::nullopt;
    std::optional<int64_t> place = placeOf(space, expr, at);
    return place ? integerAt(elements, *place) : std::nullopt;
  }
  case Kind::Select: {
    std::optional<int64_t> truth = evaluateInteger(expr->operands[0], at);
    if (!truth)
      return std::nullopt;
    return evaluateInteger(expr->operands[*truth ? 1 : 2], at);
  }
  case Kind::CmpF: {
    std::optional<double> a = evaluate(expr->operands[0], at),
                          b = evaluate(expr->operands[1], at);
    return a && b ? std::optional<int64_t>(compareF(expr->predicate, *a, *b))
                  : std::nullopt;
  }
  case Kind::Opaque:
    if (isa<arith::FPToSIOp, arith::FPToUIOp>(expr->proto)) {
      std::optional<double> number = evaluate(expr->operands[0], at);
      return number ? convertToInteger(*number, expr->type,
                                       isa<arith::FPToSIOp>(expr->proto))
                    : std::nullopt;
    }
    break;
  case Kind::Add:
  case Kind::Sub:
  case Kind::Mul:
  case Kind::And:
  case Kind::Or:
  case Kind::Xor:
  case Kind::CmpI:
    break;
  default:
    return std::nullopt;
  }
  SmallVector<int64_t, 2> values;
  for (Expr operand : expr->operands) {
    std::optional<int64_t> value = evaluateInteger(operand, at);
    if (!value)
      return std::nullopt;
    values.push_back(*value);
  }
  auto wrapped = [&](APInt value) -> std::optional<int64_t> {
    unsigned width = !expr->type || expr->type.isIndex()
                         ? 64
                         : expr->type.getIntOrFloatBitWidth();
    if (width > 64)
      return std::nullopt;
    return value.trunc(width).getSExtValue();
  };
  auto bits = [&](unsigned k) {
    return APInt(64, values[k], /*isSigned=*/true);
  };
  switch (expr->kind) {
  case Kind::Add:
    return wrapped(bits(0) + bits(1));
  case Kind::Sub:
    return wrapped(bits(0) - bits(1));
  case Kind::Mul:
    return wrapped(bits(0) * bits(1));
  case Kind::And:
    return values[0] & values[1];
  case Kind::Or:
    return values[0] | values[1];
  case Kind::Xor:
    return values[0] ^ values[1];
  case Kind::CmpI:
    return compareI(expr->predicate, values[0], values[1]);
  default:
    return tensorexpr::evaluateInteger(expr->proto, values);
  }
}

std::optional<double>
ExprGraph::evaluate(Expr expr, const llvm::DenseMap<AtomId, int64_t> &at) {
  if (expr->kind == Kind::Index || (expr->type && expr->type.isIntOrIndex())) {
    std::optional<int64_t> integer = evaluateInteger(expr, at);
    return integer ? std::optional<double>(*integer) : std::nullopt;
  }
  switch (expr->kind) {
  case Kind::Const:
    return expr->number;
  case Kind::Load: {
    Attribute elements;
    if (!matchPattern(expr->value, m_Constant(&elements)))
      return std::nullopt;
    std::optional<int64_t> place = placeOf(space, expr, at);
    return place ? constantAt(elements, *place) : std::nullopt;
  }
  case Kind::Select: {
    std::optional<int64_t> truth = evaluateInteger(expr->operands[0], at);
    return truth ? evaluate(expr->operands[*truth ? 1 : 2], at) : std::nullopt;
  }
  case Kind::FromInt:
  case Kind::Opaque: {
    bool isSigned = expr->kind == Kind::FromInt;
    if (!isSigned && !isa<arith::UIToFPOp>(expr->proto))
      return std::nullopt;
    std::optional<int64_t> integer = evaluateInteger(expr->operands[0], at);
    Type from =
        isSigned ? Type()
                 : getElementTypeOrSelf(expr->proto->getOperand(0).getType());
    return integer ? convertToFloat(*integer, from, expr->type, isSigned)
                   : std::nullopt;
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
  // Arithmetic of f64 is too coarse for what is wider.
  if (isa_and_nonnull<FloatType>(expr->type) && !isNumberOfF64(expr->type))
    return std::nullopt;
  std::optional<double> result = fold(expr->kind, values);
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

} // namespace mlir::diffattn::tensorexpr
