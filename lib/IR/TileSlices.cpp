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
#include "mlir/Dialect/Utils/StaticValueUtils.h"

using namespace mlir;
using namespace mlir::diffattn;

OpFoldResult diffattn::sizeOf(OpBuilder &builder, Location loc, Value value,
                              int64_t axis) {
  return tensor::getMixedSize(builder, loc, value, axis);
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

TileRange TileSlicer::unlessBroadcast(Value value, int64_t axis,
                                      TileRange range) {
  auto type = cast<ShapedType>(value.getType());
  if (type.getDimSize(axis) == 1)
    return whole(value, axis);
  if (!type.isDynamicDim(axis))
    return range;
  Value one = arith::ConstantIndexOp::create(builder, loc, 1);
  Value size = getValueOrCreateConstantIndexOp(
      builder, loc, sizeOf(builder, loc, value, axis));
  Value isOne =
      arith::CmpIOp::create(builder, loc, arith::CmpIPredicate::eq, size, one);
  auto choose = [&](int64_t ifOne, OpFoldResult otherwise) -> OpFoldResult {
    if (isConstantIntValue(otherwise, ifOne))
      return otherwise;
    return builder.createOrFold<arith::SelectOp>(
        loc, isOne, arith::ConstantIndexOp::create(builder, loc, ifOne),
        getValueOrCreateConstantIndexOp(builder, loc, otherwise));
  };
  return {choose(0, range.offset), choose(1, range.size)};
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

TileRange TileSlicer::getRange(Value value, int64_t axis, AxisRole::Kind kind) {
  switch (kind) {
  case AxisRole::Batch:
    return tile.batch;
  case AxisRole::Head:
    return heads(value, axis);
  case AxisRole::Query:
    return tile.query;
  case AxisRole::Key:
    return tile.key;
  case AxisRole::Width:
  case AxisRole::Range:
  case AxisRole::Page:
  case AxisRole::Sequence:
    return whole(value, axis);
  }
  llvm_unreachable("unknown axis");
}

Value TileSlicer::slice(Value value, ArrayRef<AxisRole> axes) {
  if (llvm::all_of(axes, [](const AxisRole &axis) {
        return axis.kind == AxisRole::Width;
      }))
    return value;
  SmallVector<TileRange> ranges;
  for (auto [i, axis] : llvm::enumerate(axes)) {
    TileRange range = getRange(value, i, axis.kind);
    const bool isWhole = axis.kind == AxisRole::Head && groups == 1;
    ranges.push_back(axis.mayBroadcast && !isWhole
                         ? unlessBroadcast(value, i, range)
                         : range);
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

SmallVector<Value> TileSlicer::operands(DifferentialMapsOpInterface op,
                                        ValueRange inits, Value qOffset) {
  SmallVector<Value> result;
  for (OpOperand &operand : op->getOpOperands().drop_back(inits.size()))
    result.push_back(
        slice(operand.get(), op.getAxisRoles(operand.getOperandNumber())));
  if (MutableOperandRange given = op.getQOffsetMutable(); !given.empty())
    result[given[0].getOperandNumber()] = qOffset;
  llvm::append_range(result, inits);
  return result;
}

int64_t diffattn::countHeadGroups(DifferentialMapsOpInterface op) {
  for (OpOperand &operand : op->getOpOperands())
    for (auto [i, axis] :
         llvm::enumerate(op.getAxisRoles(operand.getOperandNumber())))
      if (axis.kind == AxisRole::Head &&
          cast<ShapedType>(operand.get().getType()).isDynamicDim(i))
        return 1;
  int64_t groups = 0;
  for (int64_t heads :
       {op.getSignalHeads(), op.getNoiseHeads(), op.getKey1Heads(),
        op.getKey2Heads(), op.getValueHeads()})
    groups = std::gcd(groups, heads);
  return groups;
}

bool diffattn::hasStaticHeads(DifferentialMapsOpInterface op,
                              OpFoldResult groups) {
  return getConstantIntValue(groups) || countHeadGroups(op) == 1;
}
