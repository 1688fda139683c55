//===- AttentionToOnline.cpp - diffattn-to-online -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/AttentionToOnline.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Transforms/Passes.h"
#include "DiffAttn/Transforms/Patterns.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Transforms/WalkPatternRewriteDriver.h"

#include <limits>

namespace mlir::diffattn {
#define GEN_PASS_DEF_ATTENTIONTOONLINEPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

static Value filled(OpBuilder &b, Location loc, ArrayRef<OpFoldResult> sizes,
                    float value) {
  Value empty = tensor::EmptyOp::create(b, loc, sizes, b.getF32Type());
  Value scalar = arith::ConstantOp::create(b, loc, b.getF32FloatAttr(value));
  return linalg::FillOp::create(b, loc, scalar, empty).getResult(0);
}

FailureOr<OnlineForm> diffattn::rewriteToOnline(RewriterBase &rewriter,
                                                AttentionOp op) {
  if (!op.getResult())
    return rewriter.notifyMatchFailure(op, "is on memrefs");
  if (!op.getSavedRows().empty())
    return rewriter.notifyMatchFailure(op, "has a destination for X or O2");
  if (op.getIntegral())
    return rewriter.notifyMatchFailure(
        op, "is integral: diffattn-decompose rewrites it");
  if (op.isPacked() || op.isPaged())
    return rewriter.notifyMatchFailure(
        op, "has packed sequences or pages: diffattn-unpack-sequences "
            "rewrites them");
  for (int64_t size :
       {op.getSignalHeads(), op.getNoiseHeads(), op.getKey1Heads(),
        op.getKey2Heads(), op.getValueHeads(), op.getValueDim()})
    if (ShapedType::isDynamic(size))
      return rewriter.notifyMatchFailure(
          op, "has a dynamic number of heads or width of values");
  Location loc = op.getLoc();
  rewriter.setInsertionPoint(op);
  OpFoldResult batch = tensor::getMixedSize(rewriter, loc, op.getQ1(), 0);
  OpFoldResult queries = tensor::getMixedSize(
      rewriter, loc, op.getQ1(), AttentionOp::lengthAxis(op.getQLayout()));
  OpFoldResult width = rewriter.getIndexAttr(op.getValueDim());
  int64_t signal = op.getSignalHeads(), noise = op.getNoiseHeads();
  int64_t accumulator2 =
      OnlineAttentionOp::accumulator2Heads(signal, noise, op.getValueHeads());
  auto state = [&](int64_t heads, bool hasWidth, float value) {
    SmallVector<OpFoldResult> sizes = {batch, rewriter.getIndexAttr(heads),
                                       queries};
    if (hasWidth)
      sizes.push_back(width);
    return filled(rewriter, loc, sizes, value);
  };
  constexpr float inf = std::numeric_limits<float>::infinity();
  SmallVector<Value> states = {state(signal, false, -inf),
                               state(signal, false, 0.0f),
                               state(signal, true, 0.0f)};
  if (op.hasSecondMap())
    states.append({state(noise, false, -inf), state(noise, false, 0.0f),
                   state(accumulator2, true, 0.0f)});

  // The online op has no total number of keys.
  Value qOffset = op.getQOffset();
  if (!qOffset && readPosition(op.getMasks()))
    qOffset = op.materializeQOffset(rewriter);
  auto online = OnlineAttentionOp::create(rewriter, loc, op, qOffset, states);
  auto finalize = FinalizeOp::create(rewriter, loc, op, online.getResults());
  rewriter.replaceOp(op, finalize.getResults());
  return OnlineForm{online, finalize};
}

namespace {
struct ToOnline final : OpRewritePattern<AttentionOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(AttentionOp op,
                                PatternRewriter &rewriter) const override {
    return rewriteToOnline(rewriter, op);
  }
};

struct AttentionToOnlinePass final
    : diffattn::impl::AttentionToOnlinePassBase<AttentionToOnlinePass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    populateAttentionToOnlinePatterns(patterns);
    walkAndApplyPatterns(getOperation(), std::move(patterns));
  }
};
} // namespace

void diffattn::populateAttentionToOnlinePatterns(RewritePatternSet &patterns) {
  patterns.add<ToOnline>(patterns.getContext());
}
