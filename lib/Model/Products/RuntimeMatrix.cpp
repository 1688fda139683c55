//===- RuntimeMatrix.cpp - operands of the runtime's products -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "RuntimeMatrix.h"
#include "../Weights/WeightTable.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

using namespace mlir;
using namespace mlir::diffattn;

bool MatrixBuilder::hasRows(MemRefType type) {
  int64_t rank = type.getRank();
  return type.getStridesAndOffset().first[rank - 1] == 1 ||
         type.getDimSize(rank - 1) == 1;
}

static bool hasColumns(MemRefType type) {
  return type.getStridesAndOffset().first[type.getRank() - 2] == 1;
}

Value MatrixBuilder::weightSlot(Value buffer) {
  Operation *source = buffer.getDefiningOp();
  while (isa_and_nonnull<memref::CastOp, memref::CollapseShapeOp,
                         memref::ExpandShapeOp, memref::TransposeOp>(source))
    source = source->getOperand(0).getDefiningOp();
  if (!source)
    return {};
  auto module = source->getParentOfType<ModuleOp>();
  if (auto weight = dyn_cast<WeightOp>(source))
    return emitWeightSlot(*this, getLoc(), getOrDeclareWeightTable(module),
                          weight.getSlot());
  if (auto constant = dyn_cast<memref::GetGlobalOp>(source))
    if (auto global = SymbolTable::lookupNearestSymbolFrom<memref::GlobalOp>(
            constant, constant.getNameAttr());
        global && global.getConstant())
      return emitConstantSlot(*this, module, global.getSymName());
  return {};
}

Value MatrixBuilder::copyOf(Value buffer, bool fill) {
  auto type = cast<MemRefType>(buffer.getType());
  SmallVector<Value> sizes;
  for (int64_t i = 0; i < type.getRank(); ++i)
    if (type.isDynamicDim(i))
      sizes.push_back(memref::DimOp::create(*this, buffer, i));
  auto plain = MemRefType::get(type.getShape(), type.getElementType());
  Value copy =
      memref::AllocOp::create(*this, plain, sizes, getI64IntegerAttr(64));
  if (fill)
    memref::CopyOp::create(*this, buffer, copy);
  return copy;
}

RuntimeMatrix MatrixBuilder::describe(Value buffer, bool mayTranspose) {
  auto type = cast<MemRefType>(buffer.getType());
  bool transposed = mayTranspose && !hasRows(type) && hasColumns(type);
  if (!hasRows(type) && !transposed) {
    buffer = copyOf(buffer, /*fill=*/true);
    type = cast<MemRefType>(buffer.getType());
  }
  int64_t rank = type.getRank();
  auto metadata = memref::ExtractStridedMetadataOp::create(*this, buffer);
  RuntimeMatrix matrix;
  matrix.element = type.getElementType();
  matrix.transposed = transposed;
  matrix.address = offsetBy(
      toI64(memref::ExtractAlignedPointerAsIndexOp::create(*this, buffer)),
      toI64(metadata.getOffset()), matrix.element);
  matrix.leading =
      toI64(type.getDimSize(rank - 2) == 1 && !transposed
                ? Value(memref::DimOp::create(*this, buffer, rank - 1))
                : metadata.getStrides()[transposed ? rank - 1 : rank - 2]);
  for (int64_t i = 0; i < rank - 2; ++i)
    matrix.batchStrides.push_back(metadata.getStrides()[i]);
  return matrix;
}

Value MatrixBuilder::advance(RuntimeMatrix &matrix, Value index,
                             int64_t batch) {
  Value elements =
      arith::MulIOp::create(*this, index, matrix.batchStrides[batch]);
  return offsetBy(matrix.address, toI64(elements), matrix.element);
}

Value MatrixBuilder::offsetBy(Value address, Value elements, Type element) {
  Value bytes = arith::MulIOp::create(*this, elements,
                                      i64(element.getIntOrFloatBitWidth() / 8));
  return arith::AddIOp::create(*this, address, bytes);
}

Value MatrixBuilder::i32(int32_t value) {
  return arith::ConstantIntOp::create(*this, value, 32);
}
Value MatrixBuilder::i64(int64_t value) {
  return arith::ConstantIntOp::create(*this, value, 64);
}
Value MatrixBuilder::toI64(Value index) {
  return arith::IndexCastOp::create(*this, getI64Type(), index);
}
Value MatrixBuilder::dim(Value buffer, int64_t i) {
  return toI64(memref::DimOp::create(*this, buffer, i));
}
Value MatrixBuilder::pointer(Value address) {
  return LLVM::IntToPtrOp::create(
      *this, LLVM::LLVMPointerType::get(getContext()), address);
}
