//===- FuseGatedGemms.cpp - two products and their gate become one op -----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GatedBody.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Patterns.h"
#include "DiffAttn/Model/Schedule/BatchInvariance.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/MLProgram/IR/MLProgram.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_FUSEGATEDGEMMSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

/// Whether `tensor` is a weight or a constant, which can be packed once.
static bool isWeight(Value tensor) {
  return isa_and_nonnull<LayerWeightOp, ml_program::GlobalLoadConstOp,
                         arith::ConstantOp>(tensor.getDefiningOp());
}

/// Whether `x` and `y` are one tensor, or made from it by the same reshape.
static bool isSame(Value x, Value y) {
  auto ofX = x.getDefiningOp<tensor::CollapseShapeOp>(),
       ofY = y.getDefiningOp<tensor::CollapseShapeOp>();
  return x == y || (ofX && ofY &&
                    OperationEquivalence::isEquivalentTo(
                        ofX, ofY, OperationEquivalence::IgnoreLocations));
}

namespace {
/// A product without other readers, before a reshape of its rows if they are of
/// several axes.
struct Side {
  GemmOp gemm;
  tensor::ExpandShapeOp expand;

  static std::optional<Side> find(Value value) {
    Side side;
    side.expand = value.getDefiningOp<tensor::ExpandShapeOp>();
    if (side.expand)
      value = side.expand.getSrc();
    side.gemm = value.getDefiningOp<GemmOp>();
    if (!side.gemm || !side.gemm->hasOneUse() ||
        (side.expand && !side.expand->hasOneUse()))
      return std::nullopt;
    return side;
  }
};

struct FuseGatedGemm final : OpRewritePattern<linalg::GenericOp> {
  FuseGatedGemm(MLIRContext *context, const CpuTarget &target,
                BatchInvariance choice)
      : OpRewritePattern(context), target(target), choice(choice) {}

  LogicalResult matchAndRewrite(linalg::GenericOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getNumDpsInputs() != 2 || op.getNumDpsInits() != 1 ||
        !op.hasPureTensorSemantics() ||
        op.getNumParallelLoops() != op.getNumLoops() ||
        !llvm::all_of(op.getIndexingMapsArray(),
                      [](AffineMap map) { return map.isIdentity(); }))
      return rewriter.notifyMatchFailure(op, "not one element for each");
    std::optional<GatedBody> body =
        matchGatedBody(*op.getBody(), rewriter.getBF16Type());
    if (!body)
      return rewriter.notifyMatchFailure(op, "not silu(g) * u");
    std::optional<Side> gate = Side::find(op.getDpsInputs()[body->gate]),
                        up = Side::find(op.getDpsInputs()[body->up]);
    if (!gate || !up)
      return rewriter.notifyMatchFailure(op, "not of two products alone");
    if (!areSides(gate->gemm, up->gemm))
      return rewriter.notifyMatchFailure(op, "not the same rows by two weights "
                                             "in one order");
    tensor::ExpandShapeOp expand = gate->expand;
    if (static_cast<bool>(expand) != static_cast<bool>(up->expand) ||
        (expand && expand.getReassociation() != up->expand.getReassociation()))
      return rewriter.notifyMatchFailure(op, "not reshaped alike");
    rewriter.replaceOp(op, build(rewriter, op, *gate, *up, body->rounded));
    return success();
  }

private:
  /// Whether tiles multiply both, in one order whatever the number of rows.
  bool areSides(GemmOp gate, GemmOp up) const {
    if (!isSame(gate.getA(), up.getA()) ||
        gate.getTransposeB() != up.getTransposeB() ||
        !getElementTypeOrSelf(gate.getA()).isBF16())
      return false;
    return llvm::all_of(ArrayRef<GemmOp>{gate, up}, [&](GemmOp gemm) {
      Type type = getElementTypeOrSelf(GemmOp(gemm).getB());
      return !GemmOp(gemm).getAccumulate() && type.isBF16() &&
             cast<ShapedType>(GemmOp(gemm).getC().getType()).getRank() == 2 &&
             isWeight(GemmOp(gemm).getB()) &&
             sumsInOrder(choice, type, /*isWeight=*/true, target);
    });
  }

  static Value build(PatternRewriter &rewriter, linalg::GenericOp op,
                     const Side &gate, const Side &up, GateRounding rounded) {
    GemmOp first = gate.gemm, second = up.gemm;
    tensor::ExpandShapeOp expand = gate.expand;
    Value init = op.getDpsInits()[0];
    if (expand)
      init = tensor::CollapseShapeOp::create(rewriter, op.getLoc(), init,
                                             expand.getReassociationIndices());
    Value result =
        GatedGemmOp::create(rewriter, op.getLoc(), init.getType(), first.getA(),
                            first.getB(), second.getB(), init,
                            first.getTransposeB(), rounded)
            .getResult();
    if (expand)
      result = tensor::ExpandShapeOp::create(
          rewriter, op.getLoc(), op.getResult(0).getType(), result,
          expand.getReassociationIndices(),
          tensor::getMixedSizes(rewriter, op.getLoc(), op.getDpsInits()[0]));
    return result;
  }

  CpuTarget target;
  BatchInvariance choice;
};

struct FuseGatedGemmsPass final
    : diffattn::impl::FuseGatedGemmsPassBase<FuseGatedGemmsPass> {
  using FuseGatedGemmsPassBase::FuseGatedGemmsPassBase;

  void runOnOperation() override {
    llvm::Expected<CpuTarget> target = getCpuTarget(isa, /*prefetchBytes=*/-1);
    if (!target) {
      getOperation()->emitError() << llvm::toString(target.takeError());
      return signalPassFailure();
    }
    // Products go to the runtime's tiles by this alone.
    if (!target->hasTiles())
      return;
    RewritePatternSet patterns(&getContext());
    populateFuseGatedGemmsPatterns(patterns, *target, batchInvariant);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

void mlir::diffattn::populateFuseGatedGemmsPatterns(
    RewritePatternSet &patterns, const CpuTarget &target,
    BatchInvariance batchInvariance) {
  patterns.add<FuseGatedGemm>(patterns.getContext(), target, batchInvariance);
}
