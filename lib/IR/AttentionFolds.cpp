//===- AttentionFolds.cpp - canonical form of diffattn.attention ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/IR/Matchers.h"
#include "mlir/IR/PatternMatch.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Drops map 2 if lambda is the constant 0.
struct DropUnusedMap final : OpRewritePattern<AttentionOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(AttentionOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.getResult())
      return rewriter.notifyMatchFailure(op, "is on memrefs");
    if (!op.hasSecondMap())
      return rewriter.notifyMatchFailure(op, "has one map already");
    if (op.getSchedulesAttr())
      return rewriter.notifyMatchFailure(op, "has kernels of two maps");
    if (op.getLambdaAct() != Activation::Identity ||
        !matchPattern(op.getLambda(), m_AnyZeroFloat()))
      return rewriter.notifyMatchFailure(op, "lambda is no constant 0");
    if (op.getLse2() || op.getO2())
      return rewriter.notifyMatchFailure(op, "map 2 is asked for itself");
    // A bias by noise head must fit the heads of map 1.
    int64_t signal = op.getSignalHeads(), noise = op.getNoiseHeads();
    bool sameHeads = ShapedType::isStatic(signal) && signal == noise;
    if (op.getBias() && !sameHeads &&
        op.getShaped(op.getBias()).getDimSize(1) != 1)
      return rewriter.notifyMatchFailure(op, "bias has noise heads");
    rewriter.modifyOpInPlace(op, [&] {
      op.getQ2Mutable().clear();
      op.getK2Mutable().clear();
      op.getLambdaMutable().clear();
      op.getSink2Mutable().clear();
      op.setIntegral(false); // 0 times the mean
    });
    return success();
  }
};

/// A value as `source * factor`.
struct Product {
  Value source;
  APFloat factor;
};

/// The product that computes `value` element by element from a tensor of its
/// type and one constant.
std::optional<Product> matchProduct(Value value) {
  if (auto mul = value.getDefiningOp<arith::MulFOp>()) {
    DenseFPElementsAttr constant;
    if (matchPattern(mul.getRhs(), m_Constant(&constant)) && constant.isSplat())
      return Product{mul.getLhs(), constant.getSplatValue<APFloat>()};
    return std::nullopt;
  }
  auto generic = value.getDefiningOp<linalg::GenericOp>();
  if (!generic || generic.getNumDpsInputs() != 1 ||
      generic.getNumResults() != 1 ||
      generic.getInputs()[0].getType() != value.getType() ||
      !llvm::all_of(generic.getIndexingMapsArray(),
                    [](AffineMap map) { return map.isIdentity(); }))
    return std::nullopt;
  Block &body = *generic.getBody();
  auto mul = body.getTerminator()->getOperand(0).getDefiningOp<arith::MulFOp>();
  APFloat factor(0.0f);
  if (!mul || mul.getLhs() != body.getArgument(0) ||
      !matchPattern(mul.getRhs(), m_ConstantFloat(&factor)))
    return std::nullopt;
  return Product{generic.getInputs()[0], factor};
}

/// `scale` takes over a power of two that the queries of each map were
/// multiplied with.
struct FoldScaleOfQueries final : OpRewritePattern<AttentionOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(AttentionOp op,
                                PatternRewriter &rewriter) const override {
    const bool hasSecond = op.hasSecondMap();
    std::optional<Product> q1 = matchProduct(op.getQ1());
    std::optional<Product> q2 = hasSecond ? matchProduct(op.getQ2()) : q1;
    if (!q1 || !q2 || !q1->factor.bitwiseIsEqual(q2->factor))
      return rewriter.notifyMatchFailure(
          op, "queries are not multiplied with one constant");
    APFloat factor = q1->factor;
    if (!factor.isFinite() || factor.isZero() ||
        factor.getExactLog2Abs() == INT_MIN)
      return rewriter.notifyMatchFailure(op, "constant is no power of two");
    bool lossy = false;
    factor.convert(APFloat::IEEEsingle(), APFloat::rmNearestTiesToEven, &lossy);
    APFloat scale = op.getScale();
    if (lossy ||
        scale.multiply(factor, APFloat::rmNearestTiesToEven) != APFloat::opOK)
      return rewriter.notifyMatchFailure(op, "new scale would be rounded");
    if (std::fabs(scale.convertToFloat()) > kMaxScale)
      return rewriter.notifyMatchFailure(op, "new scale would be too large");
    rewriter.modifyOpInPlace(op, [&] {
      op.getQ1Mutable().assign(q1->source);
      if (hasSecond)
        op.getQ2Mutable().assign(q2->source);
      op.setScaleAttr(rewriter.getFloatAttr(rewriter.getF32Type(), scale));
    });
    return success();
  }
};
} // namespace

void AttentionOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                              MLIRContext *context) {
  patterns.add<DropUnusedMap, FoldScaleOfQueries>(context);
}
