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
#include "DiffAttn/IR/OnlineRanges.h"
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

/// The ranges of the tile's part of a state, in the axes of layout bhtd; a max
/// or sum has no width. Not taken from the state itself: while keys are split,
/// an op has partial states, which have an axis more.
static SmallVector<TileRange> stateRanges(OnlineAttentionOp op,
                                          TileSlicer &slicer, unsigned number) {
  const bool isAccumulator = number % 3 == 2;
  bool bySignal = number < 3;
  if (number == 5)
    bySignal = op.getAccumulator2Heads() == op.getSignalHeads();
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
          {zero, b.getIndexAttr(countHeadGroups(*this)), one},
          {zero, sizeOf(b, loc, getQ1(), AttentionOp::lengthAxis(getQLayout())),
           one},
          {zero, sizeOf(b, loc, getK1(), AttentionOp::lengthAxis(getKLayout())),
           one}};
}

/// The op on one tile, with the states that it adds to. `qOffset` is the op's,
/// or null.
static TilingResult tileOnto(OnlineAttentionOp op, Value qOffset,
                             TileSlicer &slicer, ArrayRef<Value> states) {
  OpBuilder &b = slicer.builder;
  Location loc = slicer.loc;
  const AttentionTile &tile = slicer.tile;
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
  if (qOffset)
    tiled.getQOffsetMutable().assign(qOffset);
  // A tile is one range.
  tiled.removeKvSplitSizeAttr();
  tiled.removeScheduleAttr();
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
  // Tiles of memrefs are made before bufferization; head counts are static;
  // ranges of keys are tiles already.
  if (getResults().empty() || !hasStaticHeads(*this, sizes[1]) ||
      getKvSplitSize())
    return failure();
  AttentionTile tile = makeTile(offsets, sizes);
  TileSlicer slicer(b, getLoc(), tile, countHeadGroups(*this));
  SmallVector<Value> states;
  for (auto [i, init] : llvm::enumerate(getDpsInits()))
    states.push_back(slicer.slice(init, stateRanges(*this, slicer, i)));
  return tileOnto(*this, getQOffset(), slicer, states);
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
  TileSlicer slicer(b, getLoc(), tile, countHeadGroups(*this));
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

/// Place `range` of the first axis of `partial`, without that axis.
static Value sliceRange(OpBuilder &b, Location loc, Value partial,
                        Value range) {
  SmallVector<OpFoldResult> sizes = tensor::getMixedSizes(b, loc, partial);
  SmallVector<OpFoldResult> offsets(sizes.size(), b.getIndexAttr(0));
  offsets[0] = range;
  sizes[0] = b.getIndexAttr(1);
  return sliceFirst(b, loc, partial, offsets, sizes);
}

/// A loop over the ranges of `partial`, states (max, sum, acc) of one map or
/// both with an axis of ranges in front, that joins each to `initial`.
static scf::ForOp joinRanges(OpBuilder &b, Location loc, ValueRange partial,
                             ValueRange initial,
                             SmallVectorImpl<Operation *> *merges = nullptr) {
  Value zero = arith::ConstantIndexOp::create(b, loc, 0);
  Value one = arith::ConstantIndexOp::create(b, loc, 1);
  Value ranges =
      getValueOrCreateConstantIndexOp(b, loc, sizeOf(b, loc, partial[0], 0));
  return scf::ForOp::create(
      b, loc, zero, ranges, one, initial,
      [&](OpBuilder &body, Location, Value range, ValueRange joined) {
        SmallVector<Value> states;
        for (Value value : partial)
          states.push_back(sliceRange(body, loc, value, range));
        SmallVector<Value> next;
        for (size_t map = 0; map < states.size(); map += 3) {
          auto into = joined.slice(map, 3);
          auto merge = MergeOp::create(body, loc, into.getTypes(), states[map],
                                       states[map + 1], states[map + 2],
                                       into[0], into[1], into[2]);
          if (merges)
            merges->push_back(merge);
          llvm::append_range(next, merge.getResults());
        }
        scf::YieldOp::create(body, loc, next);
      });
}

/// A state's part that has seen no key: number `part` of (max, sum, acc).
static Value emptyState(OpBuilder &b, Location loc, unsigned part,
                        ArrayRef<OpFoldResult> sizes) {
  APFloat value = part == 0 ? APFloat::getInf(APFloat::IEEEsingle(), true)
                            : APFloat::getZero(APFloat::IEEEsingle());
  Value scalar =
      arith::ConstantOp::create(b, loc, b.getFloatAttr(b.getF32Type(), value));
  return tensor::SplatOp::create(b, loc, scalar, sizes);
}

static bool splitsKeysOnly(const llvm::SetVector<unsigned> &reductionDims) {
  return reductionDims.size() == 1 && reductionDims.contains(kKeyLoop);
}

FailureOr<SmallVector<Value>>
OnlineAttentionOp::generateInitialTensorForPartialReduction(
    OpBuilder &b, Location loc, ArrayRef<OpFoldResult> tileSizes,
    const llvm::SetVector<unsigned> &reductionDims) {
  if (getResults().empty() || getKvSplitSize() ||
      !splitsKeysOnly(reductionDims))
    return failure();
  SmallVector<Value> initial;
  for (auto [i, init] : llvm::enumerate(getDpsInits())) {
    SmallVector<OpFoldResult> sizes = {tileSizes[kKeyLoop]};
    llvm::append_range(sizes, tensor::getMixedSizes(b, loc, init));
    initial.push_back(emptyState(b, loc, i % 3, sizes));
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
  if (getResults().empty() || !hasStaticHeads(*this, sizes[1]))
    return failure();
  AttentionTile tile = makeTile(offsets, sizes);
  TileSlicer slicer(b, loc, tile, countHeadGroups(*this));
  SmallVector<Value> states;
  for (auto [i, partial] : llvm::enumerate(init)) {
    SmallVector<OpFoldResult> partialOffsets, partialSizes;
    if (failed(getPartialResultTilePosition(
            b, i, tilingStrategy, offsets, sizes, reductionDims,
            splitReductionIvs, partialOffsets, partialSizes)))
      return failure();
    states.push_back(sliceFirst(b, loc, partial, partialOffsets, partialSizes));
  }
  return tileOnto(*this, getQOffset(), slicer, states);
}

FailureOr<MergeResult> OnlineAttentionOp::mergeReductions(
    OpBuilder &b, Location loc, ValueRange partialReduce,
    const llvm::SetVector<unsigned> &reductionDims) {
  if (!splitsKeysOnly(reductionDims))
    return failure();
  MergeResult result;
  scf::ForOp loop =
      joinRanges(b, loc, partialReduce, getDpsInits(), &result.mergeOps);
  result.replacements.assign(loop.result_begin(), loop.result_end());
  return result;
}

FailureOr<RangeLoop> diffattn::expandRanges(RewriterBase &rewriter,
                                            OnlineAttentionOp op) {
  if (!op.getKvSplitSize() || op.getResults().empty())
    return failure();
  Location loc = op.getLoc();
  const int64_t kLength = OnlineAttentionOp::lengthAxis(op.getKLayout());
  OpFoldResult keys = sizeOf(rewriter, loc, op.getK1(), kLength);
  // The default of q_offset needs the number of all keys, which a tile lacks.
  Value qOffset = op.getQOffset();
  if (!qOffset && readPosition(op.getMasks()))
    qOffset = op.materializeQOffset(rewriter);
  SmallVector<Value> initial;
  for (auto [i, init] : llvm::enumerate(op.getDpsInits()))
    initial.push_back(emptyState(rewriter, loc, i % 3,
                                 tensor::getMixedSizes(rewriter, loc, init)));
  SmallVector<Range> domain = op.getIterationDomain(rewriter);
  Value zero = arith::ConstantIndexOp::create(rewriter, loc, 0);
  Value one = arith::ConstantIndexOp::create(rewriter, loc, 1);
  Value ranges = getValueOrCreateConstantIndexOp(
      rewriter, loc, sizeOf(rewriter, loc, op.getMax1(), 0));
  RangeLoop result;
  result.loop = scf::ForOp::create(
      rewriter, loc, zero, ranges, one, initial,
      [&](OpBuilder &b, Location, Value range, ValueRange partial) {
        AffineExpr d0 = b.getAffineDimExpr(0), d1 = b.getAffineDimExpr(1);
        AffineExpr size = b.getAffineConstantExpr(*op.getKvSplitSize());
        // Ranges behind the last key are empty, and begin there.
        OpFoldResult offset = affine::makeComposedFoldedAffineMin(
            b, loc, AffineMap::get(2, 0, {d0 * size, d1}, b.getContext()),
            {range, keys});
        OpFoldResult count = affine::makeComposedFoldedAffineMin(
            b, loc, AffineMap::get(2, 0, {size, d1 - d0}, b.getContext()),
            {offset, keys});
        AttentionTile tile{{domain[0].offset, domain[0].size},
                           {domain[1].offset, domain[1].size},
                           {domain[2].offset, domain[2].size},
                           {offset, count}};
        TileSlicer slicer(b, loc, tile, countHeadGroups(op));
        SmallVector<Value> states;
        for (Value value : partial)
          states.push_back(sliceRange(b, loc, value, range));
        result.op = tileOnto(op, qOffset, slicer, states).tiledOps.front();
        SmallVector<Value> next;
        for (auto [value, state] :
             llvm::zip_equal(partial, result.op->getResults())) {
          SmallVector<OpFoldResult> sizes =
              tensor::getMixedSizes(b, loc, value);
          SmallVector<OpFoldResult> offsets(sizes.size(), b.getIndexAttr(0));
          SmallVector<OpFoldResult> strides(sizes.size(), b.getIndexAttr(1));
          offsets[0] = range;
          sizes[0] = b.getIndexAttr(1);
          next.push_back(tensor::InsertSliceOp::create(
              b, loc, state, value, offsets, sizes, strides));
        }
        scf::YieldOp::create(b, loc, next);
      });
  return result;
}

FailureOr<RangeLoop> diffattn::expandRanges(RewriterBase &rewriter,
                                            MergeOp op) {
  if (!op.joinsRanges() || op.getResults().empty())
    return failure();
  SmallVector<Value> initial;
  for (auto [i, init] : llvm::enumerate(op.getDpsInits()))
    initial.push_back(
        emptyState(rewriter, op.getLoc(), i,
                   tensor::getMixedSizes(rewriter, op.getLoc(), init)));
  SmallVector<Operation *> merges;
  RangeLoop result;
  result.loop =
      joinRanges(rewriter, op.getLoc(), {op.getMax(), op.getSum(), op.getAcc()},
                 initial, &merges);
  result.op = merges.front();
  return result;
}
