//===- FuseElementwise.cpp - fusion of element-wise generics -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Patterns.h"

#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_FUSEELEMENTWISEPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
/// Moves elements without computing: a broadcast, a transpose, a cast.
bool onlyMoves(linalg::GenericOp op) {
  return llvm::all_of(op.getBody()->without_terminator(), [](Operation &inner) {
    return isa<arith::ConstantOp, arith::ExtFOp, linalg::IndexOp>(inner);
  });
}

/// Cheap enough to be computed again where its value is broadcast.
bool isCheap(linalg::GenericOp op) {
  return llvm::all_of(op.getBody()->without_terminator(), [](Operation &inner) {
    return !isa<arith::DivFOp, arith::DivSIOp, arith::RemSIOp,
                tensor::ExtractOp>(inner) &&
           !isa_and_nonnull<math::MathDialect>(inner.getDialect());
  });
}

bool readsInit(linalg::GenericOp op) {
  return llvm::any_of(op.getDpsInitsMutable(), [&](OpOperand &init) {
    return op.payloadUsesValueFromOperand(&init);
  });
}

bool shouldFuse(OpOperand *operand) {
  auto producer = operand->get().getDefiningOp<linalg::GenericOp>();
  auto consumer = dyn_cast<linalg::GenericOp>(operand->getOwner());
  if (!producer || !consumer)
    return true; // a fill or a constant: always a gain
  if (readsInit(producer))
    return false; // until it is an input
  // Fusing i floordiv 2 with a read at 2 i would leave the claim that the loop
  // is as long as the operand, which it is not.
  auto isProjected = [](AffineMap map) {
    return map.isProjectedPermutation(/*allowZeroInResults=*/true);
  };
  if (!isProjected(consumer.getMatchingIndexingMap(operand)) &&
      !llvm::all_of(producer.getIndexingMapsArray(), isProjected))
    return false;
  if (!producer->hasOneUse() && !onlyMoves(producer))
    return false;
  bool isBroadcast = !consumer.getMatchingIndexingMap(operand).isPermutation();
  return !isBroadcast || isCheap(producer);
}

/// Whether `value` is a part of a larger tensor, seen through reshapes.
bool isPartOfTensor(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (isa<tensor::ExtractSliceOp>(op))
      return true;
    if (!isa<tensor::ExpandShapeOp, tensor::CollapseShapeOp>(op))
      return false;
    value = op->getOperand(0);
  }
  return false;
}

/// Whether an element-wise op writes every element of the init, and each once.
bool isOverwritten(linalg::GenericOp op, OpOperand &init) {
  return op.getMatchingIndexingMap(&init).isPermutation();
}

/// Frees an element-wise op from an init that it does not read. Upstream's
/// pattern does so for every init; one that is a part of a larger tensor is the
/// result's destination, and without it the result would be copied there.
struct DropUnreadInit final : OpRewritePattern<linalg::GenericOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(linalg::GenericOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.hasPureTensorSemantics() ||
        op.getNumParallelLoops() != op.getNumLoops())
      return rewriter.notifyMatchFailure(op, "not element by element");
    SmallVector<std::pair<OpOperand *, Value>> replaced;
    for (OpOperand &init : op.getDpsInitsMutable()) {
      Value value = init.get();
      if (op.payloadUsesValueFromOperand(&init) || !isOverwritten(op, init) ||
          value.getDefiningOp<tensor::EmptyOp>() || isPartOfTensor(value) ||
          !isa<RankedTensorType>(value.getType()))
        continue;
      replaced.push_back({&init, value});
    }
    if (replaced.empty())
      return rewriter.notifyMatchFailure(op, "every init is read or a place");
    for (auto &[init, value] : replaced) {
      Value empty = tensor::EmptyOp::create(
          rewriter, op.getLoc(),
          tensor::getMixedSizes(rewriter, op.getLoc(), value),
          getElementTypeOrSelf(value));
      rewriter.modifyOpInPlace(op, [&, init = init] { init->set(empty); });
    }
    return success();
  }
};

