//===- SplitAtConcatenations.cpp - element-wise ops on parts -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A rotary embedding turns the halves of each head: importers write the turned
// head as a concatenation of two parts that an element-wise op then reads. One
// op for each half reads the parts where they lie, and nothing is concatenated.
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Patterns.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Two tensors side by side along `axis`, the second one from `middle` on.
struct Concatenation {
  Value parts[2];
  int64_t axis, middle, end;
};

bool hasUnitStrides(OffsetSizeAndStrideOpInterface op) {
  return llvm::all_of(op.getMixedStrides(),
                      [](OpFoldResult step) { return isOneInteger(step); });
}

/// Where `insert` writes on `axis`, if it writes the whole of all other axes of
/// `whole`.
std::optional<int64_t> getPlace(tensor::InsertSliceOp insert,
                                ArrayRef<OpFoldResult> whole, int64_t axis) {
  if (insert.getSourceType().getRank() != insert.getType().getRank() ||
      !hasUnitStrides(insert))
    return std::nullopt;
  for (auto [k, offset, count] :
       llvm::enumerate(insert.getMixedOffsets(), insert.getMixedSizes()))
    if (int64_t(k) != axis &&
        (!isZeroInteger(offset) || !isEqualConstantIntOrValue(count, whole[k])))
      return std::nullopt;
  return getConstantIntValue(insert.getMixedOffsets()[axis]);
}

std::optional<Concatenation> getConcatenation(Value value) {
  auto second = value.getDefiningOp<tensor::InsertSliceOp>();
  auto first = second ? second.getDest().getDefiningOp<tensor::InsertSliceOp>()
                      : nullptr;
  auto whole =
      first ? first.getDest().getDefiningOp<tensor::EmptyOp>() : nullptr;
  if (!whole || !second->hasOneUse())
    return std::nullopt;
  SmallVector<OpFoldResult> sizes = whole.getMixedSizes();
  for (int64_t axis = 0; axis < whole.getType().getRank(); ++axis) {
    std::optional<int64_t> start = getPlace(first, sizes, axis),
                           middle = getPlace(second, sizes, axis);
    const int64_t end = whole.getType().getDimSize(axis);
    if (start == 0 && middle && *middle > 0 && *middle < end &&
        first.getSourceType().getDimSize(axis) == *middle &&
        second.getSourceType().getDimSize(axis) == end - *middle)
      return Concatenation{
          {first.getSource(), second.getSource()}, axis, *middle, end};
  }
  return std::nullopt;
}

/// `count` elements of `axis` of `value` from `start` on.
Value sliceOf(OpBuilder &b, Location loc, Value value, int64_t axis,
              int64_t start, int64_t count) {
  SmallVector<OpFoldResult> sizes = tensor::getMixedSizes(b, loc, value);
  SmallVector<OpFoldResult> offsets(sizes.size(), b.getIndexAttr(0)),
      strides(sizes.size(), b.getIndexAttr(1));
  offsets[axis] = b.getIndexAttr(start);
  sizes[axis] = b.getIndexAttr(count);
  return tensor::ExtractSliceOp::create(b, loc, value, offsets, sizes, strides);
}

/// An element-wise op with one result in the order of its loops, which reads
/// neither positions nor what was in the result before.
bool isPlain(linalg::GenericOp op) {
  return op.hasPureTensorSemantics() && op.getNumDpsInits() == 1 &&
         op.getNumParallelLoops() == op.getNumLoops() &&
         !op.hasIndexSemantics() &&
         !op.payloadUsesValueFromOperand(op.getDpsInitOperand(0)) &&
         op.getIndexingMapsArray().back().isIdentity() &&
         llvm::all_of(op.getIndexingMapsArray(), [](AffineMap map) {
           return map.isProjectedPermutation(/*allowZeroInResults=*/true);
         });
}

struct SplitAtConcatenation final : OpRewritePattern<linalg::GenericOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(linalg::GenericOp op,
                                PatternRewriter &rewriter) const override {
    if (!isPlain(op))
      return rewriter.notifyMatchFailure(op, "not a plain element-wise op");
    for (OpOperand *operand : op.getDpsInputOperands())
      if (auto concatenation = getConcatenation(operand->get());
          concatenation && runsOver(op, *operand, concatenation->axis)) {
        split(op, *operand, *concatenation, rewriter);
        return success();
      }
    return rewriter.notifyMatchFailure(op, "no operand is a concatenation");
  }

