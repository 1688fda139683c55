//===- PlainNumbers.cpp - scalar ops in plain C++ -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Plain.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include "gtest/gtest.h"

#include <cmath>

using namespace mlir;

namespace plain {

using Wide = __int128;

bool same(Number a, Number b) {
  if (a.kind != b.kind)
    return false;
  if (a.kind == Number::Real)
    return (std::isnan(a.real) && std::isnan(b.real)) || a.real == b.real;
  return a.integer == b.integer;
}

std::string text(Number number) {
  switch (number.kind) {
  case Number::Undefined:
    return "undefined";
  case Number::Integer:
    return std::to_string(number.integer);
  case Number::Real: {
    char buffer[40];
    snprintf(buffer, sizeof(buffer), "%.17g", number.real);
    return buffer;
  }
  }
  return "";
}

unsigned widthOf(Type type) {
  return type.isIndex() ? 64 : type.getIntOrFloatBitWidth();
}

int64_t wrap(Wide bits, Type type) {
  unsigned width = widthOf(type);
  if (width == 1)
    return static_cast<int64_t>(bits & 1);
  Wide modulus = Wide(1) << width;
  Wide rest = ((bits % modulus) + modulus) % modulus;
  return static_cast<int64_t>(rest >= modulus / 2 ? rest - modulus : rest);
}

/// `number` with its sign: a true value is -1.
static Wide withSign(int64_t number, Type type) {
  return widthOf(type) == 1 ? -Wide(number & 1) : Wide(number);
}

static Wide withoutSign(int64_t number, Type type) {
  Wide modulus = Wide(1) << widthOf(type);
  return ((Wide(number) % modulus) + modulus) % modulus;
}

double nearest(long double number, Type type) {
  if (type.isF64() || !std::isfinite(number))
    return static_cast<double>(number);
  if (number == 0)
    return static_cast<double>(number);
  // Digits of the significand, and the exponents of normal numbers.
  int digits = 24, least = -126, most = 127;
  if (type.isF16())
    digits = 11, least = -14, most = 15;
  else if (type.isBF16())
    digits = 8;
  int exponent = std::max(std::ilogb(number), least);
  long double steps = std::nearbyint(
      std::ldexp(number, digits - 1 - exponent)); // in units of the last digit
  long double rounded = std::ldexp(steps, exponent - (digits - 1));
  if (std::ilogb(rounded) > most)
    return std::copysign(INFINITY, static_cast<double>(number));
  return static_cast<double>(rounded);
}

static Number divided(Wide a, Wide b, int rounding, Type type, bool isSigned) {
  Wide least = -(Wide(1) << (widthOf(type) - 1));
  if (b == 0 || (isSigned && a == least && b == -1))
    return {};
  Wide quotient = a / b;
  bool exact = quotient * b == a, isPositive = (a < 0) == (b < 0);
  if (rounding < 0 && !exact && !isPositive)
    --quotient;
  if (rounding > 0 && !exact && isPositive)
    ++quotient;
  return Number::of(wrap(quotient, type));
}

Number computeInteger(StringRef name, Type type, int64_t x, int64_t y) {
  Wide a = withSign(x, type), b = withSign(y, type);
  Wide ua = withoutSign(x, type), ub = withoutSign(y, type);
  auto is = [&](StringRef other) { return name == other; };
  auto number = [&](Wide bits) { return Number::of(wrap(bits, type)); };
  if (is("addi"))
    return number(a + b);
  if (is("subi"))
    return number(a - b);
  if (is("muli"))
    return number(a * b);
  if (is("andi"))
    return number(x & y);
  if (is("ori"))
    return number(x | y);
  if (is("xori"))
    return number(x ^ y);
  if (is("divsi"))
    return divided(a, b, 0, type, true);
  if (is("divui"))
    return divided(ua, ub, 0, type, false);
  if (is("floordivsi"))
    return divided(a, b, -1, type, true);
  if (is("ceildivsi"))
    return divided(a, b, 1, type, true);
  if (is("ceildivui"))
    return divided(ua, ub, 1, type, false);
  if (is("remsi")) {
    Number quotient = divided(a, b, 0, type, true);
    return quotient.isDefined() ? number(a - a / b * b) : quotient;
  }
  if (is("remui"))
    return ub == 0 ? Number() : number(ua % ub);
  if (is("shli") || is("shrsi") || is("shrui")) {
    if (ub >= widthOf(type))
      return {};
    int by = static_cast<int>(ub);
    if (is("shli"))
      return number(
          static_cast<Wide>(static_cast<unsigned __int128>(ua) << by));
    Wide power = Wide(1) << by, from = is("shrsi") ? a : ua;
    return number((from - ((from % power) + power) % power) / power);
  }
  if (is("maxsi"))
    return number(a > b ? a : b);
  if (is("minsi"))
    return number(a < b ? a : b);
  if (is("maxui"))
    return number(ua > ub ? ua : ub);
  if (is("minui"))
    return number(ua < ub ? ua : ub);
  if (is("absi"))
    return number(a < 0 ? -a : a);
  if (is("ctpop"))
    return number(__builtin_popcountll(static_cast<uint64_t>(ua)));
  if (is("ipowi")) {
    if (b < 0)
      return {};
    Wide power = 1;
    for (Wide k = 0; k < (b > 200 ? 200 : b); ++k)
      power = wrap(power * a, type);
    return b > 200 ? Number() : number(power);
  }
  ADD_FAILURE() << "no plain meaning of " << name.str();
  return {};
}

static bool compareIntegers(arith::CmpIPredicate predicate, Type type,
                            int64_t x, int64_t y) {
  using P = arith::CmpIPredicate;
  Wide a = withSign(x, type), b = withSign(y, type);
  Wide ua = withoutSign(x, type), ub = withoutSign(y, type);
  switch (predicate) {
  case P::eq:
    return ua == ub;
  case P::ne:
    return ua != ub;
  case P::slt:
    return a < b;
  case P::sle:
    return a <= b;
  case P::sgt:
    return a > b;
  case P::sge:
    return a >= b;
  case P::ult:
    return ua < ub;
  case P::ule:
    return ua <= ub;
  case P::ugt:
    return ua > ub;
  case P::uge:
    return ua >= ub;
  }
  return false;
}

static bool compareReals(arith::CmpFPredicate predicate, double a, double b) {
  using P = arith::CmpFPredicate;
  bool isNan = a != a || b != b;
  switch (predicate) {
  case P::AlwaysFalse:
    return false;
  case P::AlwaysTrue:
    return true;
  case P::ORD:
    return !isNan;
  case P::UNO:
    return isNan;
  case P::OEQ:
  case P::UEQ:
    return isNan ? predicate == P::UEQ : a == b;
  case P::ONE:
  case P::UNE:
    return isNan ? predicate == P::UNE : a != b;
  case P::OLT:
  case P::ULT:
    return isNan ? predicate == P::ULT : a < b;
  case P::OLE:
  case P::ULE:
    return isNan ? predicate == P::ULE : a <= b;
  case P::OGT:
  case P::UGT:
    return isNan ? predicate == P::UGT : a > b;
  case P::OGE:
  case P::UGE:
    return isNan ? predicate == P::UGE : a >= b;
  }
  return false;
}

static Number computeReal(StringRef name, Type type, ArrayRef<double> v) {
  auto is = [&](StringRef other) { return name == other; };
  auto real = [&](long double number) {
    return Number::ofReal(nearest(number, type));
  };
  // In f64 these round once; rounded again to less than half of its digits, a
  // sum, product, quotient or root is that of the narrow type.
  if (is("addf"))
    return real(v[0] + v[1]);
  if (is("subf"))
    return real(v[0] - v[1]);
  if (is("mulf"))
    return real(v[0] * v[1]);
  if (is("divf"))
    return real(v[0] / v[1]);
  if (is("negf"))
    return real(-v[0]);
  if (is("absf"))
    return real(v[0] < 0 ? -v[0] : v[0]);
  bool isNan = v[0] != v[0] || (v.size() > 1 && v[1] != v[1]);
  if (is("maximumf") || is("minimumf")) {
    if (isNan)
      return real(NAN);
    return real((v[0] < v[1]) == is("minimumf") ? v[0] : v[1]);
  }
  if (is("maxnumf") || is("minnumf")) {
    if (isNan)
      return real(v[0] != v[0] ? v[1] : v[0]);
    return real((v[0] < v[1]) == is("minnumf") ? v[0] : v[1]);
  }
  using L = long double;
  if (is("exp"))
    return real(std::exp(L(v[0])));
  if (is("exp2"))
    return real(std::exp2(L(v[0])));
  if (is("log"))
    return real(std::log(L(v[0])));
  if (is("sqrt"))
    return real(std::sqrt(v[0]));
  if (is("rsqrt"))
    return real(1 / std::sqrt(L(v[0])));
  if (is("tanh"))
    return real(std::tanh(L(v[0])));
  if (is("powf"))
    return real(std::pow(L(v[0]), L(v[1])));
  if (is("floor"))
    return real(std::floor(v[0]));
  if (is("ceil"))
    return real(std::ceil(v[0]));
  if (is("erf"))
    return real(std::erf(L(v[0])));
  if (is("fma"))
    return type.isF64() ? Number::ofReal(std::fma(v[0], v[1], v[2]))
                        : real(L(v[0]) * v[1] + v[2]);
  ADD_FAILURE() << "no plain meaning of " << name.str();
  return {};
}

static Number toInteger(double number, Type type, bool isSigned) {
  long double whole = std::trunc(static_cast<long double>(number));
  unsigned width = widthOf(type);
  long double low = isSigned ? -std::ldexp(1.0L, width - 1) : 0,
              high = std::ldexp(1.0L, isSigned ? width - 1 : width);
  // NaN compares as false.
  if (whole >= low && whole < high)
    return Number::of(wrap(static_cast<Wide>(whole), type));
  return {};
}

static bool hasFlag(Operation *op, arith::IntegerOverflowFlags flag) {
  auto flags = dyn_cast<arith::ArithIntegerOverflowFlagsInterface>(op);
  return flags &&
         (flag == arith::IntegerOverflowFlags::nsw ? flags.hasNoSignedWrap()
                                                   : flags.hasNoUnsignedWrap());
}

/// Whether a sum, difference or product breaks a promise not to wrap around.
static bool wrapsAgainstPromise(Operation *op, StringRef name, Type type,
                                int64_t x, int64_t y) {
  auto exact = [&](Wide a, Wide b) {
    return name == "addi" ? a + b : name == "subi" ? a - b : a * b;
  };
  if (name != "addi" && name != "subi" && name != "muli")
    return false;
  Wide half = Wide(1) << (widthOf(type) - 1);
  Wide isSigned = exact(withSign(x, type), withSign(y, type));
  Wide a = withoutSign(x, type), b = withoutSign(y, type);
  // The product of two numbers of 64 bits needs all 128.
  using UnsignedWide = unsigned __int128;
  bool leavesUnsigned =
      name == "muli"
          ? UnsignedWide(a) * UnsignedWide(b) >= UnsignedWide(2 * half)
          : exact(a, b) < 0 || exact(a, b) >= 2 * half;
  return (hasFlag(op, arith::IntegerOverflowFlags::nsw) &&
          (isSigned < -half || isSigned >= half)) ||
         (hasFlag(op, arith::IntegerOverflowFlags::nuw) && leavesUnsigned);
}

Number compute(Operation *op, ArrayRef<Number> o) {
  StringRef name = op->getName().stripDialect();
  Type type = getElementTypeOrSelf(op->getResult(0).getType());
  Type from = op->getNumOperands()
                  ? getElementTypeOrSelf(op->getOperand(0).getType())
                  : type;
  if (auto constant = dyn_cast<arith::ConstantOp>(op)) {
    if (auto number = dyn_cast<FloatAttr>(constant.getValue()))
      return Number::ofReal(number.getValueAsDouble());
    APInt bits = cast<IntegerAttr>(constant.getValue()).getValue();
    return Number::of(wrap(bits.getSExtValue(), type));
  }
  if (isa<arith::SelectOp>(op)) {
    if (!o[0].isDefined())
      return {};
    return o[0].integer ? o[1] : o[2];
  }
  for (Number operand : o)
    if (!operand.isDefined())
      return {};
  if (auto compare = dyn_cast<arith::CmpIOp>(op))
    return Number::of(compareIntegers(compare.getPredicate(), from,
                                      o[0].integer, o[1].integer));
  if (auto compare = dyn_cast<arith::CmpFOp>(op))
    return Number::of(
        compareReals(compare.getPredicate(), o[0].real, o[1].real));
  if (isa<arith::ExtFOp, arith::TruncFOp>(op))
    return Number::ofReal(nearest(o[0].real, type));
  if (isa<arith::SIToFPOp>(op))
    return Number::ofReal(
        nearest(static_cast<long double>(withSign(o[0].integer, from)), type));
  if (isa<arith::UIToFPOp>(op))
    return Number::ofReal(nearest(
        static_cast<long double>(withoutSign(o[0].integer, from)), type));
  if (isa<arith::FPToSIOp, arith::FPToUIOp>(op))
    return toInteger(o[0].real, type, isa<arith::FPToSIOp>(op));
  if (isa<arith::ExtSIOp, arith::TruncIOp, arith::IndexCastOp>(op))
    return Number::of(wrap(withSign(o[0].integer, from), type));
  if (isa<arith::ExtUIOp, arith::IndexCastUIOp>(op))
    return Number::of(wrap(withoutSign(o[0].integer, from), type));
  if (isa<math::IsNaNOp>(op))
    return Number::of(std::isnan(o[0].real));
  if (isa<math::IsInfOp>(op))
    return Number::of(std::isinf(o[0].real));
  if (isa<math::IsFiniteOp>(op))
    return Number::of(std::isfinite(o[0].real));
  if (isa<math::FPowIOp>(op))
    return Number::ofReal(nearest(
        std::pow(static_cast<long double>(o[0].real), o[1].integer), type));
  if (isa<FloatType>(type)) {
    SmallVector<double> reals;
    for (Number operand : o)
      reals.push_back(operand.real);
    return computeReal(name, type, reals);
  }
  int64_t second = o.size() > 1 ? o[1].integer : 0;
  if (wrapsAgainstPromise(op, name, type, o[0].integer, second))
    return {};
  return computeInteger(name, type, o[0].integer, second);
}

} // namespace plain
