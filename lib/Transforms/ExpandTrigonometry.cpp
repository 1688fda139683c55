//===- ExpandTrigonometry.cpp - sin and cos without a library -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ExpandFunctions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

using namespace mlir;

namespace {
/// sin(x) or cos(x). The argument is reduced in f64: x - k * pi/2 with pi/2 in
/// two parts is right to far below an ulp of f32 as long as k is an exact
/// integer, so positions of any prompt times any frequency are fine, where a
/// reduction in f32, or `sin.approx`, is not.
template <typename OpTy, int64_t kShift>
struct ExpandCircular final : OpRewritePattern<OpTy> {
  using OpRewritePattern<OpTy>::OpRewritePattern;
  LogicalResult matchAndRewrite(OpTy op,
                                PatternRewriter &rewriter) const override {
    if (!op.getType().isF32())
      return rewriter.notifyMatchFailure(op, "not a scalar of f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    auto wide = [&](double value) -> Value {
      return arith::ConstantOp::create(b, b.getF64FloatAttr(value));
    };
    auto narrow = [&](double value) -> Value {
      return arith::ConstantOp::create(
          b, b.getF32FloatAttr(static_cast<float>(value)));
    };
    auto number = [&](int64_t value) -> Value {
      return arith::ConstantIntOp::create(b, value, 64);
    };
    Value x = arith::ExtFOp::create(b, b.getF64Type(), op.getOperand());
    Value turns =
        arith::MulFOp::create(b, x, wide(0.63661977236758134308)); // 2/pi
    Value whole = math::RoundEvenOp::create(b, turns);
    Value minus = arith::NegFOp::create(b, whole);
    Value r = math::FmaOp::create(b, minus, wide(0x1.921fb54442d18p+0), x);
    r = math::FmaOp::create(b, minus, wide(0x1.1a62633145c07p-54), r);
    Value t = arith::TruncFOp::create(b, b.getF32Type(), r);
    // Beyond 2^50, where the result is not specified, and of NaN the quadrant
    // is that of 0: no conversion is of a number that i64 does not hold.
    Value limit = wide(0x1p+50);
    Value inside = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT,
                                         math::AbsFOp::create(b, x), limit);
    Value safe = arith::SelectOp::create(b, inside, whole, wide(0.0));
    Value quadrant = arith::AddIOp::create(
        b, arith::FPToSIOp::create(b, b.getI64Type(), safe), number(kShift));
    Value square = arith::MulFOp::create(b, t, t);
    auto polynomial = [&](ArrayRef<double> coefficients) {
      Value sum = narrow(coefficients.front());
      for (double c : coefficients.drop_front())
        sum = math::FmaOp::create(b, sum, square, narrow(c));
      return sum;
    };
    // Taylor coefficients: for |t| <= pi/4 what is cut off is below 2^-28.
    Value sine = math::FmaOp::create(
        b, arith::MulFOp::create(b, t, square),
        polynomial({1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6}), t);
    Value cosine = polynomial(
        {-1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5, 1.0});
    auto bit = [&](int64_t mask) -> Value {
      return arith::CmpIOp::create(
          b, arith::CmpIPredicate::ne,
          arith::AndIOp::create(b, quadrant, number(mask)), number(0));
    };
    Value value = arith::SelectOp::create(b, bit(1), cosine, sine);
    Value result = arith::SelectOp::create(
        b, bit(2), arith::NegFOp::create(b, value), value);
    Value none = arith::SubFOp::create(b, op.getOperand(), op.getOperand());
    // Infinity minus infinity is NaN, and so is NaN minus NaN.
    Value isFinite =
        arith::CmpFOp::create(b, arith::CmpFPredicate::ORD, none, none);
    rewriter.replaceOpWithNewOp<arith::SelectOp>(op, isFinite, result, none);
    return success();
  }
};
} // namespace

void mlir::diffattn::populateTrigonometryPatterns(RewritePatternSet &patterns) {
  patterns.add<ExpandCircular<math::SinOp, 0>, ExpandCircular<math::CosOp, 1>>(
      patterns.getContext());
}
