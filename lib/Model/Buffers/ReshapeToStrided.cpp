//===- ReshapeToStrided.cpp - views that upstream cannot take -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Patterns.h"

#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTRESHAPETOSTRIDEDPASS
#define GEN_PASS_DEF_CONVERTSUBVIEWTOSTRIDEDPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

/// Puts a view of all of `source`'s buffer in the place of `op`. Fewer sizes
/// and strides may be static in the type than in the folded values.
static void reinterpret(PatternRewriter &rewriter, Operation *op,
                        MemRefType type,
                        memref::ExtractStridedMetadataOp source,
                        OpFoldResult offset, SmallVector<OpFoldResult> sizes,
                        SmallVector<OpFoldResult> strides) {
  auto [typeStrides, typeOffset] = type.getStridesAndOffset();
  auto asTyped = [&](OpFoldResult value, int64_t known) -> OpFoldResult {
    if (ShapedType::isDynamic(known))
      return getValueOrCreateConstantIndexOp(rewriter, op->getLoc(), value);
    return rewriter.getIndexAttr(known);
  };
  for (auto [i, stride] : llvm::enumerate(strides))
    stride = asTyped(stride, typeStrides[i]);
  for (auto [i, size] : llvm::enumerate(sizes))
    size = asTyped(size, type.getDimSize(i));
  rewriter.replaceOpWithNewOp<memref::ReinterpretCastOp>(
      op, type, source.getBaseBuffer(), asTyped(offset, typeOffset), sizes,
      strides);
}

namespace {
struct ExpandToReinterpret final : OpRewritePattern<memref::ExpandShapeOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(memref::ExpandShapeOp expand,
                                PatternRewriter &rewriter) const override {
    MemRefType type = expand.getResultType();
    SmallVector<ReassociationIndices> groups = expand.getReassociationIndices();
    bool crashesUpstream =
        llvm::any_of(groups, [&](const ReassociationIndices &group) {
          return llvm::count_if(group, [&](int64_t i) {
                   return type.isDynamicDim(i);
                 }) > 1;
        });
    if (!crashesUpstream)
      return rewriter.notifyMatchFailure(expand,
                                         "expand-strided-metadata takes it");

    Location loc = expand.getLoc();
    auto source = memref::ExtractStridedMetadataOp::create(rewriter, loc,
                                                           expand.getSrc());
    SmallVector<OpFoldResult> sizes = expand.getMixedOutputShape();
    SmallVector<OpFoldResult> strides(sizes.size());
    SmallVector<OpFoldResult> sourceStrides =
        source.getConstifiedMixedStrides();
    AffineExpr s0 = rewriter.getAffineSymbolExpr(0),
               s1 = rewriter.getAffineSymbolExpr(1);
    for (auto [n, group] : llvm::enumerate(groups)) {
      OpFoldResult stride = sourceStrides[n];
      for (int64_t i : llvm::reverse(group)) {
        strides[i] = stride;
        stride = affine::makeComposedFoldedAffineApply(rewriter, loc, s0 * s1,
                                                       {stride, sizes[i]});
      }
    }
    reinterpret(rewriter, expand, type, source,
                source.getConstifiedMixedOffset(), sizes, strides);
    return success();
  }
};

struct SubviewToReinterpret final : OpRewritePattern<memref::SubViewOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(memref::SubViewOp view,
                                PatternRewriter &rewriter) const override {
    MemRefType type = view.getType();
    ArrayRef<int64_t> sizes = view.getStaticSizes();
    const size_t dropped = sizes.size() - type.getRank();
    bool crashesUpstream = dropped &&
                           llvm::count(sizes, 1) > int64_t(dropped) &&
                           llvm::any_of(view.getStaticStrides(),
                                        [](int64_t step) { return step != 1; });
    if (!crashesUpstream)
      return rewriter.notifyMatchFailure(view, "upstream takes it");

    Location loc = view.getLoc();
    auto source = memref::ExtractStridedMetadataOp::create(rewriter, loc,
                                                           view.getSource());
    AffineExpr s0 = rewriter.getAffineSymbolExpr(0),
               s1 = rewriter.getAffineSymbolExpr(1),
               s2 = rewriter.getAffineSymbolExpr(2);
    OpFoldResult offset = source.getConstifiedMixedOffset();
    SmallVector<OpFoldResult> keptSizes, keptStrides;
    for (auto [begin, size, step, stride, known] :
         llvm::zip_equal(view.getMixedOffsets(), view.getMixedSizes(),
                         view.getMixedStrides(),
                         source.getConstifiedMixedStrides(), sizes)) {
      offset = affine::makeComposedFoldedAffineApply(
          rewriter, loc, s0 + s1 * s2, {offset, begin, stride});
      // Which of several sizes of 1 is left out makes no difference.
      const int64_t next = keptSizes.size();
      if (next == type.getRank() || (known == 1 && type.getDimSize(next) != 1))
        continue;
      keptSizes.push_back(size);
      keptStrides.push_back(affine::makeComposedFoldedAffineApply(
          rewriter, loc, s0 * s1, {stride, step}));
    }
    reinterpret(rewriter, view, type, source, offset, keptSizes, keptStrides);
    return success();
  }
};

struct ConvertSubviewToStridedPass final
    : diffattn::impl::ConvertSubviewToStridedPassBase<
          ConvertSubviewToStridedPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<SubviewToReinterpret>(&getContext());
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};

struct ConvertReshapeToStridedPass final
    : diffattn::impl::ConvertReshapeToStridedPassBase<
          ConvertReshapeToStridedPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    mlir::diffattn::populateReshapeToStridedPatterns(patterns);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

void mlir::diffattn::populateReshapeToStridedPatterns(
    RewritePatternSet &patterns) {
  patterns.add<ExpandToReinterpret>(patterns.getContext());
}
