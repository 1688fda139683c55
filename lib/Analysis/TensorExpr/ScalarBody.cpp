//===- ScalarBody.cpp - bodies of linalg ops as expressions ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"

#include <utility>

namespace mlir::diffattn::tensorexpr {

Expr ExprGraph::choose(Type type, Expr condition, Expr a, Expr b) {
  // Two pieces of one tensor beside each other.
  if (a->kind == Kind::Load && b->kind == Kind::Load && a->value == b->value) {
    SmallVector<IndexPoly> first, second;
    for (auto [x, y] : llvm::zip(a->indices, b->indices)) {
      first.push_back(space.withoutBounds(x));
      second.push_back(space.withoutBounds(y));
    }
    if (first == second)
      return load(a->value, first);
  }
  return make(Kind::Select, type, {condition, a, b});
}

/// The element that one side of an `scf.if` yields, at positions that are read
/// on that side alone.
Expr ExprGraph::branchExpr(Region &side, unsigned result,
                           ArrayRef<IndexPoly> loops,
                           const llvm::DenseMap<Value, Expr> &known) {
  if (!side.hasOneBlock())
    return nullptr;
  llvm::DenseMap<Value, Expr> inner = known;
  bool outer = std::exchange(conditional, true);
  Expr element =
      bodyExpr(side.front().getTerminator()->getOperand(result), loops, inner);
  conditional = outer;
  return element;
}

Expr ExprGraph::bodyExpr(Value value, ArrayRef<IndexPoly> loops,
                         llvm::DenseMap<Value, Expr> &known) {
  auto it = known.find(value);
  if (it != known.end())
    return it->second;
  Operation *op = value.getDefiningOp();
  // Arguments of the body that are not known are accumulators.
  if (!op) {
    Operation *owner = cast<BlockArgument>(value).getOwner()->getParentOp();
    return isa<linalg::LinalgOp>(owner) ? nullptr : scalar(value);
  }
  if (!op->getParentOfType<linalg::LinalgOp>())
    return known[value] = scalar(value);
  Expr result = nullptr;
  if (auto position = dyn_cast<linalg::IndexOp>(op)) {
    result = index(loops[position.getDim()]);
  } else if (matchPattern(value, m_Constant())) {
    result = scalar(value);
  } else if (auto choice = dyn_cast<scf::IfOp>(op)) {
    unsigned k = cast<OpResult>(value).getResultNumber();
    Expr condition = bodyExpr(choice.getCondition(), loops, known);
    Expr a = branchExpr(choice.getThenRegion(), k, loops, known),
         b = branchExpr(choice.getElseRegion(), k, loops, known);
    if (condition && a && b)
      result = choose(value.getType(), condition, a, b);
  } else if (op->getNumRegions() == 0 && op->getNumResults() == 1) {
    SmallVector<Expr> operands;
    for (Value operand : op->getOperands()) {
      if (isa<ShapedType>(operand.getType()))
        continue;
      Expr expr = bodyExpr(operand, loops, known);
      if (!expr)
        return nullptr;
      operands.push_back(expr);
    }
    if (auto extract = dyn_cast<tensor::ExtractOp>(op)) {
      // A tensor that a body makes of its own elements is none of the graph.
      Operation *source = extract.getTensor().getDefiningOp();
      if (source && source->getParentOfType<linalg::LinalgOp>() &&
          !source->hasTrait<OpTrait::ConstantLike>())
        return nullptr;
      SmallVector<IndexPoly> indices;
      for (Expr operand : operands) {
        std::optional<IndexPoly> at = positionOf(operand);
        if (!at)
          return nullptr;
        IndexPoly size = sizeOf(extract.getTensor(), indices.size());
        indices.push_back(conditional ? space.within(*at, size) : *at);
      }
      result = load(extract.getTensor(), indices);
    } else if (isPure(op)) {
      result = exprOf(op, operands);
    }
  }
  if (result && result->size > kMaxNodes)
    result = nullptr;
  return known[value] = result;
}

} // namespace mlir::diffattn::tensorexpr
