//===- ExpandMath.cpp - math without a library -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ExpandFunctions.h"
#include "FloatBuilder.h"

#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Patterns.h"

#include "mlir/Dialect/Arith/Transforms/Passes.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_EXPANDMATHPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
/// Arithmetic on f32 in which a product and a sum may become one instruction,
/// for Exponential.inc.
struct Arithmetic {
  ImplicitLocOpBuilder &b;
  Type type;

  Value constant(float value) {
    TypedAttr attr = b.getF32FloatAttr(value);
    if (auto vector = dyn_cast<VectorType>(type))
      attr = DenseElementsAttr::get(vector, Attribute(attr));
    return arith::ConstantOp::create(b, attr);
  }
  Value integer(int32_t value) {
    TypedAttr attr = b.getI32IntegerAttr(value);
    if (auto vector = dyn_cast<VectorType>(type))
      attr =
          DenseElementsAttr::get(vector.clone(b.getI32Type()), Attribute(attr));
    return arith::ConstantOp::create(b, attr);
  }
  Type integers() {
    if (auto vector = dyn_cast<VectorType>(type))
      return vector.clone(b.getI32Type());
    return b.getI32Type();
  }
  Value multiply(Value x, Value y) {
    return arith::MulFOp::create(b, x, y, arith::FastMathFlags::contract);
  }
  Value add(Value x, Value y) {
    return arith::AddFOp::create(b, x, y, arith::FastMathFlags::contract);
  }
  Value fma(Value x, Value y, Value z) { return add(multiply(x, y), z); }
  Value addAlone(Value x, Value y) { return arith::AddFOp::create(b, x, y); }
  Value subtractAlone(Value x, Value y) {
    return arith::SubFOp::create(b, x, y);
  }
  Value atLeast(Value x, Value low) {
    Value isLess = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, x, low);
    return arith::SelectOp::create(b, isLess, low, x);
  }
  Value atMost(Value x, Value high) {
    Value isMore = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, x, high);
    return arith::SelectOp::create(b, isMore, high, x);
  }
  Value bitsOf(Value x) { return arith::BitcastOp::create(b, integers(), x); }
  Value shiftRight(Value n, Value bits) {
    return arith::ShRSIOp::create(b, n, bits);
  }
  Value subtractIntegers(Value x, Value y) {
    return arith::SubIOp::create(b, x, y);
  }
  Value scale(Value x, Value n) {
    Value biased = arith::AddIOp::create(b, n, integer(127));
    Value power = arith::BitcastOp::create(
        b, type, arith::ShLIOp::create(b, biased, integer(23)));
    return arith::MulFOp::create(b, x, power);
  }
};

#include "DiffAttn/Runtime/ABI/Exponential.inc"

bool isF32(Value value) { return getElementTypeOrSelf(value).isF32(); }

struct ExpandExp final : OpRewritePattern<math::ExpOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(math::ExpOp op,
                                PatternRewriter &rewriter) const override {
    if (!isF32(op.getOperand()))
      return rewriter.notifyMatchFailure(op, "not f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    Arithmetic f{b, op.getType()};
    rewriter.replaceOp(op, exponential(f, Value(op.getOperand())));
    return success();
  }
};

struct ExpandExp2 final : OpRewritePattern<math::Exp2Op> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(math::Exp2Op op,
                                PatternRewriter &rewriter) const override {
    if (!isF32(op.getOperand()))
      return rewriter.notifyMatchFailure(op, "not f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    Arithmetic f{b, op.getType()};
    Value x = clamp(f, Value(op.getOperand()), -151.0f, 129.0f);
    auto [whole, n] = roundToInteger(f, x);
    Value r =
        f.multiply(f.subtractAlone(x, whole), f.constant(0.69314718055994531f));
    rewriter.replaceOp(op, expOfReduced(f, r, n));
    return success();
  }
};

/// Attribute of a logarithm whose operand is normal, zero or no number.
constexpr StringLiteral kOfNormal = "diffattn.of_normal";

/// Attribute of an error function whose sign does not matter.
constexpr StringLiteral kWithoutSign = "diffattn.without_sign";

/// Upstream's approximation of erf(-0) is 0.
struct KeepSignOfZero final : OpRewritePattern<math::ErfOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(math::ErfOp op,
                                PatternRewriter &rewriter) const override {
    if (!isF32(op.getOperand()) || op->hasAttr(kWithoutSign))
      return rewriter.notifyMatchFailure(op, "not f32, or has no sign");
    auto erf = math::ErfOp::create(rewriter, op.getLoc(), op.getOperand());
    erf->setAttr(kWithoutSign, rewriter.getUnitAttr());
    rewriter.replaceOpWithNewOp<math::CopySignOp>(op, erf, op.getOperand());
    return success();
  }
};

