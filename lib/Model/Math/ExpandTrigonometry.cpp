//===- ExpandTrigonometry.cpp - sin and cos without a library -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ExpandFunctions.h"
#include "FloatBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// From here on a reduction in f64 has too few bits of pi/2 or of the quotient.
constexpr double kLarge = 0x1p+30;

/// Bits of 2/pi after its binary point, 64 from each of 0, 32, 64, ...
constexpr uint64_t kBitsOfTwoOverPi[] = {
    0xA2F9836E4E441529, 0x4E441529FC2757D1, 0xFC2757D1F534DDC0,
    0xF534DDC0DB629599, 0xDB6295993C439041, 0x3C439041FE5163AB};

/// An angle is `quarters` of a turn (i32, of which the low two bits count) and
/// `rest` (f32), at most pi/4 either way.
struct Angle {
  Value rest, quarters;
};

struct AngleBuilder {
  ImplicitLocOpBuilder &b;
  FloatBuilder wide{b, b.getF64Type()};

  Value number(uint64_t value) const {
    return arith::ConstantIntOp::create(b, static_cast<int64_t>(value), 64);
  }
  Value add(Value x, Value y) const { return arith::AddIOp::create(b, x, y); }
  Value multiply(Value x, Value y) const {
    return arith::MulIOp::create(b, x, y);
  }
  Value both(Value x, Value y) const { return arith::AndIOp::create(b, x, y); }
  Value left(Value x, Value bits) const {
    return arith::ShLIOp::create(b, x, bits);
  }
  Value right(Value x, Value bits) const {
    return arith::ShRUIOp::create(b, x, bits);
  }
  Value narrow(Value x) const {
    return arith::TruncFOp::create(b, b.getF32Type(), x);
  }

  /// x - k * pi/2 in f64 with pi/2 in two parts: right to far below an ulp of
  /// f32 for 0 <= x < kLarge. Of other numbers no quarters are taken.
  Angle reduce(Value size) const {
    Value x = arith::ExtFOp::create(b, wide.type, size);
    Value turns = wide.multiply(x, wide.constant(0x1.45f306dc9c883p-1)); // 2/pi
    Value whole = math::RoundEvenOp::create(b, turns);
    Value minus = arith::NegFOp::create(b, whole);
    Value r =
        math::FmaOp::create(b, minus, wide.constant(0x1.921fb54442d18p+0), x);
    r = math::FmaOp::create(b, minus, wide.constant(0x1.1a62633145c07p-54), r);
    // No conversion is of a number that i32 does not hold.
    Value isInside =
        wide.compare(arith::CmpFPredicate::OLT, x, wide.constant(kLarge));
    Value safe = wide.choose(isInside, whole, wide.constant(0.0));
    return {narrow(r), arith::FPToSIOp::create(b, b.getI32Type(), safe)};
  }

  /// Reduces kLarge <= x by integers (Payne and Hanek). x is a number of 24
  /// bits times 2^e. In its product with 2/pi only the part below four whole
  /// counts, for which the bits of 2/pi from the weight 2^(1 - e) on do: 96 of
  /// them leave an error of 2^-62, and no x of f32 is nearer to a multiple of
  /// pi/2 than 2^-31 or so.
  Angle reduceLarge(Value size) const {
    Value bits = arith::ExtUIOp::create(
        b, b.getI64Type(), arith::BitcastOp::create(b, b.getI32Type(), size));
    Value mantissa =
        arith::OrIOp::create(b, both(bits, number(0x7FFFFF)), number(0x800000));
    // The exponent's field is e + 150. The bit of the weight 2^-1 is bit 0.
    Value first =
        arith::SubIOp::create(b, right(bits, number(23)), number(152));
    Value shift = both(first, number(31)), word = right(first, number(5));
    // 128 bits from `word` on, which is at most 3.
    Value high = number(kBitsOfTwoOverPi[0]), low = number(kBitsOfTwoOverPi[2]);
    for (int at = 1; at < 4; ++at) {
      Value isReached =
          arith::CmpIOp::create(b, arith::CmpIPredicate::uge, word, number(at));
      high = wide.choose(isReached, number(kBitsOfTwoOverPi[at]), high);
      low = wide.choose(isReached, number(kBitsOfTwoOverPi[at + 2]), low);
    }
    // The upper 96 after `shift`, which is at most 31, in words of 32.
    Value intoHigh = right(right(low, number(1)),
                           arith::SubIOp::create(b, number(63), shift));
    high = arith::OrIOp::create(b, left(high, shift), intoHigh);
    Value third = right(left(low, shift), number(32));
    Value second = both(high, number(0xFFFFFFFF));
    Value product = right(multiply(mantissa, third), number(32));
    product = add(product, multiply(mantissa, second));
    product = add(
        product, left(multiply(mantissa, right(high, number(32))), number(32)));
    // Two bits of quarters and 62 of a fraction, which is signed if half of a
    // quarter is added to round.
    Value quarters = right(add(product, number(uint64_t(1) << 61)), number(62));
    Value fraction =
        arith::SIToFPOp::create(b, wide.type, left(product, number(2)));
    Value r = wide.multiply(fraction, wide.constant(0x1.921fb54442d18p-64));
    return {narrow(r), arith::TruncIOp::create(b, b.getI32Type(), quarters)};
  }
};

/// sin(x) or cos(x) of every finite x: positions of any prompt times any
/// frequency are fine, where a reduction in f32, or `sin.approx`, is not.
/// `kShift` quarters are added to the angle of |x|.
template <typename OpTy, int32_t kShift>
struct ExpandCircular final : OpRewritePattern<OpTy> {
  using OpRewritePattern<OpTy>::OpRewritePattern;
  LogicalResult matchAndRewrite(OpTy op,
                                PatternRewriter &rewriter) const override {
    if (!op.getType().isF32())
      return rewriter.notifyMatchFailure(op, "not a scalar of f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    FloatBuilder f{b, b.getF32Type()};
    AngleBuilder angles{b};
    auto number = [&](int32_t value) -> Value {
      return arith::ConstantIntOp::create(b, value, 32);
    };
    Value x = op.getOperand(), size = math::AbsFOp::create(b, x);
    Angle angle = angles.reduce(size);
    Value isLarge =
        f.compare(arith::CmpFPredicate::OGE, size, f.constant(kLarge));
    auto reduced = scf::IfOp::create(
        b, isLarge,
        [&](OpBuilder &, Location) {
          Angle large = angles.reduceLarge(size);
          scf::YieldOp::create(b, ValueRange{large.rest, large.quarters});
        },
        [&](OpBuilder &, Location) {
          scf::YieldOp::create(b, ValueRange{angle.rest, angle.quarters});
        });
    Value t = reduced.getResult(0);
    Value quadrant = angles.add(reduced.getResult(1), number(kShift));
    Value square = f.multiply(t, t);
    auto polynomial = [&](ArrayRef<double> coefficients) {
      Value sum = f.constant(coefficients.front());
      for (double c : coefficients.drop_front())
        sum = math::FmaOp::create(b, sum, square, f.constant(c));
      return sum;
    };
    // Taylor coefficients: for |t| <= pi/4 what is cut off is below 2^-28.
    Value sine = math::FmaOp::create(
        b, f.multiply(t, square),
        polynomial({1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6}), t);
    Value cosine = polynomial(
        {-1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5, 1.0});
    Value isOdd =
        arith::CmpIOp::create(b, arith::CmpIPredicate::ne,
                              angles.both(quadrant, number(1)), number(0));
    Value value = f.choose(isOdd, cosine, sine);
    // Half a turn changes the sign. A sine has that of x too, also of -0.
    auto bitsOf = [&](Value v) -> Value {
      return arith::BitcastOp::create(b, b.getI32Type(), v);
    };
    Value flip = angles.left(quadrant, number(30));
    if (kShift == 0)
      flip = arith::XOrIOp::create(b, flip, bitsOf(x));
    flip = angles.both(flip, number(std::numeric_limits<int32_t>::min()));
    Value result = arith::BitcastOp::create(
        b, f.type, arith::XOrIOp::create(b, bitsOf(value), flip));
    // Infinity minus infinity is NaN, and so is NaN minus NaN.
    Value none = f.subtract(x, x);
    Value isFinite = f.compare(arith::CmpFPredicate::ORD, none, none);
    rewriter.replaceOpWithNewOp<arith::SelectOp>(op, isFinite, result, none);
    return success();
  }
};
} // namespace

void mlir::diffattn::populateTrigonometryPatterns(RewritePatternSet &patterns) {
  patterns.add<ExpandCircular<math::SinOp, 0>, ExpandCircular<math::CosOp, 1>>(
      patterns.getContext());
}
