//===- GemmOp.cpp - diffattn.gemm -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapeChecks.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;
using namespace mlir::diffattn;

LogicalResult diffattn::verifyRules(GemmOp op, ShapeRules rules) {
  NamedOperand a{"a", op.getA()}, b{"b", op.getB()}, c{"c", op.getC()};
  const int64_t rank = c.type().getRank();
  // gemm_c1: one kind of operand, and a result exactly for tensors.
  const bool onMemRefs = isa<MemRefType>(c.type());
  if (isa<MemRefType>(a.type()) != onMemRefs ||
      isa<MemRefType>(b.type()) != onMemRefs ||
      onMemRefs == static_cast<bool>(op.getResult()))
    return rules.error() << "expected operands that are all tensors with one "
                            "result or all memrefs with none";
  // gemm_c2: ranks.
  if (rank < 2)
    return rules.error() << "expected c of rank 2 or more, but got " << rank;
  for (NamedOperand operand : {a, b})
    if (operand.type().getRank() != 2 && operand.type().getRank() != rank)
      return rules.error() << "expected " << operand.name << " of rank 2 or "
                           << rank << ", but got " << operand.type().getRank();
  // gemm_c3: f64 only with itself.
  for (NamedOperand operand : {a, b})
    if (operand.type().getElementType().isF64() !=
        c.type().getElementType().isF64())
      return rules.error() << "expected f64 in all operands or in none";
  // gemm_c4: sizes. The axes of rows and columns come last.
  auto axis = [](NamedOperand operand, int64_t fromEnd) {
    return operand.type().getRank() - fromEnd;
  };
  const int64_t inner = op.getTransposeB() ? 1 : 2, columns = 3 - inner;
  if (failed(verifySame(rules, "the inner sizes", a, axis(a, 1), b,
                        axis(b, inner))) ||
      failed(verifySame(rules, "the rows", a, axis(a, 2), c, axis(c, 2))) ||
      failed(
          verifySame(rules, "the columns", b, axis(b, columns), c, axis(c, 1))))
    return failure();
  for (int64_t i = 0; i < rank - 2; ++i)
    for (NamedOperand operand : {a, b})
      if (operand.type().getRank() != 2 &&
          failed(verifySame(rules, "the batches", operand, i, c, i)))
        return failure();
  if (op.getResult() && op.getResult().getType() != c.type()) // gemm_c5
    return rules.error() << "expected a result of the type of c, " << c.type()
                         << ", but got " << op.getResult().getType();
  return success();
}

LogicalResult GemmOp::verify() { return verifyRules(*this, getOperation()); }

void GemmOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  if (getResult())
    return;
  effects.emplace_back(MemoryEffects::Read::get(), &getAMutable());
  effects.emplace_back(MemoryEffects::Read::get(), &getBMutable());
  if (getAccumulate())
    effects.emplace_back(MemoryEffects::Read::get(),
                         &getOperation()->getOpOperand(2));
  effects.emplace_back(MemoryEffects::Write::get(),
                       &getOperation()->getOpOperand(2));
}

LogicalResult GemmOp::reifyResultShapes(OpBuilder &builder,
                                        ReifiedRankedShapedTypeDims &dims) {
  if (!getResult())
    return failure();
  dims.push_back(tensor::getMixedSizes(builder, getLoc(), getC()));
  return success();
}
