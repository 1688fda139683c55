//===- DecomposePass.cpp - diffattn-decompose -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Conversion/DiffAttnToLinalg.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/IR/OnlineRanges.h"
#include "DiffAttn/IR/ScheduleCases.h"
#include "DiffAttn/Transforms/Patterns.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Remarks.h"
#include "mlir/Transforms/WalkPatternRewriteDriver.h"
#include "llvm/ADT/StringSwitch.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_DECOMPOSEPASS
#include "DiffAttn/Conversion/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

static void replace(RewriterBase &rewriter, Operation *op, ValueRange results) {
  if (op->getNumResults() > 0)
    rewriter.replaceOp(op, results);
  else
    rewriter.eraseOp(op);
}

static bool hasRanges(OnlineAttentionOp op) {
  return op.getKvSplitSize().has_value();
}
static bool hasRanges(MergeOp op) { return op.joinsRanges(); }
static bool hasRanges(Operation *) { return false; }

namespace {
/// Replaces an op by what `decompose` builds before it.
template <typename OpTy, auto decompose>
struct DecomposeOp final : OpRewritePattern<OpTy> {
  DecomposeOp(MLIRContext *context,
              std::function<bool(Operation *)> shouldDecompose)
      : OpRewritePattern<OpTy>(context),
        shouldDecompose(std::move(shouldDecompose)) {}

  LogicalResult matchAndRewrite(OpTy op,
                                PatternRewriter &rewriter) const override {
    if (!shouldDecompose(op))
      return rewriter.notifyMatchFailure(
          op, "has a schedule that lowers it directly");
    if (hasRanges(op))
      return rewriter.notifyMatchFailure(op, "has ranges of keys");
    replace(rewriter, op, SmallVector<Value>{decompose(rewriter, op)});
    return success();
  }

  std::function<bool(Operation *)> shouldDecompose;
};

/// Integral attention by way of the ops on states.
struct DecomposeIntegral final : OpRewritePattern<AttentionOp> {
  DecomposeIntegral(MLIRContext *context,
                    std::function<bool(Operation *)> shouldDecompose)
      : OpRewritePattern(context, /*benefit=*/2),
        shouldDecompose(std::move(shouldDecompose)) {}

  LogicalResult matchAndRewrite(AttentionOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.getIntegral())
      return rewriter.notifyMatchFailure(op, "is not integral");
    if (!shouldDecompose(op))
      return rewriter.notifyMatchFailure(
          op, "has a schedule that lowers it directly");
    auto [online, finalize] = rewriteIntegral(rewriter, op);
    replace(rewriter, op, finalize->getResults());
    rewriter.setInsertionPoint(online);
    replace(rewriter, online, decomposeOnlineAttention(rewriter, online));
    rewriter.setInsertionPoint(finalize);
    replace(rewriter, finalize, decomposeFinalize(rewriter, finalize));
    return success();
  }

  std::function<bool(Operation *)> shouldDecompose;
};

/// An op with an axis of ranges of keys, as a loop over them.
template <typename OpTy, auto decompose>
struct DecomposeRanges final : OpRewritePattern<OpTy> {
  DecomposeRanges(MLIRContext *context,
                  std::function<bool(Operation *)> shouldDecompose)
      : OpRewritePattern<OpTy>(context, /*benefit=*/2),
        shouldDecompose(std::move(shouldDecompose)) {}

  LogicalResult matchAndRewrite(OpTy op,
                                PatternRewriter &rewriter) const override {
    if (!hasRanges(op))
      return rewriter.notifyMatchFailure(op, "has no ranges of keys");
    if (!shouldDecompose(op))
      return rewriter.notifyMatchFailure(
          op, "has a schedule that lowers it directly");
    FailureOr<RangeLoop> expanded = expandRanges(rewriter, op);
    if (failed(expanded))
      return rewriter.notifyMatchFailure(op, "has ranges of keys in memrefs");
    replace(rewriter, op, expanded->loop.getResults());
    auto one = cast<OpTy>(expanded->op);
    rewriter.setInsertionPoint(one);
    replace(rewriter, one, decompose(rewriter, one));
    return success();
  }

