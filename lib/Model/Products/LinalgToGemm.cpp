//===- LinalgToGemm.cpp - contractions as matrix products -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ContractionOperands.h"
#include "Im2Col.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Patterns.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTLINALGTOGEMMPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// A reshape between the axes of a linalg operand and those of a matrix, or of
/// a batch of them: for each axis of the matrix, how many it is made of.
class MatrixShape {
public:
  MatrixShape(int64_t batches, ArrayRef<unsigned> outer,
              ArrayRef<unsigned> inner)
      : counts(batches, 1) {
    counts.push_back(outer.size());
    counts.push_back(inner.size());
  }
  bool isIdentity() const {
    return llvm::all_of(counts, [](int64_t count) { return count == 1; });
  }

  /// `value`, a tensor unless nothing changes, in this shape.
  Value apply(OpBuilder &b, Location loc, Value value) const {
    if (llvm::any_of(counts, [](int64_t count) { return count > 1; }))
      value = tensor::CollapseShapeOp::create(b, loc, value, merged());
    if (!llvm::is_contained(counts, 0))
      return value;
    auto type = cast<RankedTensorType>(value.getType());
    SmallVector<int64_t> shape;
    int64_t next = 0;
    for (int64_t count : counts)
      shape.push_back(count ? type.getDimSize(next++) : 1);
    SmallVector<OpFoldResult> sizes;
    next = 0;
    for (int64_t count : counts)
      sizes.push_back(count ? tensor::getMixedSize(b, loc, value, next++)
                            : OpFoldResult(b.getIndexAttr(1)));
    return tensor::ExpandShapeOp::create(
        b, loc, RankedTensorType::get(shape, type.getElementType()), value,
        units(), sizes);
  }

  /// `value`, in this shape, in that of `like`.
  Value undo(OpBuilder &b, Location loc, Value value, Value like) const {
    if (llvm::is_contained(counts, 0))
      value = tensor::CollapseShapeOp::create(b, loc, value, units());
    if (llvm::none_of(counts, [](int64_t count) { return count > 1; }))
      return value;
    auto type = cast<RankedTensorType>(like.getType())
                    .clone(getElementTypeOrSelf(value));
    return tensor::ExpandShapeOp::create(b, loc, type, value, merged(),
                                         tensor::getMixedSizes(b, loc, like));
  }

private:
  /// The axes that become one, for each that is made of any.
  SmallVector<ReassociationIndices> merged() const {
    SmallVector<ReassociationIndices> groups;
    int64_t next = 0;
    for (int64_t count : counts)
      if (count) {
        ReassociationIndices &group = groups.emplace_back();
        for (int64_t i = 0; i < count; ++i)
          group.push_back(next++);
      }
    return groups;
  }
  /// Groups of axes: each axis but the added ones, with the added ones before
  /// it, and after the last.
  SmallVector<ReassociationIndices> units() const {
    SmallVector<ReassociationIndices> groups;
    ReassociationIndices pending;
    for (auto [axis, count] : llvm::enumerate(counts)) {
      pending.push_back(axis);
      if (count)
        groups.push_back(std::exchange(pending, {}));
    }
    if (!groups.empty())
      groups.back().append(pending);
    return groups;
  }

  SmallVector<int64_t> counts;
};

/// A contraction's operands in the roles of a product.
struct MatchedProduct {
  Value a, b;
  MatrixRoles roles;
};

/// The product that reads most directly from what the operands of `op` are
/// copied from.
std::optional<MatchedProduct> matchProduct(linalg::LinalgOp op) {
  SmallVector<ContractionOperand> as =
                                      findSources(op, op.getDpsInputOperand(0)),
                                  bs =
                                      findSources(op, op.getDpsInputOperand(1)),
                                  cs = findSources(op, op.getDpsInitOperand(0));
  if (cs.empty())
    return std::nullopt;
  auto isF64 = [](Value value) { return getElementTypeOrSelf(value).isF64(); };
  for (const ContractionOperand &a : llvm::reverse(as))
    for (const ContractionOperand &b : llvm::reverse(bs)) {
      if (!isGemmFloat(getElementTypeOrSelf(a.value)) ||
          !isGemmFloat(getElementTypeOrSelf(b.value)) ||
          isF64(a.value) != isF64(cs.front().value) ||
          isF64(b.value) != isF64(cs.front().value))
        continue;
      std::optional<MatrixRoles> roles = matchMatrixRoles(a, b, cs.front());
      // A loop of a broadcast alone, which is summed over, would be lost, and a
      // diagonal is no matrix.
      if (!roles || roles->getNumLoops() != op.getNumLoops() ||
          llvm::any_of(
              std::array<const ContractionOperand *, 3>{&a, &b, &cs.front()},
              [](const ContractionOperand *operand) {
                return operand->hasLoopTwice();
              }))
        continue;
      Value left = roles->swapped ? b.value : a.value,
            right = roles->swapped ? a.value : b.value;
      return MatchedProduct{left, right, std::move(*roles)};
    }
  return std::nullopt;
}

struct ContractionToGemm final : OpInterfaceRewritePattern<linalg::LinalgOp> {
  using OpInterfaceRewritePattern::OpInterfaceRewritePattern;
  LogicalResult matchAndRewrite(linalg::LinalgOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getNumDpsInputs() != 2 || op.getNumDpsInits() != 1 ||
        !op.getNumReductionLoops())
      return rewriter.notifyMatchFailure(op, "not a product of two operands");
    for (Value operand : op->getOperands())
      if (!isa<RankedTensorType, MemRefType>(operand.getType()) ||
          !isGemmFloat(getElementTypeOrSelf(operand)))
        return rewriter.notifyMatchFailure(op, "not floating-point shapes");
    if (failed(matchMultiplyAdd(op)))
      return rewriter.notifyMatchFailure(op, "not a sum of products");
    std::optional<MatchedProduct> product = matchProduct(op);
    if (!product)
      return rewriter.notifyMatchFailure(op, "no matrices of one float type "
                                             "whose rows are rows");
    const MatrixRoles &roles = product->roles;
    SmallVector<int64_t> sizes = op.getStaticLoopRanges();
    auto isOne = [&](unsigned loop) { return sizes[loop] == 1; };
    if (!roles.batches.empty() && llvm::all_of(roles.rows, isOne) &&
        llvm::all_of(roles.columns, isOne) &&
        !llvm::all_of(roles.batches, isOne))
      return rewriter.notifyMatchFailure(op, "a sum for each batch");
    const int64_t batches = roles.batches.size();
    MatrixShape shapeA(roles.sharedA ? 0 : batches, roles.rows, roles.inner);
    MatrixShape shapeB = roles.transposeB
                             ? MatrixShape(batches, roles.columns, roles.inner)
                             : MatrixShape(batches, roles.inner, roles.columns);
    MatrixShape shapeC(batches, roles.rows, roles.columns);
    if (!op.hasPureTensorSemantics() &&
        !(shapeA.isIdentity() && shapeB.isIdentity() && shapeC.isIdentity()))
      return rewriter.notifyMatchFailure(op, "buffers of more than matrices");
    Location loc = op.getLoc();
    Value init = op.getDpsInits()[0];
    bool accumulate = true;
    auto fill = init.getDefiningOp<linalg::FillOp>();
    if (fill && (matchPattern(fill.getInputs()[0], m_AnyZeroFloat()))) {
      // The product overwrites: what was filled need not exist.
      init = fill.getOutputs()[0];
      accumulate = false;
    }
    Value a = shapeA.apply(rewriter, loc, product->a),
          b = shapeB.apply(rewriter, loc, product->b),
          c = shapeC.apply(rewriter, loc, init);
    SmallVector<Type> results;
    if (op.hasPureTensorSemantics())
      results.push_back(c.getType());
    auto gemm =
        GemmOp::create(rewriter, loc, results, a, b, c,
                       roles.transposeB ? rewriter.getUnitAttr() : nullptr,
                       accumulate ? rewriter.getUnitAttr() : nullptr);
    if (results.empty())
      rewriter.eraseOp(op);
    else
      rewriter.replaceOp(op,
                         shapeC.undo(rewriter, loc, gemm.getResult(), init));
    return success();
  }
};

/// A product whose sums in f32 nothing needs but a rounding to the type of the
/// operands is rounded as it is stored: the same numbers, half the memory.
struct RoundInGemm final : OpRewritePattern<linalg::GenericOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(linalg::GenericOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getNumDpsInputs() != 1 || op.getNumDpsInits() != 1 ||
        !op.hasPureTensorSemantics() ||
        !llvm::all_of(op.getIndexingMapsArray(),
                      [](AffineMap map) { return map.isIdentity(); }))
      return rewriter.notifyMatchFailure(op, "not one element for each");
    auto round = op.getBody()
                     ->getTerminator()
                     ->getOperand(0)
                     .getDefiningOp<arith::TruncFOp>();
    if (!round || round.getIn() != op.getBody()->getArgument(0) ||
        op.getBody()->getOperations().size() != 2)
      return rewriter.notifyMatchFailure(op, "not a rounding alone");
    // Rows of several axes are one in the product.
    Value sums = op.getDpsInputs()[0];
    auto expand = sums.getDefiningOp<tensor::ExpandShapeOp>();
    if (expand && expand->hasOneUse())
      sums = expand.getSrc();
    auto gemm = sums.getDefiningOp<GemmOp>();
    Type type = round.getType();
    if (!gemm || !gemm->hasOneUse() || gemm.getAccumulate() ||
        getElementTypeOrSelf(gemm.getA()) != type ||
        getElementTypeOrSelf(gemm.getB()) != type)
      return rewriter.notifyMatchFailure(op, "no product of that type");
    Value init = op.getDpsInits()[0];
    if (expand)
      init = tensor::CollapseShapeOp::create(rewriter, op.getLoc(), init,
                                             expand.getReassociationIndices());
    Value rounded =
        GemmOp::create(rewriter, gemm.getLoc(), init.getType(), gemm.getA(),
                       gemm.getB(), init, gemm.getTransposeBAttr(),
                       gemm.getAccumulateAttr())
            .getResult();
    if (expand)
      rounded = tensor::ExpandShapeOp::create(
          rewriter, op.getLoc(), op.getResult(0).getType(), rounded,
          expand.getReassociationIndices(),
          tensor::getMixedSizes(rewriter, op.getLoc(), op.getDpsInits()[0]));
    rewriter.replaceOp(op, rounded);
    return success();
  }
};

struct ConvertLinalgToGemmPass final
    : diffattn::impl::ConvertLinalgToGemmPassBase<ConvertLinalgToGemmPass> {
  using ConvertLinalgToGemmPassBase::ConvertLinalgToGemmPassBase;
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    populateLinalgToGemmPatterns(patterns, convolutions);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

void mlir::diffattn::populateLinalgToGemmPatterns(RewritePatternSet &patterns,
                                                  bool convolutions) {
  patterns.add<ContractionToGemm, RoundInGemm>(patterns.getContext());
  if (convolutions)
    populateIm2ColPatterns(patterns);
}
