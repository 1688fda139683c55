//===- ExpandPowers.cpp - powers, roots, angles without a library ---------===//
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
#include "mlir/IR/TypeUtilities.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;

namespace {
using Predicate = arith::CmpFPredicate;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The logarithm to base 2, in f64, of a `size` of f32 that is not below 0.
Value logOfSize(ImplicitLocOpBuilder &b, Value size) {
  FloatBuilder f{b, b.getF32Type()}, d{b, b.getF64Type()};
  auto number = [&](uint64_t value) -> Value {
    return arith::ConstantIntOp::create(b, static_cast<int64_t>(value), 64);
  };
  Value wide = arith::ExtFOp::create(b, d.type, size);
  Value bits = arith::BitcastOp::create(b, b.getI64Type(), wide);
  // 2^n times what is from sqrt(1/2) to sqrt(2): there are no subnormal
  // numbers, which those of f32 are not in f64.
  constexpr uint64_t kRootOfHalf = 0x3FE6A09E667F3BCD;
  Value n = arith::ShRSIOp::create(
      b, arith::SubIOp::create(b, bits, number(kRootOfHalf)), number(52));
  Value ofPower = arith::ShLIOp::create(b, n, number(52));
  Value reduced = arith::BitcastOp::create(
      b, d.type, arith::SubIOp::create(b, bits, ofPower));
  // log(m) = 2 artanh((m - 1) / (m + 1)), by its series: what is cut off is
  // below 2^-36 of the whole.
  Value s = d.divide(d.add(reduced, d.constant(-1.0)),
                     d.add(reduced, d.constant(1.0)));
  Value square = d.multiply(s, s);
  Value sum = d.constant(1.0 / 13);
  for (int k = 11; k > 0; k -= 2)
    sum = math::FmaOp::create(b, sum, square, d.constant(1.0 / k));
  constexpr double kTwoOverLog2 = 2.88539008177792681472;
  Value log =
      math::FmaOp::create(b, d.multiply(s, d.constant(kTwoOverLog2)), sum,
                          arith::SIToFPOp::create(b, d.type, n).getResult());
  Value isNumber = f.compare(Predicate::OLT, size, f.constant(kInfinity));
  log = d.choose(isNumber, log, wide);
  Value isZero = f.compare(Predicate::OEQ, size, f.constant(0.0));
  return d.choose(isZero, d.constant(-kInfinity), log);
}

/// |x|^y of a `size` |x| of f32 and an exponent of f64, in f64 up to the last
/// step: y log2 |x| has to be right to far below 1, and may be 150. NaN where
/// an exponent of 0 meets an infinite logarithm, or the reverse.
Value powerOfSize(ImplicitLocOpBuilder &b, Value size, Value y) {
  return powerOfTwo(b, arith::MulFOp::create(b, y, logOfSize(b, size)));
}

/// Powers with C's results for signs, zeros and infinities: upstream's
/// expansion is NaN for every x below 0.
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
        powerOfSize(b, size, arith::ExtFOp::create(b, b.getF64Type(), y));
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

/// Upstream's expansion rounds the exponent to the base's type, and with it
/// whether it is odd.
struct ExpandIntegerPower final : OpRewritePattern<math::FPowIOp> {
  ExpandIntegerPower(MLIRContext *context, bool all)
      : OpRewritePattern(context), all(all) {}
  LogicalResult matchAndRewrite(math::FPowIOp op,
                                PatternRewriter &rewriter) const override {
    Value x = op.getLhs(), y = op.getRhs();
    Type type = x.getType(), element = getElementTypeOrSelf(type);
    if (element.getIntOrFloatBitWidth() > 64)
      return rewriter.notifyMatchFailure(op, "wider than f64");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    auto shaped = [&](Type scalar) -> Type {
      auto vector = dyn_cast<VectorType>(type);
      return vector ? Type(vector.clone(scalar)) : scalar;
    };
    if (element.getIntOrFloatBitWidth() < 32) {
      x = arith::ExtFOp::create(b, shaped(b.getF32Type()), x);
      Value power = math::FPowIOp::create(b, x, y);
      rewriter.replaceOpWithNewOp<arith::TruncFOp>(op, type, power);
      return success();
    }
    if (getElementTypeOrSelf(y).isIndex())
      y = arith::IndexCastOp::create(b, shaped(b.getI64Type()), y);
    Value exponent = arith::SIToFPOp::create(b, shaped(b.getF64Type()), y);
    Value power = powerOf(b, math::AbsFOp::create(b, x), exponent);
    Value odd = y;
    if (!getElementTypeOrSelf(y).isInteger(1))
      odd = arith::TruncIOp::create(b, shaped(b.getI1Type()), y);
    Value withSign = math::CopySignOp::create(b, power, x);
    rewriter.replaceOpWithNewOp<arith::SelectOp>(op, odd, withSign, power);
    return success();
  }

private:
  Value powerOf(ImplicitLocOpBuilder &b, Value size, Value exponent) const {
    Type type = size.getType();
    if (all && type.isF32()) {
      FloatBuilder f{b, b.getF32Type()}, d{b, b.getF64Type()};
      Value isZero = d.compare(Predicate::OEQ, exponent, d.constant(0.0));
      return f.choose(isZero, f.constant(1.0), powerOfSize(b, size, exponent));
    }
    if (!getElementTypeOrSelf(type).isF32())
      return math::PowFOp::create(b, size, exponent);
    Value wide = arith::ExtFOp::create(b, exponent.getType(), size);
    return arith::TruncFOp::create(b, type,
                                   math::PowFOp::create(b, wide, exponent));
  }

