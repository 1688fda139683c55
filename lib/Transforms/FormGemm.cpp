//===- FormGemm.cpp - contractions as matrix products -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Dialect/Linalg/IR/LinalgInterfaces.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_FORMGEMMPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
bool isGemmFloat(Type type) {
  return type.isF32() || type.isF16() || type.isBF16() || type.isF64();
}

/// The argument of the body that `value` is, through widening.
BlockArgument getWidenedArgument(Value value) {
  while (auto extend = value.getDefiningOp<arith::ExtFOp>())
    value = extend.getIn();
  return dyn_cast<BlockArgument>(value);
}

/// The two factors of `yield out + x * y`, as arguments of the body.
FailureOr<std::pair<BlockArgument, BlockArgument>>
matchMultiplyAdd(linalg::LinalgOp op) {
  Block *body = op.getBlock();
  BlockArgument out = op.getRegionOutputArgs()[0];
  auto add =
      body->getTerminator()->getOperand(0).getDefiningOp<arith::AddFOp>();
  if (!add)
    return failure();
  Value product = add.getLhs() == out ? add.getRhs() : add.getLhs();
  if (add.getLhs() != out && add.getRhs() != out)
    return failure();
  // A product in half precision that is widened was rounded before: not ours.
  auto multiply = product.getDefiningOp<arith::MulFOp>();
  if (!multiply)
    return failure();
  BlockArgument x = getWidenedArgument(multiply.getLhs());
  BlockArgument y = getWidenedArgument(multiply.getRhs());
  if (!x || !y || x == out || y == out)
    return failure();
  // Nothing else may happen in the body.
  int64_t extensions =
      llvm::count_if(body->without_terminator(),
                     [](Operation &o) { return isa<arith::ExtFOp>(o); });
  if (body->getOperations().size() != static_cast<size_t>(extensions) + 3)
    return failure();
  return std::pair(x, y);
}

/// True if the results of `map` from `first` on are the dimensions `dims`.
bool endsWith(AffineMap map, unsigned first, ArrayRef<unsigned> dims) {
  if (map.getNumResults() != first + dims.size())
    return false;
  for (auto [i, dim] : llvm::enumerate(dims))
    if (map.getResult(first + i) != getAffineDimExpr(dim, map.getContext()))
      return false;
  return true;
}

/// True if `map` is (batches..., dims) or, without batches, (dims).
bool isMatrixMap(AffineMap map, ArrayRef<unsigned> batches,
                 ArrayRef<unsigned> dims) {
  if (endsWith(map, 0, dims))
    return true;
  SmallVector<unsigned> all(batches);
  llvm::append_range(all, dims);
  return endsWith(map, 0, all);
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
    Value c = op.getDpsInits()[0];
    bool isF64 = getElementTypeOrSelf(c).isF64();
    if (llvm::any_of(op.getDpsInputs(), [&](Value value) {
          return getElementTypeOrSelf(value).isF64() != isF64;
        }))
      return rewriter.notifyMatchFailure(op, "f64 beside another type");
    auto factors = matchMultiplyAdd(op);
    if (failed(factors))
      return rewriter.notifyMatchFailure(op, "not a sum of products");
    FailureOr<linalg::ContractionDimensions> dims =
        linalg::inferContractionDims(op);
    if (failed(dims) || dims->m.size() != 1 || dims->n.size() != 1 ||
        dims->k.size() != 1 || op.getNumLoops() != 3 + dims->batch.size())
      return rewriter.notifyMatchFailure(op, "not one row, column and inner "
                                             "dimension");
    unsigned m = dims->m[0], n = dims->n[0], k = dims->k[0];
    ArrayRef<unsigned> batch = dims->batch;
    OpOperand *a = op.getDpsInputOperand(0), *b = op.getDpsInputOperand(1);
    AffineMap mapC = op.getMatchingIndexingMap(op.getDpsInitOperand(0));
    // A product whose result is stored transposed is the product of the
    // operands the other way round.
    if (mapC.getNumResults() >= 2 && mapC.getResult(mapC.getNumResults() - 1) ==
                                         rewriter.getAffineDimExpr(m)) {
      std::swap(a, b);
      std::swap(m, n);
    }
    AffineMap mapA = op.getMatchingIndexingMap(a);
    AffineMap mapB = op.getMatchingIndexingMap(b);
    SmallVector<unsigned> order(batch);
    llvm::append_range(order, ArrayRef<unsigned>{m, n});
    bool transposed = isMatrixMap(mapB, batch, {n, k});
    if (!endsWith(mapC, 0, order) || !isMatrixMap(mapA, batch, {m, k}) ||
        (!transposed && !isMatrixMap(mapB, batch, {k, n})))
      return rewriter.notifyMatchFailure(op, "rows are not rows");
    bool accumulate = true;
    auto fill = c.getDefiningOp<linalg::FillOp>();
    if (fill && (matchPattern(fill.getInputs()[0], m_AnyZeroFloat()))) {
      // The product overwrites: what was filled need not exist.
      c = fill.getOutputs()[0];
      accumulate = false;
    }
    auto gemm = GemmOp::create(rewriter, op.getLoc(), op->getResultTypes(),
                               a->get(), b->get(), c,
                               transposed ? rewriter.getUnitAttr() : nullptr,
                               accumulate ? rewriter.getUnitAttr() : nullptr);
    rewriter.replaceOp(op, gemm->getResults());
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
    auto gemm = op.getDpsInputs()[0].getDefiningOp<GemmOp>();
    Type type = round.getType();
    if (!gemm || !gemm->hasOneUse() || gemm.getAccumulate() ||
        getElementTypeOrSelf(gemm.getA()) != type ||
        getElementTypeOrSelf(gemm.getB()) != type)
      return rewriter.notifyMatchFailure(op, "no product of that type");
    auto rounded =
        GemmOp::create(rewriter, gemm.getLoc(), op->getResultTypes(),
                       gemm.getA(), gemm.getB(), op.getDpsInits()[0],
                       gemm.getTransposeBAttr(), gemm.getAccumulateAttr());
    rewriter.replaceOp(op, rounded->getResults());
    return success();
  }
};

struct FormGemmPass final : diffattn::impl::FormGemmPassBase<FormGemmPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<ContractionToGemm, RoundInGemm>(&getContext());
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace
