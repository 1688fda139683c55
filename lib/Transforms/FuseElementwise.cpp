//===- FuseElementwise.cpp - fusion of element-wise generics -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_FUSEELEMENTWISEPASS
#include "DiffAttn/Transforms/Passes.h.inc"
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

bool shouldFuse(OpOperand *operand) {
  auto producer = operand->get().getDefiningOp<linalg::GenericOp>();
  auto consumer = dyn_cast<linalg::GenericOp>(operand->getOwner());
  if (!producer || !consumer)
    return true; // a fill or a constant: always a gain
  if (!producer->hasOneUse() && !onlyMoves(producer))
    return false;
  bool isBroadcast = !consumer.getMatchingIndexingMap(operand).isPermutation();
  return !isBroadcast || isCheap(producer);
}

struct FuseElementwisePass final
    : diffattn::impl::FuseElementwisePassBase<FuseElementwisePass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    linalg::populateElementwiseOpsFusionPatterns(patterns, shouldFuse);
    linalg::populateInlineConstantOperandsPatterns(patterns);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace
