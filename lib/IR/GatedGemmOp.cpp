//===- GatedGemmOp.cpp - diffattn.gated_gemm ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapeChecks.h"

using namespace mlir;
using namespace mlir::diffattn;

LogicalResult diffattn::verifyRules(GatedGemmOp op, ShapeRules rules) {
  NamedOperand a{"a", op.getA()}, gate{"gate", op.getGate()},
      up{"up", op.getUp()}, c{"c", op.getC()};
  if (failed(verifyDestinationForm(op))) // gated_gemm_c1
    return failure();
  for (NamedOperand operand : {a, gate, up, c}) // gated_gemm_c2
    if (failed(verifyRank(rules, operand, 2)))
      return failure();
  if (failed(verifySameElementType(rules, {a, gate, up}))) // gated_gemm_c3
    return failure();
  // gated_gemm_c4: sizes.
  const int64_t inner = op.getTransposeB() ? 1 : 0, columns = 1 - inner;
  for (NamedOperand weight : {gate, up})
    if (failed(verifySame(rules, "the inner sizes", a, 1, weight, inner)) ||
        failed(verifySame(rules, "the columns", weight, columns, c, 1)))
      return failure();
  return verifySame(rules, "the rows", a, 0, c, 0);
}

LogicalResult GatedGemmOp::verify() {
  return verifyRules(*this, getOperation());
}

void GatedGemmOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  addMemRefEffects(*this, /*readsInits=*/false, effects);
}

LogicalResult
GatedGemmOp::reifyResultShapes(OpBuilder &builder,
                               ReifiedRankedShapedTypeDims &dims) {
  return reifyInitShapes(*this, builder, dims);
}