/// An element-wise op takes what it reads of its inits as inputs, where it may
/// be fused with what reads its result: upstream's fusion keeps such an init as
/// one, and a consumer that runs over more than the producer would add to it
/// again and again.
struct ReadInitsAsInputs final : OpRewritePattern<linalg::GenericOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(linalg::GenericOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.hasPureTensorSemantics() ||
        op.getNumParallelLoops() != op.getNumLoops() ||
        llvm::none_of(op->getUsers(), llvm::IsaPred<linalg::GenericOp>))
      return rewriter.notifyMatchFailure(op, "nothing to be fused with");
    SmallVector<OpOperand *> read;
    for (OpOperand &init : op.getDpsInitsMutable())
      if (op.payloadUsesValueFromOperand(&init) && isOverwritten(op, init))
        read.push_back(&init);
    if (read.empty())
      return rewriter.notifyMatchFailure(op, "no init is read");
    const unsigned inputs = op.getNumDpsInputs();
    SmallVector<Value> ins(op.getInputs()), outs(op.getOutputs());
    SmallVector<AffineMap> maps = op.getIndexingMapsArray();
    for (auto [number, init] : llvm::enumerate(read)) {
      ins.push_back(init->get());
      maps.insert(maps.begin() + inputs + number,
                  op.getMatchingIndexingMap(init));
      outs[init->getOperandNumber() - inputs] = tensor::EmptyOp::create(
          rewriter, op.getLoc(),
          tensor::getMixedSizes(rewriter, op.getLoc(), init->get()),
          getElementTypeOrSelf(init->get()));
    }
    auto made = linalg::GenericOp::create(
        rewriter, op.getLoc(), op->getResultTypes(), ins, outs, maps,
        op.getIteratorTypesArray(), /*bodyBuild=*/nullptr,
        linalg::getPrunedAttributeList(op));
    Block *body = op.getBody();
    rewriter.inlineRegionBefore(op.getRegion(), made.getRegion(),
                                made.getRegion().end());
    for (auto [number, init] : llvm::enumerate(read)) {
      BlockArgument old = body->getArgument(init->getOperandNumber() + number);
      BlockArgument value =
          body->insertArgument(inputs + number, old.getType(), old.getLoc());
      rewriter.replaceAllUsesWith(
          body->getArgument(init->getOperandNumber() + number + 1), value);
    }
    rewriter.replaceOp(op, made.getResults());
    return success();
  }
};

/// Fusion may leave an op without operands or loops that asserts something: its
/// body moves out of it.
struct InlineWithoutOperands final : OpRewritePattern<linalg::GenericOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(linalg::GenericOp op,
                                PatternRewriter &rewriter) const override {
    if (op->getNumOperands() != 0 || op.getNumLoops() != 0)
      return rewriter.notifyMatchFailure(op, "it has operands");
    Block *body = op.getBody();
    rewriter.eraseOp(body->getTerminator());
    rewriter.inlineBlockBefore(body, op);
    rewriter.eraseOp(op);
    return success();
  }
};

struct FuseElementwisePass final
    : diffattn::impl::FuseElementwisePassBase<FuseElementwisePass> {
  void runOnOperation() override {
    // Readers of a concatenation are split once fusion has ended: it cannot
    // fuse an op with parts of another.
    for (bool split : {false, true}) {
      RewritePatternSet patterns(&getContext());
      linalg::populateElementwiseOpsFusionPatterns(patterns, shouldFuse);
      linalg::populateInlineConstantOperandsPatterns(patterns);
      patterns.add<DropUnreadInit, InlineWithoutOperands, ReadInitsAsInputs>(
          &getContext());
      if (split)
        diffattn::populateSplitAtConcatenationsPatterns(patterns);
      FrozenRewritePatternSet chosen(
          std::move(patterns),
          /*disabledPatternLabels=*/{
              "(anonymous namespace)::RemoveOutsDependency"});
      if (failed(applyPatternsGreedily(getOperation(), chosen)))
        return signalPassFailure();
    }
  }
};
} // namespace
