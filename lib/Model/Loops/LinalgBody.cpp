//===- LinalgBody.cpp - one iteration of a linalg op ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "LinalgBody.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;

SmallVector<Value> mlir::diffattn::getPosition(OpBuilder &b,
                                               linalg::LinalgOp op,
                                               OpOperand *operand,
                                               ArrayRef<Value> ivs) {
  AffineMap map = op.getMatchingIndexingMap(operand);
  SmallVector<Value> position;
  for (AffineExpr expr : map.getResults())
    position.push_back(affine::makeComposedAffineApply(
        b, op.getLoc(), AffineMap::get(map.getNumDims(), 0, expr),
        SmallVector<OpFoldResult>(ivs)));
  return position;
}

SmallVector<Value> mlir::diffattn::emitBody(OpBuilder &b, linalg::LinalgOp op,
                                            ArrayRef<Value> ivs,
                                            ValueRange outputs) {
  IRMapping mapping;
  for (OpOperand *input : op.getDpsInputOperands()) {
    Value value = input->get();
    if (isa<MemRefType>(value.getType()))
      value = memref::LoadOp::create(b, op.getLoc(), value,
                                     getPosition(b, op, input, ivs));
    mapping.map(op.getMatchingBlockArgument(input), value);
  }
  mapping.map(op.getRegionOutputArgs(), outputs);
  Block *body = op.getBlock();
  for (Operation &inner : body->without_terminator()) {
    if (auto index = dyn_cast<linalg::IndexOp>(inner))
      mapping.map(index.getResult(), ivs[index.getDim()]);
    else
      b.clone(inner, mapping);
  }
  return llvm::map_to_vector(
      body->getTerminator()->getOperands(),
      [&](Value value) { return mapping.lookupOrDefault(value); });
}

bool mlir::diffattn::isRelaxedSum(linalg::LinalgOp op, int64_t i) {
  BlockArgument before = op.getRegionOutputArgs()[i];
  Value after = op.getBlock()->getTerminator()->getOperand(i);
  // Some terms may be left out.
  auto choice = after.getDefiningOp<arith::SelectOp>();
  if (choice && !choice->hasOneUse())
    return false;
  if (choice)
    after = choice.getTrueValue() == before ? choice.getFalseValue()
                                            : choice.getTrueValue();
  auto add = after.getDefiningOp<arith::AddFOp>();
  if (!add || !add->hasOneUse() ||
      !arith::bitEnumContainsAll(add.getFastmath(),
                                 arith::FastMathFlags::reassoc))
    return false;
  // Nothing else may read the sum, also not the condition or the term.
  return llvm::hasNItems(before.getUses(), choice ? 2 : 1) &&
         llvm::is_contained(add->getOperands(), before) &&
         (!choice ||
          llvm::is_contained({choice.getTrueValue(), choice.getFalseValue()},
                             before));
}

Value mlir::diffattn::emitNeutral(OpBuilder &b, Location loc, Type type) {
  return arith::ConstantOp::create(b, loc, b.getFloatAttr(type, -0.0));
}