  bool all;
};

/// A cube root by a first guess from the bits, which is right to 4 in 100, and
/// two steps that each leave the cube of an error (Halley).
struct ExpandCubeRoot final : OpRewritePattern<math::CbrtOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(math::CbrtOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.getType().isF32())
      return rewriter.notifyMatchFailure(op, "not a scalar of f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    FloatBuilder f{b, b.getF32Type()};
    auto number = [&](int32_t value) -> Value {
      return arith::ConstantIntOp::create(b, value, 32);
    };
    Value x = op.getOperand(), size = math::AbsFOp::create(b, x);
    // A small number is scaled up: the residual of its root would be subnormal,
    // and so rounded.
    Value isSmall = f.compare(Predicate::OLT, size, f.constant(0x1p-90f));
    Value normal =
        f.choose(isSmall, f.multiply(size, f.constant(0x1p48f)), size);
    Value bits = arith::BitcastOp::create(b, b.getI32Type(), normal);
    // A third of the exponent, whose bias stays.
    Value third = arith::AddIOp::create(
        b, arith::DivUIOp::create(b, bits, number(3)), number(0x2A514067));
    Value root = arith::BitcastOp::create(b, f.type, third);
    // t + t (x - t^3) / (2 t^3 + x), where a quarter of the divisor is finite.
    Value quarter = f.constant(0.25), ofSize = f.multiply(normal, quarter);
    for (int step = 0; step < 2; ++step) {
      Value square = f.multiply(root, root);
      Value left = math::FmaOp::create(b, arith::NegFOp::create(b, square),
                                       root, normal);
      Value divisor = math::FmaOp::create(
          b, f.multiply(square, f.constant(0.5)), root, ofSize);
      root = math::FmaOp::create(b, f.multiply(root, quarter),
                                 f.divide(left, divisor), root);
    }
    root = f.choose(isSmall, f.multiply(root, f.constant(0x1p-16f)), root);
    root = math::CopySignOp::create(b, root, x);
    // The root of zeros, infinities and NaN is x.
    Value isNumber =
        f.both(f.compare(Predicate::OGT, size, f.constant(0.0)),
               f.compare(Predicate::OLT, size, f.constant(kInfinity)));
    rewriter.replaceOpWithNewOp<arith::SelectOp>(op, isNumber, root, x);
    return success();
  }
};

/// An arc tangent by a polynomial for arguments up to tan(pi/8), into which the
/// addition formula moves larger ones: upstream's is off by 4e-6 near 0.66.
struct ExpandArcTangent final : OpRewritePattern<math::AtanOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(math::AtanOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.getType().isF32())
      return rewriter.notifyMatchFailure(op, "not a scalar of f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    FloatBuilder f{b, b.getF32Type()};
    Value x = op.getOperand(), size = math::AbsFOp::create(b, x);
    Value one = f.constant(1.0);
    Value isMiddle = f.compare(Predicate::OGT, size, f.constant(0.41421356)),
          isSteep = f.compare(Predicate::OGT, size, f.constant(2.4142136));
    auto choose = [&](Value steep, Value middle, Value flat) {
      return f.choose(isSteep, steep, f.choose(isMiddle, middle, flat));
    };
    Value angle = choose(f.constant(1.57079632679489662),
                         f.constant(0.78539816339744831), f.constant(0.0));
    Value t =
        f.divide(choose(f.constant(-1.0), f.add(size, f.constant(-1.0)), size),
                 choose(size, f.add(size, one), one));
    Value square = f.multiply(t, t);
    // (atan(t) / t - 1) / t^2, minimax.
    Value sum = f.constant(-0.06081156194250392);
    for (double c : {0.10595139855964303, -0.1424373879374377,
                     0.19998484002022288, -0.33333315423634025})
      sum = math::FmaOp::create(b, sum, square, f.constant(c));
    Value rest = math::FmaOp::create(b, f.multiply(sum, square), t, t);
    angle = f.add(angle, rest);
    rewriter.replaceOpWithNewOp<math::CopySignOp>(op, angle, x);
    return success();
  }
};

/// An angle by the arc tangent of a quotient up to 1, with the signs of zeros
/// and the angles between infinities that C has.
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

void mlir::diffattn::populatePowerPatterns(RewritePatternSet &patterns,
                                           bool all) {
  patterns.add<ExpandArcTangent, ExpandAngle>(patterns.getContext());
  if (all)
    patterns.add<ExpandPower, ExpandCubeRoot>(patterns.getContext());
}

void mlir::diffattn::populateIntegerPowerPatterns(RewritePatternSet &patterns,
                                                  bool all) {
  patterns.add<ExpandIntegerPower>(patterns.getContext(), all);
}
