//===- QuantizedGemmOp.cpp - diffattn.quantized_gemm ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapeChecks.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Scales are for groups of a multiple of so many numbers, so that vectors of
/// every width lie within one group.
static constexpr int64_t kGroupUnit = 8;

LogicalResult diffattn::verifyRules(QuantizedGemmOp op, ShapeRules rules) {
  NamedOperand a{"a", op.getA()}, b{"b", op.getB()},
      scales{"scales", op.getScales()}, c{"c", op.getC()};
  if (failed(verifyDestinationForm(op)) || // quantized_gemm_c1
      failed(verifyRank(rules, a, 2)) ||   // quantized_gemm_c2
      failed(verifyRank(rules, b, 2)) || failed(verifyRank(rules, scales, 2)) ||
      failed(verifyRank(rules, c, 2)))
    return failure();
  const auto bits = static_cast<int64_t>(op.getBits());
  if (bits != 4 && bits != 8) // quantized_gemm_c3
    return rules.error() << "expected bits to be 4 or 8, but got " << bits;
  for (NamedOperand operand : {b, scales}) // quantized_gemm_c4
    for (int64_t axis : {0, 1})
      if (failed(verifyStatic(rules,
                              axis ? "number of columns" : "number of rows",
                              operand, axis)))
        return failure();
  const int64_t depth = op.getDepth(); // quantized_gemm_c5
  if (failed(verifyStatic(rules, "number of columns", a, 1)))
    return failure();
  if (a.size(1) != depth)
    return rules.error() << "expected a to have a column for each of the "
                         << depth << " numbers in a row of b, but got "
                         << a.size(1);
  if (failed(verifySame(rules, "the rows", a, 0, c, 0)) || // quantized_gemm_c6
      failed(verifySame(rules, "the columns", b, 0, c, 1)) ||
      failed(verifySame(rules, "the rows", b, 0, scales, 0)))
    return failure();
  if (depth % (scales.size(1) * kGroupUnit)) // quantized_gemm_c7
    return rules.error() << "expected groups of a multiple of " << kGroupUnit
                         << " that divide a row of " << depth << ", but got "
                         << scales.size(1) << " scales a row";
  return success();
}

LogicalResult QuantizedGemmOp::verify() {
  return verifyRules(*this, getOperation());
}

void QuantizedGemmOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  addMemRefEffects(*this, /*readsInits=*/getAccumulate(), effects);
}

LogicalResult
QuantizedGemmOp::reifyResultShapes(OpBuilder &builder,
                                   ReifiedRankedShapedTypeDims &dims) {
  return reifyInitShapes(*this, builder, dims);
}
