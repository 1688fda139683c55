//===- Activations.cpp - exponentials that kernels share ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <algorithm>
#include <limits>

using namespace mlir;
using namespace mlir::diffattn;

static Value fma(ImplicitLocOpBuilder &b, Value x, Value y, Value z) {
  // vector.fma becomes a fused product where the CPU has one and two
  // instructions elsewhere; math.fma would become a call of libm there.
  if (isa<VectorType>(x.getType()))
    return vector::FMAOp::create(b, x, y, z);
  return arith::AddFOp::create(b, arith::MulFOp::create(b, x, y), z);
}

/// i32 of the same shape as `type`.
static Type integersLike(Type type) {
  Type i32 = IntegerType::get(type.getContext(), 32);
  if (auto vector = dyn_cast<VectorType>(type))
    return vector.clone(i32);
  return i32;
}

Value mlir::diffattn::emitConstant(ImplicitLocOpBuilder &b, Type type,
                                   float value) {
  FloatAttr scalar = b.getF32FloatAttr(value);
  if (auto vector = dyn_cast<VectorType>(type))
    return arith::ConstantOp::create(b, DenseElementsAttr::get(vector, scalar));
  return arith::ConstantOp::create(b, scalar);
}

Value mlir::diffattn::emitMaximum(ImplicitLocOpBuilder &b, Value running,
                                  Value next) {
  Value greater =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, next, running);
  return arith::SelectOp::create(b, greater, next, running);
}

/// Horner's scheme for `coefficients`, each times `factor`.
static Value emitPolynomial(ImplicitLocOpBuilder &b, Value x,
                            ArrayRef<float> coefficients, float factor) {
  Type type = x.getType();
  Value p = emitConstant(b, type, factor * coefficients.back());
  for (float coefficient : llvm::reverse(coefficients.drop_back()))
    p = fma(b, p, x, emitConstant(b, type, factor * coefficient));
  return p;
}

/// An instruction of AVX-512 on all lanes, by the rounding in force.
static Value emitAvx512(ImplicitLocOpBuilder &b, StringRef name,
                        ValueRange operands) {
  constexpr int32_t kCurrentRounding = 4;
  Type i16 = b.getI16Type();
  SmallVector<Value> all(operands);
  all.push_back(operands.front());
  all.push_back(
      arith::ConstantOp::create(b, b.getIntegerAttr(i16, int64_t(-1))));
  all.push_back(
      arith::ConstantOp::create(b, b.getI32IntegerAttr(kCurrentRounding)));
  return LLVM::CallIntrinsicOp::create(
             b, operands.front().getType(),
             b.getStringAttr("llvm.x86.avx512.mask." + name + ".ps.512"), all)
      .getResult(0);
}

/// `difference`, x - whole >= 0 to the nearest number, rounded down instead: as
/// the instruction does that cuts off the integer below. `whole` is not smaller
/// in magnitude than x.
static Value roundDifferenceDown(ImplicitLocOpBuilder &b, Value x, Value whole,
                                 Value difference) {
  // Exact, as what a sum with the larger one of two numbers leaves over.
  Value sum = arith::AddFOp::create(b, difference, whole);
  Value rest = arith::SubFOp::create(b, x, sum);
  Type type = x.getType(), integers = integersLike(type);
  Value isAbove = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, rest,
                                        emitConstant(b, type, 0.0f));
  Value bits = arith::BitcastOp::create(b, integers, difference);
  Value below = arith::AddIOp::create(
      b, bits, arith::ExtSIOp::create(b, integers, isAbove));
  return arith::BitcastOp::create(b, type, below);
}

Value mlir::diffattn::emitExp2(ImplicitLocOpBuilder &b, Value x, int degree,
                               ExponentCut cut) {
  // Minimax over [-0.5, 0.5], relative error.
  static const float kCoefficients[3][6] = {
      {0x1.fff692p-1f, 0x1.62f31ap-1f, 0x1.f0de1ap-3f, 0x1.c3f760p-5f},
      {0x1.ffffe8p-1f, 0x1.62e0dcp-1f, 0x1.ec06dap-3f, 0x1.ca1442p-5f,
       0x1.3997d6p-7f},
      {0x1.000002p+0f, 0x1.62e428p-1f, 0x1.ebf918p-3f, 0x1.c6b6e4p-5f,
       0x1.3d0c54p-7f, 0x1.5c08e6p-10f}};
  // Coefficients over [0, 1].
  static const float kAbove[4] = {0x1.fff632p-1f, 0x1.64444cp-1f,
                                  0x1.cefc4cp-3f, 0x1.3f96a4p-4f};
  const bool isBelow = cut != ExponentCut::Nearest;
  assert((!isBelow || degree == 3) && "expected a polynomial of degree 3");
  ArrayRef<float> coefficients(isBelow ? kAbove : kCoefficients[degree - 3],
                               degree + 1);
  Type type = x.getType();
  Value lowest = emitConstant(b, type, -126.0f);
  // The order of the operands lets NaN through.
  Value below = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, lowest, x);
  x = arith::SelectOp::create(b, below, lowest, x);
  if (cut == ExponentCut::BelowByAvx512) {
    // 1: what is left of x without the integer below; 8: without an exception.
    Value toBelow = arith::ConstantOp::create(b, b.getI32IntegerAttr(9));
    Value fraction = emitAvx512(b, "reduce", {x, toBelow});
    // Multiplies with 2 to the integer below.
    return emitAvx512(b, "scalef",
                      {emitPolynomial(b, fraction, coefficients, 1.0f), x});
  }
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits:
  // with 128 more, as the exponent of twice that power of two. A product with
  // half of the polynomial keeps NaN, whatever its bits are; a sum of exponents
  // would not.
  Value magic = emitConstant(b, type, 12582912.0f + 128.0f);
  Value whole = isBelow ? math::FloorOp::create(b, x).getResult() : x;
  Value shifted = arith::AddFOp::create(b, whole, magic);
  whole = arith::SubFOp::create(b, shifted, magic);
  Value fraction = arith::SubFOp::create(b, x, whole);
  if (isBelow)
    fraction = roundDifferenceDown(b, x, whole, fraction);
  Value p = emitPolynomial(b, fraction, coefficients, 0.5f);
  Type integers = integersLike(type);
  Value bits = arith::BitcastOp::create(b, integers, shifted);
  TypedAttr twentyThree = b.getI32IntegerAttr(23);
  if (auto vector = dyn_cast<VectorType>(integers))
    twentyThree = DenseElementsAttr::get(vector, Attribute(twentyThree));
  Value exponent =
      arith::ShLIOp::create(b, bits, arith::ConstantOp::create(b, twentyThree));
  Value power = arith::BitcastOp::create(b, type, exponent);
  return arith::MulFOp::create(b, p, power);
}

