//===- ExpandHyperbolic.cpp - hyperbolic functions without a library ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ExpandTrigonometry.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <limits>

using namespace mlir;

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
    auto number = [&](float value) -> Value {
      return arith::ConstantOp::create(b, b.getF32FloatAttr(value));
    };
    auto add = [&](Value u, Value v) -> Value {
      return arith::AddFOp::create(b, u, v);
    };
    auto times = [&](Value u, Value v) -> Value {
      return arith::MulFOp::create(b, u, v);
    };
    auto over = [&](Value u, Value v) -> Value {
      return arith::DivFOp::create(b, u, v);
    };
    auto ifAbove = [&](Value u, float limit, Value then, Value other) -> Value {
      Value isAbove =
          arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, u, number(limit));
      return arith::SelectOp::create(b, isAbove, then, other);
    };
    auto log1p = [&](Value u) -> Value { return math::Log1pOp::create(b, u); };
    Value size = math::AbsFOp::create(b, x), one = number(1.0f),
          half = number(0.5f);
    auto logOfDouble = [&](Value u) {
      return add(math::LogOp::create(b, u), number(0.69314718055994531f));
    };
    Value result;
    if constexpr (std::is_same_v<Op, math::SinhOp> ||
                  std::is_same_v<Op, math::CoshOp>) {
      constexpr bool isSine = std::is_same_v<Op, math::SinhOp>;
      Value root = math::ExpOp::create(b, times(size, half));
      Value large = times(times(root, half), root);
      Value less = math::ExpM1Op::create(b, size), whole = add(less, one);
      Value near =
          isSine ? add(less, over(less, whole)) : add(whole, over(one, whole));
      result = ifAbove(size, 80.0f, large, times(near, half));
      if (!isSine)
        return result;
    } else if constexpr (std::is_same_v<Op, math::AsinhOp>) {
      Value square = times(size, size);
      Value more = add(one, math::SqrtOp::create(b, add(square, one)));
      result = ifAbove(size, 0x1p+40f, logOfDouble(size),
                       log1p(add(size, over(square, more))));
    } else if constexpr (std::is_same_v<Op, math::AcoshOp>) {
      Value beyond = add(x, number(-1.0f));
      Value square = times(beyond, add(beyond, number(2.0f)));
      Value near = log1p(add(beyond, math::SqrtOp::create(b, square)));
      Value value = ifAbove(x, 0x1p+40f, logOfDouble(size), near);
      Value isOutside =
          arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, x, one);
      return arith::SelectOp::create(
          b, isOutside, number(std::numeric_limits<float>::quiet_NaN()), value);
    } else {
      Value twice = add(size, size);
      Value rest = arith::SubFOp::create(b, one, size);
      result = times(half, log1p(over(twice, rest)));
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

void mlir::diffattn::populateHyperbolicPatterns(RewritePatternSet &patterns) {
  patterns.add<ExpandHyperbolic<math::SinhOp>, ExpandHyperbolic<math::CoshOp>,
               ExpandHyperbolic<math::AsinhOp>, ExpandHyperbolic<math::AcoshOp>,
               ExpandHyperbolic<math::AtanhOp>, ExpandLog10>(
      patterns.getContext());
}