  std::function<bool(Operation *)> shouldDecompose;
};

struct DecomposePass final : diffattn::impl::DecomposePassBase<DecomposePass> {
  using DecomposePassBase::DecomposePassBase;

  void runOnOperation() override {
    std::optional<ScheduleTarget> counted =
        llvm::StringSwitch<std::optional<ScheduleTarget>>(target)
            .Case("any", ScheduleTarget::Any)
            .Case("cpu", ScheduleTarget::CPU)
            .Case("gpu", ScheduleTarget::GPU)
            .Default(std::nullopt);
    if (!counted) {
      getOperation()->emitError()
          << "expected target to be cpu, gpu or any, but got " << target;
      return signalPassFailure();
    }
    auto shouldDecompose = [&](Operation *op) -> bool {
      // CPUs have a lowering of its own for it, and GPUs refuse it.
      if (isa<QuantizedGemmOp>(op))
        return all;
      if (auto backward = dyn_cast<AttentionBackwardOp>(op); backward && !all) {
        ScheduleAttrInterface schedule = findSchedule(backward, *counted);
        return !schedule || isa<LinalgAttr>(schedule);
      }
      auto attention = dyn_cast<AttentionOp>(op);
      if (all || !attention)
        return true;
      SmallVector<ScheduleCase> cases = getScheduleCases(attention, *counted);
      return cases.empty() || (isa<LinalgAttr>(cases.front().schedule) &&
                               cases.front().isAlways());
    };
    // A schedule of linalg had a remark when it was chosen.
    if (!all)
      getOperation()->walk([&](AttentionBackwardOp op) {
        if (findSchedule(op, *counted))
          return;
        remark::missed(
            op.getLoc(),
            remark::RemarkOpts::name("Decompose").category("diffattn-schedule"))
            << remark::reason("no schedule names a kernel")
            << remark::metric("Summary",
                              "the gradients of attention are computed by "
                              "loops over maps of Tq x Tk in memory");
      });
    // Each step meets the ops that the one before it makes.
    RewritePatternSet sequences(&getContext()), pages(&getContext()),
        patterns(&getContext());
    populateUnpackSequencesPatterns(sequences, shouldDecompose);
    populateGatherPagesPatterns(pages, shouldDecompose);
    populateDecomposePatterns(patterns, shouldDecompose);
    for (RewritePatternSet *step : {&sequences, &pages, &patterns})
      walkAndApplyPatterns(getOperation(), std::move(*step));
    WalkResult walk = getOperation()->walk([](Operation *op) {
      auto online = dyn_cast<OnlineAttentionOp>(op);
      auto merge = dyn_cast<MergeOp>(op);
      if (!(online && hasRanges(online)) && !(merge && hasRanges(merge)))
        return WalkResult::advance();
      op->emitOpError() << "expected tensors where states have an axis of "
                           "ranges, but got memrefs";
      return WalkResult::interrupt();
    });
    if (walk.wasInterrupted())
      signalPassFailure();
  }
};
} // namespace

void mlir::diffattn::populateDecomposePatterns(
    RewritePatternSet &patterns,
    std::function<bool(Operation *)> shouldDecompose) {
  MLIRContext *context = patterns.getContext();
  patterns.add<DecomposeIntegral, DecomposeOp<AttentionOp, decomposeAttention>,
               DecomposeOp<AttentionBackwardOp, decomposeAttentionBackward>,
               DecomposeOp<FinalizeOp, decomposeFinalize>,
               DecomposeOp<MergeOp, decomposeMerge>,
               DecomposeOp<OnlineAttentionOp, decomposeOnlineAttention>,
               DecomposeOp<GatedGemmOp, decomposeGatedGemm>,
               DecomposeOp<QuantizedGemmOp, decomposeQuantizedGemm>,
               DecomposeRanges<OnlineAttentionOp, decomposeOnlineAttention>,
               DecomposeRanges<MergeOp, decomposeMerge>>(context,
                                                         shouldDecompose);
}
