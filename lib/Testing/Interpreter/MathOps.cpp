//===- MathOps.cpp - functions of floats ----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// libm's functions of f64, rounded to the type of the result.
//
//===----------------------------------------------------------------------===//
#include "FloatFunctions.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

namespace {
template <FloatKind kind>
struct FusedMultiplyAdd {
  static bool run(Machine &m, const Inst &inst) {
    m.scalars[inst.dst].f =
        fusedMultiplyAdd<kind>(m.scalars[inst.a].f, m.scalars[inst.b].f,
                               m.scalars[inst.c].f, m.random);
    return true;
  }
};

/// The cosine goes to register `c`.
template <FloatKind kind>
struct SinCos {
  static bool run(Machine &m, const Inst &inst) {
    const double value = m.scalars[inst.a].f;
    m.scalars[inst.dst].f = roundTo<kind>(std::sin(value), m.random);
    m.scalars[inst.c].f = roundTo<kind>(std::cos(value), m.random);
    return true;
  }
};

/// An integer power.
template <FloatKind kind>
struct IntegerPower {
  static bool run(Machine &m, const Inst &inst) {
    const double base = m.scalars[inst.a].f;
    const int64_t exponent = m.scalars[inst.b].i;
    // The exponent as f64 may have lost its last bit, which decides the sign.
    const double magnitude =
        std::pow(std::fabs(base), static_cast<double>(exponent));
    const bool negative = std::signbit(base) && (exponent & 1);
    m.scalars[inst.dst].f =
        roundTo<kind>(negative && exponent ? -magnitude : magnitude, m.random);
    return true;
  }
};
} // namespace

static double absolute(double x) { return std::fabs(x); }
static double rsqrt(double x) { return 1.0 / std::sqrt(x); }
/// Half to even, in the default rounding mode.
static double roundEven(double x) { return std::nearbyint(x); }

template <template <FloatKind> class Op>
static bool build(CodeBuilder &b, Operation *op) {
  return b.emitOp(pickFloat<Op>(b.kindOf(op->getResult(0).getType())), op);
}

static bool buildSinCos(CodeBuilder &b, Operation *op) {
  if (!build<SinCos>(b, op))
    return false;
  const size_t at = b.code->insts.size() - 1;
  Register cosine;
  if (!b.define(op->getResult(1), cosine))
    return false;
  b.code->insts[at].c = cosine.number;
  return true;
}

/// math.clampf, as math defines and lowers it.
static bool runClamp(Machine &m, const Inst &inst) {
  m.scalars[inst.dst].f = maximum(
      minimum(m.scalars[inst.a].f, m.scalars[inst.b].f), m.scalars[inst.c].f);
  return true;
}
static bool buildClamp(CodeBuilder &b, Operation *op) {
  return b.emitOp(runClamp, op);
}

namespace {
enum Class { kFinite, kInf, kNaN, kNormal };
} // namespace

template <Class what>
static bool runClassify(Machine &m, const Inst &inst) {
  const double value = m.scalars[inst.a].f;
  bool holds = false;
  if (what == kFinite)
    holds = std::isfinite(value);
  else if (what == kInf)
    holds = std::isinf(value);
  else if (what == kNaN)
    holds = std::isnan(value);
  else
    holds = std::isfinite(value) &&
            std::fabs(value) >= std::ldexp(1.0, static_cast<int>(inst.imm));
  m.scalars[inst.dst].i = -int64_t(holds);
  return true;
}
/// `imm` is the exponent of the least normal number.
template <Class what>
static bool buildClassify(CodeBuilder &b, Operation *op) {
  Type type = getElementTypeOrSelf(op->getOperand(0).getType());
  const auto &semantics = cast<FloatType>(type).getFloatSemantics();
  return b.emitOp(runClassify<what>, op,
                  llvm::APFloat::semanticsMinExponent(semantics));
}

void mlir::diffattn::interpreter::addMathOps(OpTable &table) {
  table["math.absf"] = UnaryOp<absolute>::build;
  table["math.acos"] = UnaryOp<std::acos>::build;
  table["math.acosh"] = UnaryOp<std::acosh>::build;
  table["math.asin"] = UnaryOp<std::asin>::build;
  table["math.asinh"] = UnaryOp<std::asinh>::build;
  table["math.atan"] = UnaryOp<std::atan>::build;
  table["math.atanh"] = UnaryOp<std::atanh>::build;
  table["math.cbrt"] = UnaryOp<std::cbrt>::build;
  table["math.ceil"] = UnaryOp<std::ceil>::build;
  table["math.cos"] = UnaryOp<std::cos>::build;
  table["math.cosh"] = UnaryOp<std::cosh>::build;
  table["math.erf"] = UnaryOp<std::erf>::build;
  table["math.erfc"] = UnaryOp<std::erfc>::build;
  table["math.exp"] = UnaryOp<std::exp>::build;
  table["math.exp2"] = UnaryOp<std::exp2>::build;
  table["math.expm1"] = UnaryOp<std::expm1>::build;
  table["math.floor"] = UnaryOp<std::floor>::build;
  table["math.log"] = UnaryOp<std::log>::build;
  table["math.log10"] = UnaryOp<std::log10>::build;
  table["math.log1p"] = UnaryOp<std::log1p>::build;
  table["math.log2"] = UnaryOp<std::log2>::build;
  table["math.round"] = UnaryOp<std::round>::build;
  table["math.roundeven"] = UnaryOp<roundEven>::build;
  table["math.rsqrt"] = UnaryOp<rsqrt>::build;
  table["math.sin"] = UnaryOp<std::sin>::build;
  table["math.sinh"] = UnaryOp<std::sinh>::build;
  table["math.sqrt"] = UnaryOp<std::sqrt>::build;
  table["math.tan"] = UnaryOp<std::tan>::build;
  table["math.tanh"] = UnaryOp<std::tanh>::build;
  table["math.trunc"] = UnaryOp<std::trunc>::build;
  table["math.atan2"] = BinaryOp<std::atan2>::build;
  table["math.copysign"] = BinaryOp<std::copysign>::build;
  table["math.powf"] = BinaryOp<std::pow>::build;
  table["math.fpowi"] = build<IntegerPower>;
  table["math.fma"] = build<FusedMultiplyAdd>;
  table["math.sincos"] = buildSinCos;
  table["math.clampf"] = buildClamp;
  table["math.isfinite"] = buildClassify<kFinite>;
  table["math.isinf"] = buildClassify<kInf>;
  table["math.isnan"] = buildClassify<kNaN>;
  table["math.isnormal"] = buildClassify<kNormal>;
}
