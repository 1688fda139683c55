//===- ExpandPowers.cpp - powers and angles without a library -------------===//
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
using Predicate = arith::CmpFPredicate;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// By the exponential of y log |x|, with what C says of signs, zeros and
/// infinities: upstream's expansion is NaN for every x below 0.
struct ExpandPower final : OpRewritePattern<math::PowFOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(math::PowFOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.getType().isF32())
      return rewriter.notifyMatchFailure(op, "not a scalar of f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    FloatBuilder f{b, b.getF32Type()};
    Value x = op.getLhs(), y = op.getRhs();
    Value zero = f.constant(0.0f), one = f.constant(1.0f);
    Value size = math::AbsFOp::create(b, x);
    Value power =
        math::ExpOp::create(b, f.multiply(y, math::LogOp::create(b, size)));
    // An infinite exponent of 1.
    Value isUnit = f.both(f.compare(Predicate::OEQ, size, one),
                          f.compare(Predicate::ORD, y, y));
    power = f.choose(isUnit, one, power);
    // Large and infinite exponents are even.
    Value half = f.multiply(y, f.constant(0.5f));
    Value isWhole = f.compare(Predicate::OEQ, y, math::TruncOp::create(b, y));
    Value isOdd = f.both(isWhole, f.compare(Predicate::ONE, half,
                                            math::TruncOp::create(b, half)));
    power = f.choose(isOdd, math::CopySignOp::create(b, power, x), power);
    Value isNegative =
        f.both(f.compare(Predicate::OLT, x, zero),
               f.compare(Predicate::OGT, x, f.constant(-kInfinity)));
    Value hasNone = f.both(
        isNegative, f.compare(Predicate::UNE, y, math::TruncOp::create(b, y)));
    power = f.choose(
        hasNone, f.constant(std::numeric_limits<float>::quiet_NaN()), power);
    Value isOne = arith::OrIOp::create(b, f.compare(Predicate::OEQ, y, zero),
                                       f.compare(Predicate::OEQ, x, one));
    rewriter.replaceOpWithNewOp<arith::SelectOp>(op, isOne, one, power);
    return success();
  }
};

/// By the arc tangent of a quotient up to 1, with the signs of zeros and the
/// angles between infinities that C has.
struct ExpandAngle final : OpRewritePattern<math::Atan2Op> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(math::Atan2Op op,
                                PatternRewriter &rewriter) const override {
    if (!op.getType().isF32())
      return rewriter.notifyMatchFailure(op, "not a scalar of f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    FloatBuilder f{b, b.getF32Type()};
    Value y = op.getLhs(), x = op.getRhs();
    Value zero = f.constant(0.0f), one = f.constant(1.0f);
    Value right = math::AbsFOp::create(b, x), up = math::AbsFOp::create(b, y);
    Value isSteep = f.compare(Predicate::OGT, up, right);
    Value less = f.choose(isSteep, right, up),
          more = f.choose(isSteep, up, right);
    Value quotient = f.divide(less, more);
    Value ofEqual = f.choose(f.compare(Predicate::OEQ, more, zero), zero, one);
    quotient =
        f.choose(f.compare(Predicate::OEQ, less, more), ofEqual, quotient);
    Value angle = math::AtanOp::create(b, quotient);
    angle = f.choose(
        isSteep, f.subtract(f.constant(1.57079632679489662f), angle), angle);
    Value isLeft =
        f.compare(Predicate::OLT, math::CopySignOp::create(b, one, x), zero);
    angle = f.choose(
        isLeft, f.subtract(f.constant(3.14159265358979324f), angle), angle);
    angle = math::CopySignOp::create(b, angle, y);
    Value none = f.add(x, y);
    rewriter.replaceOpWithNewOp<arith::SelectOp>(
        op, f.compare(Predicate::UNO, x, y), none, angle);
    return success();
  }
};
} // namespace

void mlir::diffattn::populatePowerPatterns(RewritePatternSet &patterns) {
  patterns.add<ExpandPower, ExpandAngle>(patterns.getContext());
}
