//===- GatedGemmToLinalg.cpp - gated products as linalg -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SoftmaxSteps.h"
#include "StructuredBuilder.h"

#include "DiffAttn/Conversion/DiffAttnToLinalg.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mlir::diffattn;
using mlir::utils::IteratorType;

static constexpr IteratorType par = IteratorType::parallel;
static constexpr IteratorType red = IteratorType::reduction;

/// `a` times `weight`, f32.
static Value buildSums(StructuredBuilder &sb, GatedGemmOp op, Value weight) {
  Value sums = sb.filled({sb.size(op.getC(), 0), sb.size(op.getC(), 1)}, 0.0f);
  SmallVector<Axis> axes = {2, 1};
  if (op.getTransposeB())
    axes = {1, 2};
  return sb.generic(
      {{op.getA(), {0, 2}}, {weight, axes}}, sums, {0, 1}, {par, par, red},
      [](ImplicitLocOpBuilder &b, ValueRange args) -> Value {
        Value product =
            arith::MulFOp::create(b, widen(b, args[0]), widen(b, args[1]));
        return arith::AddFOp::create(b, args[2], product);
      });
}

/// The element of the result for the sums `g` and `u`, in f32.
static Value buildGated(ImplicitLocOpBuilder &b, GatedGemmOp op, Value g,
                        Value u) {
  const Type narrow = getElementTypeOrSelf(op.getA().getType());
  auto round = [&](GateRounding step, Value x) -> Value {
    if (narrow.isF32() || !bitEnumContainsAny(op.getRounded(), step))
      return x;
    return widen(b, arith::TruncFOp::create(b, narrow, x));
  };
  g = round(GateRounding::Sums, g);
  u = round(GateRounding::Sums, u);
  Value one = arith::ConstantOp::create(b, b.getF32FloatAttr(1.0f));
  Value e = round(GateRounding::Exponential,
                  math::ExpOp::create(b, arith::NegFOp::create(b, g)));
  Value denominator =
      round(GateRounding::Denominator, arith::AddFOp::create(b, e, one));
  Value sigmoid =
      round(GateRounding::Sigmoid, arith::DivFOp::create(b, one, denominator));
  Value silu = round(GateRounding::Silu, arith::MulFOp::create(b, g, sigmoid));
  return arith::MulFOp::create(b, silu, u);
}

Value mlir::diffattn::decomposeGatedGemm(OpBuilder &builder, GatedGemmOp op) {
  StructuredBuilder sb(builder, op.getLoc(),
                       isa<TensorType>(op.getC().getType()));
  Value gate = buildSums(sb, op, op.getGate()),
        up = buildSums(sb, op, op.getUp());
  Type type = getElementTypeOrSelf(op.getC().getType());
  Value result =
      sb.generic({{gate, {0, 1}}, {up, {0, 1}}}, op.getC(), {0, 1}, {par, par},
                 [&](ImplicitLocOpBuilder &b, ValueRange args) -> Value {
                   Value element = buildGated(b, op, args[0], args[1]);
                   if (type.isF32())
                     return element;
                   return arith::TruncFOp::create(b, type, element);
                 });
  sb.freeTemporaries();
  return result;
}
