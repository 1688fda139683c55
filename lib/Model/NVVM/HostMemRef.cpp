//===- HostMemRef.cpp - memrefs as arguments of kernels -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HostMemRef.h"

#include "DeviceValues.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Arith/Utils/Utils.h"

using namespace mlir;
using namespace mlir::diffattn;

int64_t linalggpu::bytesOf(Type element) {
  if (isa<IndexType>(element))
    return 8;
  return llvm::divideCeil(element.getIntOrFloatBitWidth(), 8);
}

OpFoldResult linalggpu::sizeOf(ImplicitLocOpBuilder &host, Value memref,
                               int64_t axis) {
  auto type = cast<MemRefType>(memref.getType());
  if (!type.isDynamicDim(axis))
    return host.getIndexAttr(type.getDimSize(axis));
  if (auto view = memref.getDefiningOp<memref::SubViewOp>()) {
    llvm::SmallBitVector dropped = view.getDroppedDims();
    for (auto [i, size] : llvm::enumerate(view.getMixedSizes()))
      if (!dropped.test(i) && axis-- == 0)
        return size;
  }
  if (auto cast = memref.getDefiningOp<memref::CastOp>();
      cast && isa<MemRefType>(cast.getSource().getType()))
    return sizeOf(host, cast.getSource(), axis);
  // The sizes of a view that a loop makes may be known outside of the loop.
  if (auto collapse = memref.getDefiningOp<memref::CollapseShapeOp>()) {
    SmallVector<ReassociationIndices> groups =
        collapse.getReassociationIndices();
    SmallVector<OpFoldResult> sizes;
    for (int64_t part : groups[axis])
      sizes.push_back(sizeOf(host, collapse.getSrc(), part));
    return productOf(host, sizes);
  }
  return memref::DimOp::create(host, memref, axis).getResult();
}

OpFoldResult linalggpu::strideOf(ImplicitLocOpBuilder &host, Value memref,
                                 int64_t axis) {
  auto type = cast<MemRefType>(memref.getType());
  auto [strides, offset] = type.getStridesAndOffset();
  if (!ShapedType::isDynamic(strides[axis]))
    return host.getIndexAttr(strides[axis]);
  auto metadata = memref::ExtractStridedMetadataOp::create(host, memref);
  return OpFoldResult(metadata.getStrides()[axis]);
}

Value linalggpu::addressOf(ImplicitLocOpBuilder &host, Value memref) {
  auto type = cast<MemRefType>(memref.getType());
  Value base = memref::ExtractAlignedPointerAsIndexOp::create(host, memref);
  auto [strides, staticOffset] = type.getStridesAndOffset();
  if (staticOffset == 0)
    return base;
  Value offset;
  if (ShapedType::isDynamic(staticOffset))
    offset = memref::ExtractStridedMetadataOp::create(host, memref).getOffset();
  else
    offset = arith::ConstantIndexOp::create(host, staticOffset);
  Value bytes =
      arith::ConstantIndexOp::create(host, bytesOf(type.getElementType()));
  return arith::AddIOp::create(host, base,
                               arith::MulIOp::create(host, offset, bytes));
}

Value linalggpu::asIndex(ImplicitLocOpBuilder &host, OpFoldResult value) {
  return getValueOrCreateConstantIndexOp(host, host.getLoc(), value);
}

OpFoldResult linalggpu::productOf(ImplicitLocOpBuilder &host,
                                  ArrayRef<OpFoldResult> factors) {
  int64_t known = 1;
  Value product;
  for (OpFoldResult factor : factors) {
    if (std::optional<int64_t> constant = getConstantIntValue(factor)) {
      known *= *constant;
      continue;
    }
    Value value = cast<Value>(factor);
    product = product ? arith::MulIOp::create(host, product, value).getResult()
                      : value;
  }
  if (!product)
    return host.getIndexAttr(known);
  if (known == 1)
    return product;
  return OpFoldResult(
      arith::MulIOp::create(host, product,
                            arith::ConstantIndexOp::create(host, known))
          .getResult());
}

OpFoldResult linalggpu::vectorsIn(ImplicitLocOpBuilder &host,
                                  OpFoldResult count, int64_t width) {
  if (std::optional<int64_t> known = getConstantIntValue(count))
    return host.getIndexAttr(*known / width);
  return arith::DivUIOp::create(host, cast<Value>(count),
                                arith::ConstantIndexOp::create(host, width))
      .getResult();
}

bool linalggpu::isKnownAligned(Value memref, int64_t bytes) {
  auto type = cast<MemRefType>(memref.getType());
  auto [strides, offset] = type.getStridesAndOffset();
  if (ShapedType::isDynamic(offset) ||
      offset * bytesOf(type.getElementType()) % bytes)
    return false;
  // Constants lie in the kernels' module, aligned to what a thread reads.
  if (constantOf(memref))
    return true;
  auto alloc = rootOf(memref).getDefiningOp<memref::AllocOp>();
  if (!alloc || alloc.getAlignment().value_or(1) % bytes)
    return false;
  // The offset of a view of a view counts from the view's own source, whose
  // type tells whether it is known: all offsets of a chain are static here.
  for (Value view = memref; view != rootOf(memref);
       view = view.getDefiningOp<ViewLikeOpInterface>().getViewSource())
    if (!isa<memref::SubViewOp, memref::CastOp, memref::ExpandShapeOp,
             memref::CollapseShapeOp>(view.getDefiningOp()))
      return false;
  return true;
}