/// Upstream's approximation takes subnormal numbers for the smallest normal
/// one. `log2` is what the logarithm of 2 is.
template <typename Op>
struct ScaleSubnormal final : OpRewritePattern<Op> {
  ScaleSubnormal(MLIRContext *context, float log2)
      : OpRewritePattern<Op>(context), log2(log2) {}
  LogicalResult matchAndRewrite(Op op,
                                PatternRewriter &rewriter) const override {
    if (!isF32(op.getOperand()) || op->hasAttr(kOfNormal))
      return rewriter.notifyMatchFailure(op, "not f32, or scaled");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    Arithmetic f{b, op.getType()};
    Value x = op.getOperand();
    Value isSmall = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, x,
                                          f.constant(0x1p-126f));
    Value scaled = arith::MulFOp::create(b, x, f.constant(0x1p24f));
    Value normal = arith::SelectOp::create(b, isSmall, scaled, x);
    auto log = Op::create(b, normal);
    log->setAttr(kOfNormal, b.getUnitAttr());
    Value below = f.subtractAlone(log, f.constant(24.0f * log2));
    rewriter.replaceOpWithNewOp<arith::SelectOp>(op, isSmall, below, log);
    return success();
  }
  float log2;
};

bool isF64(Value value) { return getElementTypeOrSelf(value).isF64(); }

/// Arithmetic on f64, where upstream's lowering of e^x - 1 and log(1 + x)
/// cancels: the rounding of u = e^x, or of u = 1 + x, is taken back by how far
/// u is from 1 and what leads there (Kahan).
template <typename Op>
struct ExpandNearOne final : OpRewritePattern<Op> {
  using OpRewritePattern<Op>::OpRewritePattern;
  LogicalResult matchAndRewrite(Op op,
                                PatternRewriter &rewriter) const override {
    Value x = op.getOperand();
    if (!isF64(x))
      return rewriter.notifyMatchFailure(op, "not f64");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    auto constant = [&](double value) -> Value {
      TypedAttr attr = b.getF64FloatAttr(value);
      if (auto vector = dyn_cast<VectorType>(x.getType()))
        attr = DenseElementsAttr::get(vector, Attribute(attr));
      return arith::ConstantOp::create(b, attr);
    };
    constexpr bool isExp = std::is_same_v<Op, math::ExpM1Op>;
    Value one = constant(1.0);
    Value u = isExp ? math::ExpOp::create(b, x).getResult()
                    : arith::AddFOp::create(b, one, x).getResult();
    Value far = arith::SubFOp::create(b, u, one);
    Value log = math::LogOp::create(b, u);
    Value quotient =
        isExp ? arith::DivFOp::create(b, arith::MulFOp::create(b, far, x), log)
              : arith::DivFOp::create(b, arith::MulFOp::create(b, log, x), far);
    // Beyond, u decides: it is 0, infinite or NaN, or x is.
    Value plain = isExp ? far : log;
    Value size = math::AbsFOp::create(b, x);
    Value isNear = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, size,
                                         constant(isExp ? 36.0 : 0x1p52));
    Value isInside = isNear;
    if (!isExp) // log(0) times 0 elsewhere
      isInside = arith::AndIOp::create(
          b, isNear,
          arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, u,
                                constant(0.0)));
    Value result = arith::SelectOp::create(b, isInside, quotient, plain);
    Value isOne = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, u, one);
    rewriter.replaceOpWithNewOp<arith::SelectOp>(op, isOne, x, result);
    return success();
  }
};

/// `arith.maxnumf` and `arith.minnumf` as comparisons: LLVM 22 vectorizes
/// reductions by them, and for 5 or 6 elements drops those after the fourth.
template <typename Op, arith::CmpFPredicate Wins>
struct ExpandNumber final : OpRewritePattern<Op> {
  using OpRewritePattern<Op>::OpRewritePattern;
  LogicalResult matchAndRewrite(Op op,
                                PatternRewriter &rewriter) const override {
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    Value x = op.getLhs(), y = op.getRhs();
    Value wins = arith::CmpFOp::create(b, Wins, x, y);
    Value number = arith::SelectOp::create(b, wins, x, y);
    Value isNaN = arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, y, y);
    rewriter.replaceOpWithNewOp<arith::SelectOp>(op, isNaN, x, number);
    return success();
  }
};

