//===- ExpandRounding.cpp - rounding and remainders in plain arithmetic ---===//
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

using namespace mlir;
using namespace mlir::diffattn;

namespace {
using Predicate = arith::CmpFPredicate;

/// Half away from zero. Upstream's expansion is of f32 alone.
struct ExpandRound final : OpRewritePattern<math::RoundOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(math::RoundOp op,
                                PatternRewriter &rewriter) const override {
    auto type = dyn_cast<FloatType>(op.getType());
    if (!type)
      return rewriter.notifyMatchFailure(op, "not a scalar");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    FloatBuilder f{b, type};
    Value x = op.getOperand();
    Value whole = math::TruncOp::create(b, x);
    // Exact; of infinities NaN, which is not far.
    Value cut = math::AbsFOp::create(b, f.subtract(x, whole));
    Value isFar = f.compare(Predicate::OGE, cut, f.constant(0.5));
    Value away = math::CopySignOp::create(b, f.constant(1.0), x);
    Value result = f.choose(isFar, f.add(whole, away), whole);
    rewriter.replaceOp(op, result);
    return success();
  }
};

/// Remainder of `rest` after `by` is subtracted as often as it fits: `by` times
/// falling powers of two is subtracted. Every step is exact, also for subnormal
/// numbers. There is no step where `by` is NaN.
Value getRemainder(const FloatBuilder &f, Value rest, Value by) {
  ImplicitLocOpBuilder &b = f.b;
  auto highest = scf::WhileOp::create(
      b, TypeRange(f.type), ValueRange(by),
      [&](OpBuilder &, Location, ValueRange now) {
        Value fits = f.compare(Predicate::OLE, f.add(now[0], now[0]), rest);
        scf::ConditionOp::create(b, fits, now[0]);
      },
      [&](OpBuilder &, Location, ValueRange now) {
        scf::YieldOp::create(b, f.add(now[0], now[0]));
      });
  auto taken = scf::WhileOp::create(
      b, TypeRange{f.type, f.type}, ValueRange{rest, highest.getResult(0)},
      [&](OpBuilder &, Location, ValueRange now) {
        Value isLeft = f.compare(Predicate::OGE, now[1], by);
        scf::ConditionOp::create(b, isLeft, now);
      },
      [&](OpBuilder &, Location, ValueRange now) {
        Value fits = f.compare(Predicate::OGE, now[0], now[1]);
        Value left = f.choose(fits, f.subtract(now[0], now[1]), now[0]);
        Value half = f.multiply(now[1], f.constant(0.5));
        scf::YieldOp::create(b, ValueRange{left, half});
      });
  return taken.getResult(0);
}

/// The instructions of a GPU have no remainder. LLVM's lowering for NVPTX
/// rounds the quotient: what it gives is off by more than the divisor where
/// that is large, and has the wrong sign where it is rounded up.
struct ExpandRemainder final : OpRewritePattern<arith::RemFOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(arith::RemFOp op,
                                PatternRewriter &rewriter) const override {
    auto type = dyn_cast<FloatType>(op.getType());
    if (!type)
      return rewriter.notifyMatchFailure(op, "not a scalar");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    // A remainder of 16-bit numbers is one too.
    const bool isNarrow = type.getWidth() < 32;
    FloatBuilder f{b, isNarrow ? cast<FloatType>(b.getF32Type()) : type};
    Value x = op.getLhs(), y = op.getRhs();
    if (isNarrow) {
      x = arith::ExtFOp::create(b, f.type, x);
      y = arith::ExtFOp::create(b, f.type, y);
    }
    const llvm::fltSemantics &semantics = f.type.getFloatSemantics();
    Value nan = f.constant(APFloat::getNaN(semantics)),
          infinity = f.constant(APFloat::getInf(semantics));
    Value rest = math::AbsFOp::create(b, x), by = math::AbsFOp::create(b, y);
    Value hasRest = f.both(f.compare(Predicate::OLT, rest, infinity),
                           f.compare(Predicate::OGT, by, f.constant(0.0)));
    Value divides = arith::AndIOp::create(
        b, hasRest, f.compare(Predicate::OLT, by, infinity));
    Value left = getRemainder(f, rest, f.choose(divides, by, nan));
    Value result = math::CopySignOp::create(b, f.choose(hasRest, left, nan), x);
    if (isNarrow)
      result = arith::TruncFOp::create(b, type, result);
    rewriter.replaceOp(op, result);
    return success();
  }
};
} // namespace

void mlir::diffattn::populateRoundingPatterns(RewritePatternSet &patterns) {
  patterns.add<ExpandRound, ExpandRemainder>(patterns.getContext());
}
