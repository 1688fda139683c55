//===- QuantizedGemmToLinalg.cpp - quantized products as linalg -----------===//
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
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mlir::diffattn;
using mlir::utils::IteratorType;

static constexpr IteratorType par = IteratorType::parallel;
static constexpr IteratorType red = IteratorType::reduction;

/// The integer of column `axis` in the byte that holds it, as an f32.
static Value readInteger(ImplicitLocOpBuilder &b, Value byte, int64_t axis,
                         int64_t bits) {
  if (bits == 4) {
    // The number in the low half comes first: it is shifted to the high one.
    auto constant = [&](int64_t value) -> Value {
      return arith::ConstantIntOp::create(b, value, 8);
    };
    Value column = linalg::IndexOp::create(b, axis);
    Value odd = arith::RemUIOp::create(
        b, column, arith::ConstantIndexOp::create(b, 2).getResult());
    Value isEven =
        arith::CmpIOp::create(b, arith::CmpIPredicate::eq, odd,
                              arith::ConstantIndexOp::create(b, 0).getResult());
    Value high = arith::SelectOp::create(
        b, isEven, arith::ShLIOp::create(b, byte, constant(4)), byte);
    byte = arith::ShRSIOp::create(b, high, constant(4));
  }
  return arith::SIToFPOp::create(b, b.getF32Type(), byte);
}

/// The weight as numbers, f32 `[N, K]`.
static Value buildWeight(StructuredBuilder &sb, QuantizedGemmOp op) {
  const auto bits = static_cast<int64_t>(op.getBits());
  Value wide = sb.empty({sb.builder.getIndexAttr(op.getNumColumns()),
                         sb.builder.getIndexAttr(op.getDepth())});
  Axis inBytes(1, sb.builder.getIndexAttr(8 / bits)),
      inGroups(1, sb.builder.getIndexAttr(op.getGroup()));
  return sb.generic(
      {{op.getB(), {0, inBytes}}, {op.getScales(), {0, inGroups}}}, wide,
      {0, 1}, {par, par},
      [&](ImplicitLocOpBuilder &b, ValueRange args) -> Value {
        Value number = readInteger(b, args[0], /*axis=*/1, bits);
        return arith::MulFOp::create(b, number, args[1]);
      });
}

Value mlir::diffattn::decomposeQuantizedGemm(OpBuilder &builder,
                                             QuantizedGemmOp op) {
  StructuredBuilder sb(builder, op.getLoc(),
                       isa<TensorType>(op.getC().getType()));
  Value weight = buildWeight(sb, op);
  SmallVector<OpFoldResult> sizes{sb.size(op.getC(), 0), sb.size(op.getC(), 1)};
  Value sums = sb.filled(sizes, 0.0f);
  if (op.getAccumulate())
    sums = sb.generic({{op.getC(), {0, 1}}}, sums, {0, 1}, {par, par},
                      [](ImplicitLocOpBuilder &b, ValueRange args) -> Value {
                        return widen(b, args[0]);
                      });
  sums = sb.generic(
      {{op.getA(), {0, 2}}, {weight, {1, 2}}}, sums, {0, 1}, {par, par, red},
      [](ImplicitLocOpBuilder &b, ValueRange args) -> Value {
        Value product = arith::MulFOp::create(b, widen(b, args[0]), args[1]);
        return arith::AddFOp::create(b, args[2], product);
      });
  Type type = getElementTypeOrSelf(op.getC().getType());
  Value result =
      sb.generic({{sums, {0, 1}}}, op.getC(), {0, 1}, {par, par},
                 [&](ImplicitLocOpBuilder &b, ValueRange args) -> Value {
                   if (type.isF32())
                     return args[0];
                   return arith::TruncFOp::create(b, type, args[0]);
                 });
  sb.freeTemporaries();
  return result;
}
