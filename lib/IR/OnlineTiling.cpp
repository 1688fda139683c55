//===- OnlineTiling.cpp - tiles of diffattn.online_attention --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Loops: batch, group of heads, query, and key, a reduction whose tiles hand
// the states on.
//
//===----------------------------------------------------------------------===//
#include "TileSlices.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Groups of heads that share no key, value or noise head.
static int64_t headGroups(OnlineAttentionOp op) {
  return countHeadGroups({op.getSignalHeads(), op.getNoiseHeads(),
                          op.getKey1Heads(), op.getKey2Heads(),
                          op.getValueHeads()});
}

/// States have the order of axes of layout bhtd; a max or sum has no width.
static Value sliceState(TileSlicer &slicer, Value state) {
  auto type = cast<ShapedType>(state.getType());
  SmallVector<TileRange> ranges = {slicer.tile.batch, slicer.heads(state, 1),
                                   slicer.tile.query};
  if (type.getRank() == 4)
    ranges.push_back(slicer.whole(state, 3));
  return slicer.slice(state, ranges);
}

SmallVector<utils::IteratorType> OnlineAttentionOp::getLoopIteratorTypes() {
  SmallVector<utils::IteratorType> loops(4, utils::IteratorType::parallel);
  loops[3] = utils::IteratorType::reduction;
  return loops;
}

SmallVector<Range> OnlineAttentionOp::getIterationDomain(OpBuilder &b) {
  OpFoldResult zero = b.getIndexAttr(0), one = b.getIndexAttr(1);
  Location loc = getLoc();
  return {{zero, sizeOf(b, loc, getQ1(), 0), one},
          {zero, b.getIndexAttr(headGroups(*this)), one},
          {zero, sizeOf(b, loc, getQ1(), AttentionOp::lengthAxis(getQLayout())),
           one},
          {zero, sizeOf(b, loc, getK1(), AttentionOp::lengthAxis(getKLayout())),
           one}};
}

FailureOr<TilingResult>
OnlineAttentionOp::getTiledImplementation(OpBuilder &b,
                                          ArrayRef<OpFoldResult> offsets,
                                          ArrayRef<OpFoldResult> sizes) {
  // Tiles of memrefs are made before bufferization; head counts are static.
  if (getResults().empty() || !getConstantIntValue(sizes[1]))
    return failure();
  Location loc = getLoc();
  AttentionTile tile{{offsets[0], sizes[0]},
                     {offsets[1], sizes[1]},
                     {offsets[2], sizes[2]},
                     {offsets[3], sizes[3]}};
  TileSlicer slicer(b, loc, tile, headGroups(*this));
  Value qOffset = slicer.perBatch(getQOffset());
  if (qOffset)
    qOffset = slicer.shiftedOffset(qOffset);
  // Keys before the tile move the position of its first key.
  Value kOffset = getKOffset();
  if (getConstantIntValue(offsets[3]) != 0) {
    OpFoldResult position = offsets[3];
    if (kOffset)
      position = affine::makeComposedFoldedAffineApply(
          b, loc,
          AffineMap::get(2, 0, b.getAffineDimExpr(0) + b.getAffineDimExpr(1)),
          {kOffset, offsets[3]});
    kOffset = getValueOrCreateConstantIndexOp(b, loc, position);
  }
  SmallVector<Value> states;
  for (OpOperand &init : getDpsInitsMutable())
    states.push_back(sliceState(slicer, init.get()));

  auto tiled = OnlineAttentionOp::create(
      b, loc, TypeRange(ValueRange(states)),
      slicer.headSplit(getQ1(), getQLayout(), tile.query),
      slicer.headSplit(getK1(), getKLayout(), tile.key),
      slicer.headSplit(getQ2(), getQLayout(), tile.query),
      slicer.headSplit(getK2(), getKLayout(), tile.key),
      slicer.headSplit(getV(), getVLayout(), tile.key), slicer.bias(getBias()),
      slicer.perBatch(getKvLen()), qOffset, kOffset, states[0], states[1],
      states[2], states[3], states[4], states[5], getScaleAttr(),
      getIsCausalAttr(), getWindowAttr(), getSoftcapAttr(), getQLayoutAttr(),
      getKLayoutAttr(), getVLayoutAttr());
  tiled->setDiscardableAttrs((*this)->getDiscardableAttrDictionary());
  return makeTilingResult(tiled);
}

LogicalResult OnlineAttentionOp::getResultTilePosition(
    OpBuilder &b, unsigned resultNumber, ArrayRef<OpFoldResult> offsets,
    ArrayRef<OpFoldResult> sizes, SmallVector<OpFoldResult> &resultOffsets,
    SmallVector<OpFoldResult> &resultSizes) {
  AttentionTile tile{{offsets[0], sizes[0]},
                     {offsets[1], sizes[1]},
                     {offsets[2], sizes[2]},
                     {}};
  TileSlicer slicer(b, getLoc(), tile, headGroups(*this));
  Value state = getDpsInitsMutable()[resultNumber].get();
  auto type = cast<ShapedType>(state.getType());
  TileRange heads = slicer.heads(state, 1);
  resultOffsets.assign({offsets[0], heads.offset, offsets[2]});
  resultSizes.assign({sizes[0], heads.size, sizes[2]});
  if (type.getRank() == 4) {
    resultOffsets.push_back(b.getIndexAttr(0));
    resultSizes.push_back(slicer.whole(state, 3).size);
  }
  return success();
}
