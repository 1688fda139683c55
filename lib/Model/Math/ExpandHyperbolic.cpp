//===- ExpandHyperbolic.cpp - hyperbolic functions without a library ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ExpandFunctions.h"
#include "FloatBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Functions of one f32, odd ones by their value for |x|. By expm1 and log1p,
/// which keep the digits near 0, and with squares of large numbers left out,
/// which overflow: upstream's expansions have neither.
template <typename Op>
struct ExpandHyperbolic final : OpRewritePattern<Op> {
  using OpRewritePattern<Op>::OpRewritePattern;
  LogicalResult matchAndRewrite(Op op,
                                PatternRewriter &rewriter) const override {
    if (!op.getType().isF32())
      return rewriter.notifyMatchFailure(op, "not a scalar of f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    rewriter.replaceOp(op, expand(b, op.getOperand()));
    return success();
  }

private:
  static Value expand(ImplicitLocOpBuilder &b, Value x) {
    const FloatBuilder f{b, b.getF32Type()};
    auto ifAbove = [&](Value u, double limit, Value then, Value other) {
      Value isAbove =
          f.compare(arith::CmpFPredicate::OGT, u, f.constant(limit));
      return f.choose(isAbove, then, other);
    };
    auto log1p = [&](Value u) -> Value { return math::Log1pOp::create(b, u); };
    Value size = math::AbsFOp::create(b, x), one = f.constant(1.0f),
          half = f.constant(0.5f);
    auto logOfDouble = [&](Value u) {
      return f.add(math::LogOp::create(b, u), f.constant(0.69314718055994531f));
    };
    Value result;
    if constexpr (std::is_same_v<Op, math::SinhOp> ||
                  std::is_same_v<Op, math::CoshOp>) {
      constexpr bool isSine = std::is_same_v<Op, math::SinhOp>;
      Value root = math::ExpOp::create(b, f.multiply(size, half));
      Value large = f.multiply(f.multiply(root, half), root);
      Value less = math::ExpM1Op::create(b, size), whole = f.add(less, one);
      Value near = isSine ? f.add(less, f.divide(less, whole))
                          : f.add(whole, f.divide(one, whole));
      result = ifAbove(size, 80.0f, large, f.multiply(near, half));
      if (!isSine)
        return result;
    } else if constexpr (std::is_same_v<Op, math::AsinhOp>) {
      Value square = f.multiply(size, size);
      Value more = f.add(one, math::SqrtOp::create(b, f.add(square, one)));
      result = ifAbove(size, 0x1p+40f, logOfDouble(size),
                       log1p(f.add(size, f.divide(square, more))));
    } else if constexpr (std::is_same_v<Op, math::AcoshOp>) {
      Value beyond = f.add(x, f.constant(-1.0f));
      Value square = f.multiply(beyond, f.add(beyond, f.constant(2.0f)));
      Value near = log1p(f.add(beyond, math::SqrtOp::create(b, square)));
      Value value = ifAbove(x, 0x1p+40f, logOfDouble(size), near);
      Value isOutside = f.compare(arith::CmpFPredicate::OLT, x, one);
      return f.choose(isOutside,
                      f.constant(std::numeric_limits<double>::quiet_NaN()),
                      value);
    } else {
      Value twice = f.add(size, size);
      Value rest = f.subtract(one, size);
      result = f.multiply(half, log1p(f.divide(twice, rest)));
    }
    return math::CopySignOp::create(b, result, x);
  }
};

struct ExpandLog10 final : OpRewritePattern<math::Log10Op> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(math::Log10Op op,
                                PatternRewriter &rewriter) const override {
    if (!op.getType().isF32())
      return rewriter.notifyMatchFailure(op, "not a scalar of f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    Value log = math::LogOp::create(b, op.getOperand());
    Value factor =
        arith::ConstantOp::create(b, b.getF32FloatAttr(0.43429448190325183f));
    rewriter.replaceOpWithNewOp<arith::MulFOp>(op, log, factor);
    return success();
  }
};
} // namespace

void mlir::diffattn::populateHyperbolicPatterns(RewritePatternSet &patterns,
                                                bool all) {
  patterns.add<ExpandHyperbolic<math::SinhOp>, ExpandHyperbolic<math::CoshOp>,
               ExpandHyperbolic<math::AsinhOp>, ExpandHyperbolic<math::AcoshOp>,
               ExpandHyperbolic<math::AtanhOp>>(patterns.getContext());
  // A library's is exact for powers of 10.
  if (all)
    patterns.add<ExpandLog10>(patterns.getContext());
}
