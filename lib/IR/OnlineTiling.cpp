//===- OnlineTiling.cpp - tiles of diffattn.online_attention --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Loops: batch, group of heads, query, and key, a reduction whose tiles hand
// the states on, or begin states of their own that are merged.
//
//===----------------------------------------------------------------------===//
#include "TileSlices.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"
#include "mlir/Dialect/Utils/StructuredOpsUtils.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Groups of heads that share no key, value or noise head.
static int64_t headGroups(OnlineAttentionOp op) {
  return countHeadGroups({op.getSignalHeads(), op.getNoiseHeads(),
                          op.getKey1Heads(), op.getKey2Heads(),
                          op.getValueHeads()});
}

/// Where the tile's part of a state lies, in the axes of layout bhtd; a max or
/// sum has no width. Not read off the state itself: while keys are split, an op
/// stands on partial states, which have an axis more.
static SmallVector<TileRange> stateRanges(OnlineAttentionOp op,
                                          TileSlicer &slicer, unsigned number) {
  const bool isAccumulator = number % 3 == 2;
  bool bySignal = number < 3;
  if (number == 5)
    bySignal = OnlineAttentionOp::accumulator2Heads(
                   op.getSignalHeads(), op.getNoiseHeads(),
                   op.getValueHeads()) == op.getSignalHeads();
  SmallVector<TileRange> ranges = {
      slicer.tile.batch,
      slicer.heads(bySignal ? op.getQ1() : op.getQ2(),
                   AttentionOp::headAxis(op.getQLayout())),
      slicer.tile.query};
  if (isAccumulator)
    ranges.push_back(slicer.whole(op.getV(), 3));
  return ranges;
}

/// A slice of one place of the first axis, without that axis.
static Value sliceFirst(OpBuilder &b, Location loc, Value value,
                        ArrayRef<OpFoldResult> offsets,
                        ArrayRef<OpFoldResult> sizes) {
  SmallVector<OpFoldResult> strides(offsets.size(), b.getIndexAttr(1));
  auto [shape, dynamic] = decomposeMixedValues(llvm::to_vector(sizes));
  auto type =
      RankedTensorType::get(ArrayRef(shape).drop_front(),
                            cast<ShapedType>(value.getType()).getElementType());
  return tensor::ExtractSliceOp::create(b, loc, type, value, offsets, sizes,
                                        strides);
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

/// The op on one tile, with the states that it adds to.
static TilingResult tileOnto(OnlineAttentionOp op, TileSlicer &slicer,
                             ArrayRef<Value> states) {
  OpBuilder &b = slicer.builder;
  Location loc = slicer.loc;
  const AttentionTile &tile = slicer.tile;
  Value qOffset = op.getQOffset();
  if (qOffset)
    qOffset = slicer.shiftedOffset(slicer.slice(qOffset, {AxisRole::Batch}));
  // Keys before the tile move the position of its first key.
  Value kOffset = op.getKOffset();
  if (getConstantIntValue(tile.key.offset) != 0) {
    OpFoldResult position = tile.key.offset;
    if (kOffset)
      position = affine::makeComposedFoldedAffineApply(
          b, loc,
          AffineMap::get(2, 0, b.getAffineDimExpr(0) + b.getAffineDimExpr(1)),
          {kOffset, tile.key.offset});
    kOffset = getValueOrCreateConstantIndexOp(b, loc, position);
  }
  auto tiled = mlir::clone(b, op, TypeRange(ValueRange(states)),
                           slicer.operands(op, states, qOffset));
  if (kOffset)
    tiled.getKOffsetMutable().assign(kOffset);
  return makeTilingResult(tiled);
}

static AttentionTile makeTile(ArrayRef<OpFoldResult> offsets,
                              ArrayRef<OpFoldResult> sizes) {
  return {{offsets[0], sizes[0]},
          {offsets[1], sizes[1]},
          {offsets[2], sizes[2]},
          {offsets[3], sizes[3]}};
}

FailureOr<TilingResult>
OnlineAttentionOp::getTiledImplementation(OpBuilder &b,
                                          ArrayRef<OpFoldResult> offsets,
                                          ArrayRef<OpFoldResult> sizes) {
  // Tiles of memrefs are made before bufferization; head counts are static.
  if (getResults().empty() || !getConstantIntValue(sizes[1]))
    return failure();
  AttentionTile tile = makeTile(offsets, sizes);
  TileSlicer slicer(b, getLoc(), tile, headGroups(*this));
  SmallVector<Value> states;
  for (auto [i, init] : llvm::enumerate(getDpsInits()))
    states.push_back(slicer.slice(init, stateRanges(*this, slicer, i)));
  return tileOnto(*this, slicer, states);
}

LogicalResult OnlineAttentionOp::getResultTilePosition(
    OpBuilder &b, unsigned resultNumber, ArrayRef<OpFoldResult> offsets,
    ArrayRef<OpFoldResult> sizes, SmallVector<OpFoldResult> &resultOffsets,
    SmallVector<OpFoldResult> &resultSizes) {
  // Where a state lies does not depend on the keys.
  AttentionTile tile{{offsets[0], sizes[0]},
                     {offsets[1], sizes[1]},
                     {offsets[2], sizes[2]},
                     {}};
  TileSlicer slicer(b, getLoc(), tile, headGroups(*this));
  for (TileRange range : stateRanges(*this, slicer, resultNumber)) {
    resultOffsets.push_back(range.offset);
    resultSizes.push_back(range.size);
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Ranges of keys in parallel
//===----------------------------------------------------------------------===//
//
// The partial results are the six states with an axis of ranges in front. Only
// the strategy with the ranges in parallel is implemented: the other one, a
// state for each place within a range, would hold a state for every key, and
// keys in order are what plain tiling gives.

static constexpr unsigned kKeyLoop = 3;

static bool splitsKeysOnly(const llvm::SetVector<unsigned> &reductionDims) {
  return reductionDims.size() == 1 && reductionDims.contains(kKeyLoop);
}

FailureOr<SmallVector<Value>>
OnlineAttentionOp::generateInitialTensorForPartialReduction(
    OpBuilder &b, Location loc, ArrayRef<OpFoldResult> tileSizes,
    const llvm::SetVector<unsigned> &reductionDims) {
  if (getResults().empty() || !splitsKeysOnly(reductionDims))
    return failure();
  SmallVector<Value> initial;
  for (auto [i, init] : llvm::enumerate(getDpsInits())) {
    // Maximum, sum and accumulator of either map; no key is (-inf, 0, 0).
    bool isMaximum = i % 3 == 0;
    APFloat value = isMaximum ? APFloat::getInf(APFloat::IEEEsingle(), true)
                              : APFloat::getZero(APFloat::IEEEsingle());
    Value scalar = arith::ConstantOp::create(
        b, loc, b.getFloatAttr(b.getF32Type(), value));
    SmallVector<OpFoldResult> sizes = {tileSizes[kKeyLoop]};
    llvm::append_range(sizes, tensor::getMixedSizes(b, loc, init));
    initial.push_back(tensor::SplatOp::create(b, loc, scalar, sizes));
  }
  return initial;
}

LogicalResult OnlineAttentionOp::getPartialResultTilePosition(
    OpBuilder &b, unsigned resultNumber, ReductionTilingStrategy tilingStrategy,
    ArrayRef<OpFoldResult> offsets, ArrayRef<OpFoldResult> sizes,
    const llvm::SetVector<unsigned> &reductionDims,
    ArrayRef<OpFoldResult> splitReductionIvs,
    SmallVector<OpFoldResult> &resultOffsets,
    SmallVector<OpFoldResult> &resultSizes) {
  if (tilingStrategy !=
          ReductionTilingStrategy::PartialReductionOuterParallel ||
      !splitsKeysOnly(reductionDims))
    return failure();
  resultOffsets.push_back(splitReductionIvs[0]);
  resultSizes.push_back(b.getIndexAttr(1));
  return getResultTilePosition(b, resultNumber, offsets, sizes, resultOffsets,
                               resultSizes);
}

FailureOr<TilingResult> OnlineAttentionOp::tileToPartialReduction(
    OpBuilder &b, Location loc, ReductionTilingStrategy tilingStrategy,
    ValueRange init, ArrayRef<OpFoldResult> offsets,
    ArrayRef<OpFoldResult> sizes,
    const llvm::SetVector<unsigned> &reductionDims,
    ArrayRef<OpFoldResult> splitReductionIvs) {
  if (getResults().empty() || !getConstantIntValue(sizes[1]))
    return failure();
  AttentionTile tile = makeTile(offsets, sizes);
  TileSlicer slicer(b, loc, tile, headGroups(*this));
  SmallVector<Value> states;
  for (auto [i, partial] : llvm::enumerate(init)) {
    SmallVector<OpFoldResult> partialOffsets, partialSizes;
    if (failed(getPartialResultTilePosition(
            b, i, tilingStrategy, offsets, sizes, reductionDims,
            splitReductionIvs, partialOffsets, partialSizes)))
      return failure();
    states.push_back(sliceFirst(b, loc, partial, partialOffsets, partialSizes));
  }
  return tileOnto(*this, slicer, states);
}

FailureOr<MergeResult> OnlineAttentionOp::mergeReductions(
    OpBuilder &b, Location loc, ValueRange partialReduce,
    const llvm::SetVector<unsigned> &reductionDims) {
  if (!splitsKeysOnly(reductionDims))
    return failure();
  Value zero = arith::ConstantIndexOp::create(b, loc, 0);
  Value one = arith::ConstantIndexOp::create(b, loc, 1);
  Value ranges = getValueOrCreateConstantIndexOp(
      b, loc, sizeOf(b, loc, partialReduce[0], 0));
  MergeResult result;
  auto loop = scf::ForOp::create(
      b, loc, zero, ranges, one, getDpsInits(),
      [&](OpBuilder &body, Location, Value range, ValueRange joined) {
        SmallVector<Value> states;
        for (Value partial : partialReduce) {
          SmallVector<OpFoldResult> sizes =
              tensor::getMixedSizes(body, loc, partial);
          SmallVector<OpFoldResult> offsets(sizes.size(), b.getIndexAttr(0));
          offsets[0] = range;
          sizes[0] = b.getIndexAttr(1);
          states.push_back(sliceFirst(body, loc, partial, offsets, sizes));
        }
        SmallVector<Value> next;
        for (unsigned map : {0, 3}) {
          auto into = joined.slice(map, 3);
          auto merge = MergeOp::create(body, loc, into.getTypes(), states[map],
                                       states[map + 1], states[map + 2],
                                       into[0], into[1], into[2]);
          result.mergeOps.push_back(merge);
          llvm::append_range(next, merge.getResults());
        }
        scf::YieldOp::create(body, loc, next);
      });
  result.replacements.assign(loop.result_begin(), loop.result_end());
  return result;
}