private:
  /// Whether a loop runs over `axis` of `operand`; else one place is read.
  static bool runsOver(linalg::GenericOp op, OpOperand &operand, int64_t axis) {
    return isa<AffineDimExpr>(
        op.getMatchingIndexingMap(&operand).getResult(axis));
  }

  static void split(linalg::GenericOp op, OpOperand &concatenated,
                    const Concatenation &parts, PatternRewriter &rewriter) {
    Location loc = op.getLoc();
    auto axisOf = [&](OpOperand &operand) {
      return op.getMatchingIndexingMap(&operand).getResultPosition(
          op.getMatchingIndexingMap(&concatenated).getResult(parts.axis));
    };
    OpOperand &init = *op.getDpsInitOperand(0);
    const int64_t axis = *axisOf(init);
    Value whole = init.get();
    for (int side : {0, 1}) {
      const int64_t start = side ? parts.middle : 0,
                    count = side ? parts.end - parts.middle : parts.middle;
      SmallVector<Value> inputs;
      for (OpOperand *input : op.getDpsInputOperands()) {
        std::optional<unsigned> place = axisOf(*input);
        inputs.push_back(
            input == &concatenated ? parts.parts[side]
            : place ? sliceOf(rewriter, loc, input->get(), *place, start, count)
                    : input->get());
      }
      Value part = sliceOf(rewriter, loc, whole, axis, start, count);
      auto half = linalg::GenericOp::create(
          rewriter, loc, part.getType(), inputs, part,
          op.getIndexingMapsArray(), op.getIteratorTypesArray());
      rewriter.cloneRegionBefore(op.getRegion(), half.getRegion(),
                                 half.getRegion().end());
      SmallVector<OpFoldResult> sizes =
          tensor::getMixedSizes(rewriter, loc, part);
      SmallVector<OpFoldResult> offsets(sizes.size(), rewriter.getIndexAttr(0)),
          strides(sizes.size(), rewriter.getIndexAttr(1));
      offsets[axis] = rewriter.getIndexAttr(start);
      whole = tensor::InsertSliceOp::create(rewriter, loc, half.getResult(0),
                                            whole, offsets, sizes, strides);
    }
    rewriter.replaceOp(op, whole);
  }
};

/// A part of a transpose or a broadcast that only element-wise ops read, as the
/// transpose of a part: fusion then takes it into these.
struct MovePart final : OpRewritePattern<tensor::ExtractSliceOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(tensor::ExtractSliceOp part,
                                PatternRewriter &rewriter) const override {
    auto mover = part.getSource().getDefiningOp<linalg::GenericOp>();
    if (!mover || mover.getNumDpsInputs() != 1 || !isPlain(mover) ||
        !llvm::hasSingleElement(*mover.getBody()) ||
        mover.getBody()->getTerminator()->getOperand(0) !=
            mover.getBody()->getArgument(0))
      return rewriter.notifyMatchFailure(part, "not of what only moves");
    if (part.getType().getRank() != part.getSourceType().getRank() ||
        !hasUnitStrides(part) ||
        !llvm::all_of(part->getUsers(), [](Operation *user) {
          auto reader = dyn_cast<linalg::GenericOp>(user);
          return reader && isPlain(reader);
        }))
      return rewriter.notifyMatchFailure(part, "read by other ops");
    Location loc = part.getLoc();
    SmallVector<OpFoldResult> offsets, sizes;
    AffineMap map = mover.getIndexingMapsArray().front();
    for (AffineExpr at : map.getResults()) {
      auto dim = dyn_cast<AffineDimExpr>(at);
      const OpFoldResult zero = rewriter.getIndexAttr(0),
                         one = rewriter.getIndexAttr(1);
      offsets.push_back(dim ? part.getMixedOffsets()[dim.getPosition()] : zero);
      sizes.push_back(dim ? part.getMixedSizes()[dim.getPosition()] : one);
    }
    SmallVector<OpFoldResult> strides(sizes.size(), rewriter.getIndexAttr(1));
    Value input = tensor::ExtractSliceOp::create(
        rewriter, loc, mover.getInputs()[0], offsets, sizes, strides);
    Value init =
        tensor::EmptyOp::create(rewriter, loc, part.getMixedSizes(),
                                getElementTypeOrSelf(mover.getResult(0)));
    auto moved = linalg::GenericOp::create(rewriter, loc, part.getType(), input,
                                           init, mover.getIndexingMapsArray(),
                                           mover.getIteratorTypesArray());
    rewriter.cloneRegionBefore(mover.getRegion(), moved.getRegion(),
                               moved.getRegion().end());
    rewriter.replaceOp(part, moved.getResults());
    return success();
  }
};
} // namespace

void mlir::diffattn::populateSplitAtConcatenationsPatterns(
    RewritePatternSet &patterns) {
  patterns.add<SplitAtConcatenation, MovePart>(patterns.getContext());
}
