//===- AttentionTiling.cpp - tiles of diffattn.attention ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Loops: batch, group of heads, query. Keys are a reduction that one op does as
// a whole; diffattn.online_attention is tiled along them.
//
//===----------------------------------------------------------------------===//
#include "TileSlices.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"
#include "mlir/Dialect/Utils/StructuredOpsUtils.h"

using namespace mlir;
using namespace mlir::diffattn;

SmallVector<utils::IteratorType> AttentionOp::getLoopIteratorTypes() {
  SmallVector<utils::IteratorType> types(3, utils::IteratorType::parallel);
  // A mean over all queries is in each row.
  if (getIntegral())
    types[2] = utils::IteratorType::reduction;
  return types;
}

SmallVector<Range> AttentionOp::getIterationDomain(OpBuilder &b) {
  OpFoldResult zero = b.getIndexAttr(0), one = b.getIndexAttr(1);
  return {{zero, sizeOf(b, getLoc(), getQ1(), 0), one},
          {zero, b.getIndexAttr(countHeadGroups(*this)), one},
          {zero, sizeOf(b, getLoc(), getQ1(), lengthAxis(getQLayout())), one}};
}

FailureOr<TilingResult>
AttentionOp::getTiledImplementation(OpBuilder &b,
                                    ArrayRef<OpFoldResult> offsets,
                                    ArrayRef<OpFoldResult> sizes) {
  // Tiles of memrefs are made before bufferization; head counts are static.
  if (!getResult() || !hasStaticHeads(*this, sizes[1]))
    return failure();
  // Bounds of sequences count from the first query and key. A tile has one
  // result.
  if (isPacked() || getNumResults() > 1)
    return failure();
  Location loc = getLoc();
  OpFoldResult allQueries = sizeOf(b, loc, getQ1(), lengthAxis(getQLayout()));
  if (getIntegral() && !isEqualConstantIntOrValue(sizes[2], allQueries))
    return failure();
  AttentionTile tile{
      {offsets[0], sizes[0]},
      {offsets[1], sizes[1]},
      {offsets[2], sizes[2]},
      {b.getIndexAttr(0), sizeOf(b, loc, getK1(), lengthAxis(getKLayout()))}};
  TileSlicer slicer(b, loc, tile, countHeadGroups(*this));

  // A tile need not start at query 0: give masks by position its position as
  // `q_offset`.
  Value qOffset = getQOffset();
  if (readPosition(getMasks()) &&
      !isEqualConstantIntOrValue(sizes[2], allQueries))
    qOffset = materializeQOffset(b);
  if (qOffset)
    qOffset = slicer.shiftedOffset(slicer.slice(qOffset, {AxisRole::Batch}));

  Value init = slicer.slice(getInit(),
                            getAxisRoles(getInitMutable().getOperandNumber()));
  auto tiled = mlir::clone(b, *this, TypeRange{init.getType()},
                           slicer.operands(*this, init, qOffset));
  tiled.removeSizeBoundsAttr(); // a tile has fewer queries
  if (qOffset)
    tiled.getQOffsetMutable().assign(qOffset);
  return makeTilingResult(tiled);
}

LogicalResult AttentionOp::getResultTilePosition(
    OpBuilder &b, unsigned resultNumber, ArrayRef<OpFoldResult> offsets,
    ArrayRef<OpFoldResult> sizes, SmallVector<OpFoldResult> &resultOffsets,
    SmallVector<OpFoldResult> &resultSizes) {
  AttentionTile tile{{offsets[0], sizes[0]},
                     {offsets[1], sizes[1]},
                     {offsets[2], sizes[2]},
                     {}};
  TileSlicer slicer(b, getLoc(), tile, countHeadGroups(*this));
  TileRange heads = slicer.heads(getInit(), headAxis(getOLayout()));
  TileRange width = slicer.whole(getInit(), 3);
  resultOffsets.assign(4, width.offset);
  resultSizes.assign(4, width.size);
  resultOffsets[0] = offsets[0];
  resultSizes[0] = sizes[0];
  resultOffsets[headAxis(getOLayout())] = heads.offset;
  resultSizes[headAxis(getOLayout())] = heads.size;
  resultOffsets[lengthAxis(getOLayout())] = offsets[2];
  resultSizes[lengthAxis(getOLayout())] = sizes[2];
  return success();
}

LogicalResult AttentionOp::getIterationDomainTileFromResultTile(
    OpBuilder &b, unsigned resultNumber, ArrayRef<OpFoldResult> offsets,
    ArrayRef<OpFoldResult> sizes, SmallVectorImpl<OpFoldResult> &domainOffsets,
    SmallVectorImpl<OpFoldResult> &domainSizes) {
  // A tile has one result; others have no fourth axis.
  if (getNumResults() > 1 || ShapedType::isDynamic(getSignalHeads()))
    return failure();
  int64_t heads = headAxis(getOLayout()), length = lengthAxis(getOLayout());
  int64_t perGroup = getSignalHeads() / countHeadGroups(*this);
  std::optional<int64_t> headSize = getConstantIntValue(sizes[heads]);
  std::optional<int64_t> headOffset = getConstantIntValue(offsets[heads]);
  // A row is computed as a whole, and a group of heads too.
  if (!isConstantIntValue(offsets[3], 0) ||
      !isConstantIntValue(sizes[3], getValueDim()) || !headSize ||
      *headSize % perGroup != 0)
    return failure();
  if (perGroup != 1 && (!headOffset || *headOffset % perGroup != 0))
    return failure();
  OpFoldResult group =
      perGroup == 1 ? offsets[heads] : b.getIndexAttr(*headOffset / perGroup);
  domainOffsets.assign({offsets[0], group, offsets[length]});
  domainSizes.assign(
      {sizes[0], b.getIndexAttr(*headSize / perGroup), sizes[length]});
  return success();
}

FailureOr<TilingResult>
AttentionOp::generateResultTileValue(OpBuilder &b, unsigned resultNumber,
                                     ArrayRef<OpFoldResult> offsets,
                                     ArrayRef<OpFoldResult> sizes) {
  SmallVector<OpFoldResult> domainOffsets, domainSizes;
  if (failed(getIterationDomainTileFromResultTile(
          b, resultNumber, offsets, sizes, domainOffsets, domainSizes)))
    return failure();
  return getTiledImplementation(b, domainOffsets, domainSizes);
}