/// Ops that come in half precision are computed in single precision.
bool throughF32(StringRef name) {
  return name != "math.absf" && name != "math.copysign";
}

/// Upstream's approximations that are good to a few units in the last place.
bool approximate(StringRef name) {
  return llvm::is_contained(
      {math::TanhOp::getOperationName(), math::ErfOp::getOperationName(),
       math::LogOp::getOperationName(), math::Log2Op::getOperationName(),
       math::Log1pOp::getOperationName(), math::ExpM1Op::getOperationName()},
      name);
}

/// Upstream's approximations that a C library, where there is one, is better
/// than.
bool approximateElsewhere(StringRef name) {
  return llvm::is_contained({math::AsinOp::getOperationName(),
                             math::AcosOp::getOperationName(),
                             math::ErfcOp::getOperationName()},
                            name);
}

struct ExpandMathPass final
    : diffattn::impl::ExpandMathPassBase<ExpandMathPass> {
  using ExpandMathPassBase::ExpandMathPassBase;

  void runOnOperation() override {
    // Powers to small constants first, then what is left of `fpowi`, `rsqrt`
    // and the like in terms of other ops, then those ops.
    RewritePatternSet algebra(&getContext()), patterns(&getContext());
    populateMathAlgebraicSimplificationPatterns(algebra);
    mlir::diffattn::populateExpandMathPatterns(patterns, all);
    if (failed(apply(std::move(algebra))) || failed(apply(std::move(patterns))))
      signalPassFailure();
  }

private:
  /// Applies `patterns` to ops on scalars and vectors, of which they make
  /// constants.
  LogicalResult apply(RewritePatternSet &&patterns) {
    SmallVector<Operation *> ops;
    getOperation()->walk([&](Operation *op) {
      if (op != getOperation() &&
          llvm::none_of(op->getOperandTypes(), llvm::IsaPred<TensorType>))
        ops.push_back(op);
    });
    return applyOpPatternsGreedily(
        ops, std::move(patterns),
        GreedyRewriteConfig().setStrictness(
            GreedyRewriteStrictness::ExistingAndNewOps));
  }
};
} // namespace

Value mlir::diffattn::powerOfTwo(ImplicitLocOpBuilder &b, Value exponent) {
  FloatBuilder d{b, b.getF64Type()};
  Arithmetic f{b, b.getF32Type()};
  auto clampBy = [&](arith::CmpFPredicate beyond, double limit) {
    Value end = d.constant(limit);
    exponent = d.choose(d.compare(beyond, exponent, end), end, exponent);
  };
  clampBy(arith::CmpFPredicate::OLT, -151.0);
  clampBy(arith::CmpFPredicate::OGT, 129.0);
  auto [whole, n] = roundToInteger(
      f, Value(arith::TruncFOp::create(b, b.getF32Type(), exponent)));
  Value rest = d.subtract(exponent, arith::ExtFOp::create(b, d.type, whole));
  Value r = arith::TruncFOp::create(
      b, b.getF32Type(), d.multiply(rest, d.constant(0.69314718055994531)));
  return expOfReduced(f, r, n);
}

void mlir::diffattn::populateExpandMathPatterns(RewritePatternSet &patterns,
                                                bool all) {
  patterns.add<ExpandExp, ExpandExp2, KeepSignOfZero,
               ExpandNumber<arith::MaxNumFOp, arith::CmpFPredicate::OGT>,
               ExpandNumber<arith::MinNumFOp, arith::CmpFPredicate::OLT>>(
      patterns.getContext());
  patterns.add<ScaleSubnormal<math::LogOp>>(patterns.getContext(),
                                            0.69314718055994531f);
  patterns.add<ScaleSubnormal<math::Log2Op>>(patterns.getContext(), 1.0f);
  patterns.add<ExpandNearOne<math::ExpM1Op>, ExpandNearOne<math::Log1pOp>>(
      patterns.getContext());
  populateIntegerPowerPatterns(patterns, all);
  populateHyperbolicPatterns(patterns, all);
  populateTrigonometryPatterns(patterns);
  populatePowerPatterns(patterns, all);
  if (all)
    populateRoundingPatterns(patterns);
  math::populateExpansionPatterns(patterns, {"rsqrt", "clampf", "tan"});
  arith::populateCeilFloorDivExpandOpsPatterns(patterns);
  // Before ops in half precision are written as several, each of which rounds.
  populateMathF32ExpansionPatterns(patterns, throughF32, PatternBenefit(2));
  populateMathPolynomialApproximationPatterns(patterns, [=](StringRef name) {
    return approximate(name) || (all && approximateElsewhere(name));
  });
}
