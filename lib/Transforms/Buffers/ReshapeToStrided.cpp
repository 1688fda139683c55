//===- ReshapeToStrided.cpp - reshapes with several dynamic sizes -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Passes.h"
#include "DiffAttn/Transforms/Patterns.h"

#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTRESHAPETOSTRIDEDPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

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
    // The type may know less than the folded values do.
    auto [typeStrides, typeOffset] = type.getStridesAndOffset();
    auto asTyped = [&](OpFoldResult value, int64_t known) -> OpFoldResult {
      if (ShapedType::isDynamic(known))
        return getValueOrCreateConstantIndexOp(rewriter, loc, value);
      return rewriter.getIndexAttr(known);
    };
    for (auto [i, stride] : llvm::enumerate(strides))
      stride = asTyped(stride, typeStrides[i]);
    for (auto [i, size] : llvm::enumerate(sizes))
      size = asTyped(size, type.getDimSize(i));
    OpFoldResult offset =
        asTyped(source.getConstifiedMixedOffset(), typeOffset);
    rewriter.replaceOpWithNewOp<memref::ReinterpretCastOp>(
        expand, type, source.getBaseBuffer(), offset, sizes, strides);
    return success();
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
