//===- SpecBuilder.cpp - an op as the spec of a kernel --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SpecBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

using namespace mlir;
using namespace mlir::diffattn;

SpecSize SpecBuilder::bind(int64_t fixed, Value dynamic) {
  SpecSize size;
  if (!ShapedType::isDynamic(fixed)) {
    size.value = fixed;
    return size;
  }
  size.slot = context.size();
  context.push_back(
      dynamic.getType().isIndex()
          ? arith::IndexCastOp::create(b, b.i64, dynamic).getResult()
          : dynamic);
  return size;
}

SpecSize SpecBuilder::bind(Value size) {
  return bind(KernelBuilder::known(size).value_or(ShapedType::kDynamic), size);
}

SpecSize SpecBuilder::bindDim(const OperandView &view, OperandView::Role role) {
  int64_t axis = view.axes[role], fixed = view.getType().getDimSize(axis);
  Value dynamic;
  if (ShapedType::isDynamic(fixed))
    dynamic = memref::DimOp::create(b, view.value, axis);
  return bind(fixed, dynamic);
}

/// An axis that the memref does not have gets stride 0.
LogicalResult SpecBuilder::bindOperand(const OperandView &view,
                                       SpecOperand &operand) {
  Value memref = view.value;
  auto type = cast<MemRefType>(memref.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  if (failed(type.getStridesAndOffset(strides, offset)))
    return op->emitOpError() << "expected strided memrefs, but got " << type;
  auto metadata = memref::ExtractStridedMetadataOp::create(b, memref);
  Value base = memref::ExtractAlignedPointerAsIndexOp::create(b, memref);
  Value address = arith::IndexCastOp::create(b, b.i64, base);
  if (offset != 0) {
    Value elements =
        ShapedType::isDynamic(offset)
            ? arith::IndexCastOp::create(b, b.i64, metadata.getOffset())
                  .getResult()
            : b.index(offset);
    int64_t bytes = std::max<int64_t>(1, type.getElementTypeBitWidth() / 8);
    address = b.add(address, b.mul(elements, bytes));
  }
  operand.element = type.getElementType();
  operand.slot = context.size();
  context.push_back(LLVM::IntToPtrOp::create(b, b.pointer, address));
  for (auto [i, axis] : llvm::enumerate(view.axes)) {
    const bool broadcasts = view.mayBroadcast[i];
    if (axis < 0 || (broadcasts && type.getDimSize(axis) == 1)) {
      operand.strides[i] = bind(0, Value());
      continue;
    }
    if (!broadcasts || !type.isDynamicDim(axis)) {
      operand.strides[i] = bind(strides[axis], metadata.getStrides()[axis]);
      continue;
    }
    // An axis that turns out to be 1 is broadcast.
    Value size = arith::IndexCastOp::create(
        b, b.i64, memref::DimOp::create(b, memref, axis));
    Value stride =
        ShapedType::isDynamic(strides[axis])
            ? arith::IndexCastOp::create(b, b.i64, metadata.getStrides()[axis])
                  .getResult()
            : b.index(strides[axis]);
    Value actual = b.select(b.equal(size, b.index(1)), b.index(0), stride);
    operand.strides[i] = bind(ShapedType::kDynamic, actual);
  }
  return success();
}

LogicalResult SpecBuilder::build(const AttentionOperands &operands,
                                 AttentionSpec &spec) {
  using View = OperandView;
  spec.batch = bindDim(operands.q1, View::Batch);
  spec.signalHeads = bindDim(operands.q1, View::Head);
  spec.noiseHeads =
      operands.q2 ? bindDim(operands.q2, View::Head) : spec.signalHeads;
  spec.key1Heads = bindDim(operands.k1, View::Head);
  spec.key2Heads =
      operands.k2 ? bindDim(operands.k2, View::Head) : spec.key1Heads;
  spec.valueHeads = bindDim(operands.v, View::Head);
  spec.queries = bindDim(operands.q1, View::Row);
  spec.keys = bindDim(operands.k1, View::Row);
  if (operands.blockTable) {
    spec.pageRows = spec.keys;
    SpecSize pages = bindDim(operands.blockTable, View::Row);
    Value keys = b.mul(value(pages), value(spec.pageRows));
    spec.keys = bind(keys);
  }
  spec.headDim = bindDim(operands.q1, View::Column);
  spec.valueDim = bindDim(operands.v, View::Column);
  spec.lambdaHeads = operands.lambda && operands.lambda.getType().getRank() == 3
                         ? bindDim(operands.lambda, View::Head)
                         : spec.signalHeads;

  const std::pair<const OperandView &, SpecOperand &> bound[] = {
      {operands.q1, spec.q1},
      {operands.q2, spec.q2},
      {operands.k1, spec.k1},
      {operands.k2, spec.k2},
      {operands.v, spec.v},
      {operands.output, spec.output},
      {operands.lambda, spec.lambda},
      {operands.normWeight, spec.normWeight},
      {operands.gate, spec.gate},
      {operands.x, spec.x},
      {operands.blockTable, spec.blockTable},
      {operands.sinks[0], spec.sinks[0]},
      {operands.sinks[1], spec.sinks[1]},
      {operands.lses[0], spec.lses[0]},
      {operands.lses[1], spec.lses[1]}};
  for (auto &[view, operand] : bound)
    if (view && failed(bindOperand(view, operand)))
      return failure();
  for (auto [view, operand] : llvm::zip_equal(operands.masks, spec.masks))
    if (view && failed(bindOperand(view, operand)))
      return failure();
  spec.slots = context.size();
  return success();
}

LogicalResult SpecBuilder::build(const BackwardOperands &operands,
                                 BackwardSpec &spec) {
  if (failed(build(operands, spec.attention)))
    return failure();
  if (operands.lambda)
    spec.lambdaRank = operands.lambda.getType().getRank();
  spec.sharesKeys = operands.k1.value == operands.k2.value;
  const std::pair<const OperandView &, SpecOperand &> bound[] = {
      {operands.dOut, spec.dOut},
      {operands.dQ1, spec.dQ[0]},
      {operands.dQ2, spec.dQ[1]},
      {operands.dK1, spec.dK[0]},
      {operands.dK2, spec.dK[1]},
      {operands.dV, spec.dV},
      {operands.dLambda, spec.dLambda},
      {operands.dNormWeight, spec.dNormWeight},
      {operands.dGate, spec.dGate}};
  for (auto &[view, operand] : bound)
    if (view && failed(bindOperand(view, operand)))
      return failure();
  spec.attention.slots = context.size();
  return success();
}