Value mlir::diffattn::emitLogarithm(ImplicitLocOpBuilder &b, Value x) {
  Type type = x.getType(), integers = integersLike(type);
  auto number = [&](float value) { return emitConstant(b, type, value); };
  auto integer = [&](int32_t value) -> Value {
    TypedAttr attr = b.getI32IntegerAttr(value);
    if (auto vector = dyn_cast<VectorType>(integers))
      attr = DenseElementsAttr::get(vector, Attribute(attr));
    return arith::ConstantOp::create(b, attr);
  };
  // x = 2^exponent (1 + f) with 1 + f from sqrt(1/2) to sqrt(2).
  constexpr int32_t kRootOfHalf = 0x3f3504f3;
  Value bits = arith::BitcastOp::create(b, integers, x);
  Value exponent = arith::ShRSIOp::create(
      b, arith::SubIOp::create(b, bits, integer(kRootOfHalf)), integer(23));
  Value mantissa = arith::SubIOp::create(
      b, bits, arith::ShLIOp::create(b, exponent, integer(23)));
  Value f = arith::SubFOp::create(
      b, arith::BitcastOp::create(b, type, mantissa), number(1.0f));
  Value whole = arith::SIToFPOp::create(b, type, exponent);
  // f - f^2/2 + f^3 p(f), minimax over that range, and the exponent times ln 2
  // in two parts, the first of which is exact.
  static const float kCoefficients[9] = {
      3.3333331174e-1f,  -2.4999993993e-1f, 2.0000714765e-1f,
      -1.6668057665e-1f, 1.4249322787e-1f,  -1.2420140846e-1f,
      1.1676998740e-1f,  -1.1514610310e-1f, 7.0376836292e-2f};
  Value square = arith::MulFOp::create(b, f, f);
  Value rest = arith::MulFOp::create(
      b, arith::MulFOp::create(b, emitPolynomial(b, f, kCoefficients, 1.0f), f),
      square);
  rest = fma(b, whole, number(-2.12194440e-4f), rest);
  rest = fma(b, square, number(-0.5f), rest);
  Value result =
      fma(b, whole, number(0.693359375f), arith::AddFOp::create(b, f, rest));
  // NaN and infinity have other bits than the formula takes them for.
  Value isFinite =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, x,
                            number(std::numeric_limits<float>::infinity()));
  return arith::SelectOp::create(b, isFinite, result, x);
}

Value PolynomialMath::exponentialOfMinus(Value x) {
  Value power = multiply(x, constant(-kLog2E));
  Value highest = constant(126.0f);
  Value above =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, power, highest);
  return emitExp2(b, select(above, highest, power));
}

Value PolynomialMath::exponential(Value difference) {
  return emitExp2(b, factor ? multiply(difference, factor) : difference, degree,
                  cut);
}

Value PolynomialMath::tanh(Value x) {
  Value magnitude = math::AbsFOp::create(b, x);
  // Far from zero: (1 - e) / (1 + e) with e = e^-2|x|, given the sign of x.
  Value e = emitExp2(b, multiply(magnitude, constant(-2.0f * kLog2E)));
  Value one = constant(1.0f);
  Value far = divide(subtract(one, e), add(one, e));
  far = math::CopySignOp::create(b, far, x);
  // Near zero that difference cancels: an odd polynomial, minimax over [0,
  // 0.625].
  static const float kNear[5] = {-5.70498872745e-3f, 2.06390887954e-2f,
                                 -5.37397155531e-2f, 1.33314422036e-1f,
                                 -3.33332819422e-1f};
  Value square = multiply(x, x);
  Value p = constant(kNear[0]);
  for (int i = 1; i < 5; ++i)
    p = fma(b, p, square, constant(kNear[i]));
  Value near = fma(b, multiply(p, square), x, x);
  Value isNear = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, magnitude,
                                       constant(0.625f));
  return select(isNear, near, far);
}

Value mlir::diffattn::emitSigmoid(ImplicitLocOpBuilder &b, Value x) {
  PolynomialMath math(b, x.getType());
  return emitSigmoid(math, x);
}

float mlir::diffattn::invertSoftcap(float cap) {
  return std::min(1.0f / cap, std::numeric_limits<float>::max());
}

Value mlir::diffattn::emitSoftcap(ImplicitLocOpBuilder &b, Value x, float cap) {
  PolynomialMath math(b, x.getType());
  return emitCapped(math, math.multiply(x, math.constant(invertSoftcap(cap))),
                    math.constant(cap));
}
