//===- TileSlices.cpp - operands of a tile --------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TileSlices.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <numeric>

using namespace mlir;
using namespace mlir::diffattn;

OpFoldResult diffattn::sizeOf(OpBuilder &builder, Location loc, Value value,
                              int64_t axis) {
  return tensor::getMixedSize(builder, loc, value, axis);
}

int64_t diffattn::countHeadGroups(ArrayRef<int64_t> heads) {
  int64_t groups = 0;
  for (int64_t count : heads)
    groups = ShapedType::isDynamic(count) ? 1 : std::gcd(groups, count);
  return groups;
}

TilingResult diffattn::makeTilingResult(Operation *tiled) {
  SmallVector<Operation *> slices;
  for (Value operand : tiled->getOperands())
    if (auto slice = operand.getDefiningOp<tensor::ExtractSliceOp>())
      slices.push_back(slice);
  return {{tiled}, SmallVector<Value>(tiled->getResults()), slices};
}

TileRange TileSlicer::heads(Value value, int64_t axis) {
  if (groups == 1)
    return whole(value, axis);
  int64_t count = cast<ShapedType>(value.getType()).getDimSize(axis);
  AffineExpr scaled = builder.getAffineDimExpr(0) * (count / groups);
  AffineMap map = AffineMap::get(1, 0, scaled);
  return {affine::makeComposedFoldedAffineApply(builder, loc, map,
                                                {tile.group.offset}),
          affine::makeComposedFoldedAffineApply(builder, loc, map,
                                                {tile.group.size})};
}

TileRange TileSlicer::whole(Value value, int64_t axis) {
  return {builder.getIndexAttr(0), sizeOf(builder, loc, value, axis)};
}

Value TileSlicer::slice(Value value, ArrayRef<TileRange> ranges) {
  SmallVector<OpFoldResult> offsets, sizes;
  for (TileRange range : ranges) {
    offsets.push_back(range.offset);
    sizes.push_back(range.size);
  }
  SmallVector<OpFoldResult> strides(ranges.size(), builder.getIndexAttr(1));
  return tensor::ExtractSliceOp::create(builder, loc, value, offsets, sizes,
                                        strides);
}

Value TileSlicer::slice(Value value, ArrayRef<AxisRole> axes) {
  if (llvm::all_of(axes, [](const AxisRole &axis) {
        return axis.kind == AxisRole::Width;
      }))
    return value;
  SmallVector<TileRange> ranges;
  for (auto [i, axis] : llvm::enumerate(axes)) {
    if (axis.mayBroadcast &&
        cast<ShapedType>(value.getType()).getDimSize(i) == 1) {
      ranges.push_back(whole(value, i));
      continue;
    }
    switch (axis.kind) {
    case AxisRole::Batch:
      ranges.push_back(tile.batch);
      break;
    case AxisRole::Head:
      ranges.push_back(heads(value, i));
      break;
    case AxisRole::Query:
      ranges.push_back(tile.query);
      break;
    case AxisRole::Key:
      ranges.push_back(tile.key);
      break;
    case AxisRole::Width:
    case AxisRole::Range:
    case AxisRole::Page:
    case AxisRole::Sequence:
      ranges.push_back(whole(value, i));
      break;
    }
  }
  return slice(value, ranges);
}

Value TileSlicer::shiftedOffset(Value base) {
  if (getConstantIntValue(tile.query.offset) == 0)
    return base;
  Value before =
      getValueOrCreateConstantIndexOp(builder, loc, tile.query.offset);
  Value shift =
      arith::IndexCastOp::create(builder, loc, builder.getI64Type(), before);
  auto type = cast<RankedTensorType>(base.getType());
  SmallVector<Value> sizes;
  if (type.isDynamicDim(0))
    sizes.push_back(tensor::DimOp::create(builder, loc, base, 0));
  return tensor::GenerateOp::create(
      builder, loc, type, sizes,
      [&](OpBuilder &b, Location l, ValueRange index) {
        Value offset = tensor::ExtractOp::create(b, l, base, index);
        // An offset near the highest number stays there instead of wrapping.
        Value highest = arith::ConstantIntOp::create(b, l, INT64_MAX, 64);
        Value limit = arith::SubIOp::create(b, l, highest, shift);
        offset = arith::MinSIOp::create(b, l, offset, limit);
        tensor::YieldOp::create(b, l,
                                arith::AddIOp::create(b, l, offset, shift));
      });
}
