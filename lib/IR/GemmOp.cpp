//===- GemmOp.cpp - diffattn.gemm -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mlir::diffattn;

LogicalResult GemmOp::verify() {
  ShapedType a = getShaped(getA()), b = getShaped(getB()),
             c = getShaped(getC());
  // gemm_c1: one kind of operand, and a result exactly for tensors.
  if (isa<MemRefType>(a) != isa<MemRefType>(c) ||
      isa<MemRefType>(b) != isa<MemRefType>(c) ||
      isa<MemRefType>(c) == static_cast<bool>(getResult()))
    return emitOpError("expected operands that are all tensors with one "
                       "result or all memrefs with none");
  // gemm_c2: ranks.
  if (c.getRank() < 2)
    return emitOpError("expected c of rank 2 or more, but got ") << c.getRank();
  for (auto [name, type] : {std::pair("a", a), std::pair("b", b)})
    if (type.getRank() != 2 && type.getRank() != c.getRank())
      return emitOpError("expected ") << name << " of rank 2 or " << c.getRank()
                                      << ", but got " << type.getRank();
  // gemm_c3: f64 only with itself.
  if (a.getElementType().isF64() != c.getElementType().isF64() ||
      b.getElementType().isF64() != c.getElementType().isF64())
    return emitOpError("expected f64 in all operands or in none");
  // gemm_c4: sizes.
  auto verifySizes = [&](StringRef what, int64_t lhs, int64_t rhs) {
    return succeeded(verifyCompatibleShape({lhs}, {rhs}))
               ? success()
               : emitOpError("expected ")
                     << what << " to match, but got " << lhs << " and " << rhs;
  };
  auto last = [](ShapedType type, int64_t i) {
    return type.getDimSize(type.getRank() - i);
  };
  bool transposed = getTransposeB();
  if (failed(verifySizes("the columns of a and the inner size of b", last(a, 1),
                         last(b, transposed ? 1 : 2))) ||
      failed(verifySizes("the rows of a and c", last(a, 2), last(c, 2))) ||
      failed(verifySizes("the columns of b and c", last(b, transposed ? 2 : 1),
                         last(c, 1))))
    return failure();
  for (int64_t i = 0, e = c.getRank() - 2; i < e; ++i)
    for (ShapedType type : {a, b})
      if (type.getRank() != 2 &&
          failed(verifySizes("the batches of the operands", type.getDimSize(i),
                             c.getDimSize(i))))
        return failure();
  if (getResult() && getResult().getType() != c) // gemm_c5
    return emitOpError("expected a result of the type of c, ")
           << c << ", but got " << getResult().getType();
  return success();
}

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
