//===- CopyToLoops.cpp - strided copies -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Patterns.h"

#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTCOPYTOLOOPSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
/// A strided copy as loops: else it becomes a call of `memrefCopy`, which walks
/// the buffer element by element in a library that compiled code does not link.
struct CopyToGeneric final : OpRewritePattern<memref::CopyOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(memref::CopyOp copy,
                                PatternRewriter &rewriter) const override {
    if (copy.getSource() == copy.getTarget()) {
      rewriter.eraseOp(copy);
      return success();
    }
    auto source = dyn_cast<MemRefType>(copy.getSource().getType());
    auto target = dyn_cast<MemRefType>(copy.getTarget().getType());
    if (!source || !target)
      return rewriter.notifyMatchFailure(copy, "unranked");
    if (source.getLayout().isIdentity() && target.getLayout().isIdentity())
      return rewriter.notifyMatchFailure(copy, "contiguous: a memcpy");
    int64_t rank = source.getRank();
    SmallVector<AffineMap> maps(2, rewriter.getMultiDimIdentityMap(rank));
    rewriter.replaceOpWithNewOp<linalg::GenericOp>(
        copy, copy.getSource(), copy.getTarget(), maps,
        SmallVector<utils::IteratorType>(rank, utils::IteratorType::parallel),
        [](OpBuilder &b, Location loc, ValueRange args) {
          linalg::YieldOp::create(b, loc, args[0]);
        });
    return success();
  }
};

struct ConvertCopyToLoopsPass final
    : diffattn::impl::ConvertCopyToLoopsPassBase<ConvertCopyToLoopsPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    mlir::diffattn::populateCopyToLoopsPatterns(patterns);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

void mlir::diffattn::populateCopyToLoopsPatterns(RewritePatternSet &patterns) {
  patterns.add<CopyToGeneric>(patterns.getContext());
}
