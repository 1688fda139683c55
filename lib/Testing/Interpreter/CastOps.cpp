//===- CastOps.cpp - constants, casts and select --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CodeBuilder.h"
#include "Constants.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;
using llvm::APFloat;

static Type elementOf(Value value) {
  return getElementTypeOrSelf(value.getType());
}

// --- integers

/// Truncation and sign extension: the lowest `imm` bits, sign-extended.
static bool runSignExtend(Machine &m, const Inst &inst) {
  m.scalars[inst.dst].i =
      signExtend(m.scalars[inst.a].i, static_cast<int>(inst.imm));
  return true;
}
static bool runZeroExtend(Machine &m, const Inst &inst) {
  m.scalars[inst.dst].i = signExtend(
      zeroExtend(m.scalars[inst.a].i, static_cast<int>(inst.imm & 0xff)),
      static_cast<int>(inst.imm >> 8));
  return true;
}
static bool runZeroExtendNonNegative(Machine &m, const Inst &inst) {
  if (m.scalars[inst.a].i < 0)
    m.markUndefined(inst, "the result of nneg on a negative number is not "
                          "defined");
  return runZeroExtend(m, inst);
}
/// `imm` is the width of the result, and from bit 8 on that of the operand.
static bool runTruncateChecked(Machine &m, const Inst &inst) {
  const int to = static_cast<int>(inst.imm & 0xff);
  const int from = static_cast<int>((inst.imm >> 8) & 0xff);
  const int64_t value = m.scalars[inst.a].i, result = signExtend(value, to);
  const bool nsw = inst.imm >> 16 & 1, nuw = inst.imm >> 17 & 1;
  if ((nsw && result != value) ||
      (nuw && zeroExtend(value, from) != zeroExtend(result, to)))
    m.markUndefined(inst, "the result of an overflow under nsw or nuw is not "
                          "defined");
  m.scalars[inst.dst].i = result;
  return true;
}

static bool buildSignExtend(CodeBuilder &b, Operation *op) {
  return b.emitOp(runSignExtend, op, getWidth(elementOf(op->getResult(0))));
}
static bool buildZeroExtend(CodeBuilder &b, Operation *op) {
  return b.emitOp(
      op->hasAttr("nonNeg") ? runZeroExtendNonNegative : runZeroExtend, op,
      getWidth(elementOf(op->getOperand(0))) |
          getWidth(elementOf(op->getResult(0))) << 8);
}
static bool buildTruncate(CodeBuilder &b, Operation *op) {
  auto flags = cast<arith::ArithIntegerOverflowFlagsInterface>(op);
  const int64_t nsw = flags.hasNoSignedWrap(), nuw = flags.hasNoUnsignedWrap();
  if (!nsw && !nuw)
    return buildSignExtend(b, op);
  return b.emitOp(runTruncateChecked, op,
                  getWidth(elementOf(op->getResult(0))) |
                      getWidth(elementOf(op->getOperand(0))) << 8 | nsw << 16 |
                      nuw << 17);
}

// --- between integers and floats

namespace {
template <FloatKind kind>
struct SignedToFloat {
  static bool run(Machine &m, const Inst &inst) {
    const int64_t value = m.scalars[inst.a].i;
    double result;
    if constexpr (kind == FloatKind::F64) {
      result = static_cast<double>(value);
    } else {
      const uint64_t magnitude =
          value < 0 ? -static_cast<uint64_t>(value) : value;
      result = oddFromMagnitude(magnitude);
      result = roundTo<kind>(value < 0 ? -result : result, m.random);
    }
    m.scalars[inst.dst].f = result;
    return true;
  }
};
/// `imm` is the width of the operand.
template <FloatKind kind>
struct UnsignedToFloat {
  static bool run(Machine &m, const Inst &inst) {
    const auto value = static_cast<uint64_t>(
        zeroExtend(m.scalars[inst.a].i, static_cast<int>(inst.imm)));
    m.scalars[inst.dst].f =
        kind == FloatKind::F64
            ? static_cast<double>(value)
            : roundTo<kind>(oddFromMagnitude(value), m.random);
    return true;
  }
};
} // namespace

template <template <FloatKind> class Op>
static bool buildToFloat(CodeBuilder &b, Operation *op) {
  return b.emitOp(pickFloat<Op>(b.kindOf(op->getResult(0).getType())), op,
                  getWidth(elementOf(op->getOperand(0))));
}

/// `imm` is the width of the result. Beyond the type the nearest number is
/// taken, for NaN 0.
template <bool isSigned>
static bool runToInteger(Machine &m, const Inst &inst) {
  const int width = static_cast<int>(inst.imm);
  const double value = std::trunc(m.scalars[inst.a].f);
  const double end = std::ldexp(1.0, isSigned ? width - 1 : width);
  const double low = isSigned ? -end : 0.0;
  int64_t result;
  if (value >= low && value < end) {
    result = isSigned ? static_cast<int64_t>(value)
                      : static_cast<int64_t>(static_cast<uint64_t>(value));
  } else {
    m.markUndefined(inst, "the result of a cast of a float that the integer "
                          "type does not hold is not defined");
    const int64_t lowest =
        isSigned ? static_cast<int64_t>(~uint64_t(0) << (width - 1)) : 0;
    result = std::isnan(value) ? 0 : value < 0 ? lowest : ~lowest;
  }
  m.scalars[inst.dst].i = signExtend(result, width);
  return true;
}
template <bool isSigned>
static bool buildToInteger(CodeBuilder &b, Operation *op) {
  return b.emitOp(runToInteger<isSigned>, op,
                  getWidth(elementOf(op->getResult(0))));
}

// --- floats

static bool runCopy(Machine &m, const Inst &inst) {
  m.scalars[inst.dst] = m.scalars[inst.a];
  return true;
}
namespace {
template <FloatKind kind>
struct Round {
  static bool run(Machine &m, const Inst &inst) {
    m.scalars[inst.dst].f = roundTo<kind>(m.scalars[inst.a].f, m.random);
    return true;
  }
};
struct RoundingMode : Details {
  const llvm::fltSemantics *semantics = nullptr;
  llvm::RoundingMode mode = llvm::RoundingMode::NearestTiesToEven;
};
} // namespace

static bool runRoundBy(Machine &m, const Inst &inst) {
  const auto &details = inst.as<RoundingMode>();
  APFloat value(m.scalars[inst.a].f);
  bool losesInfo;
  value.convert(*details.semantics, details.mode, &losesInfo);
  m.scalars[inst.dst].f = value.convertToDouble();
  return true;
}

static llvm::RoundingMode toLlvm(arith::RoundingMode mode) {
  switch (mode) {
  case arith::RoundingMode::to_nearest_even:
    return llvm::RoundingMode::NearestTiesToEven;
  case arith::RoundingMode::downward:
    return llvm::RoundingMode::TowardNegative;
  case arith::RoundingMode::upward:
    return llvm::RoundingMode::TowardPositive;
  case arith::RoundingMode::toward_zero:
    return llvm::RoundingMode::TowardZero;
  case arith::RoundingMode::to_nearest_away:
    return llvm::RoundingMode::NearestTiesToAway;
  }
  return llvm::RoundingMode::NearestTiesToEven;
}

static bool buildExtF(CodeBuilder &b, Operation *op) {
  return b.emitOp(runCopy, op);
}
static bool buildTruncF(CodeBuilder &b, Operation *op) {
  auto mode = cast<arith::TruncFOp>(op).getRoundingmode();
  Type type = elementOf(op->getResult(0));
  if (!mode || b.machine.options.precision != Precision::AsWritten)
    return b.emitOp(pickFloat<Round>(b.kindOf(type)), op);
  if (!b.emitOp(runRoundBy, op))
    return false;
  auto &details = b.addDetails<RoundingMode>(b.code->insts.back());
  details.semantics = &cast<FloatType>(type).getFloatSemantics();
  details.mode = toLlvm(*mode);
  return true;
}

// --- bits

namespace {
/// Null for integers.
struct Bits : Details {
  const llvm::fltSemantics *from = nullptr, *to = nullptr;
  int width = 0;
};
} // namespace

static bool runBitcast(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Bits>();
  uint64_t bits = static_cast<uint64_t>(m.scalars[inst.a].i);
  if (details.from) {
    APFloat value(m.scalars[inst.a].f);
    bool losesInfo;
    value.convert(*details.from, llvm::RoundingMode::NearestTiesToEven,
                  &losesInfo);
    bits = value.bitcastToAPInt().getZExtValue();
  }
  if (details.to) {
    APFloat value(*details.to,
                  llvm::APInt(details.width, bits, /*isSigned=*/false,
                              /*implicitTrunc=*/true));
    bool losesInfo;
    value.convert(APFloat::IEEEdouble(), llvm::RoundingMode::NearestTiesToEven,
                  &losesInfo);
    m.scalars[inst.dst].f = value.convertToDouble();
  } else {
    m.scalars[inst.dst].i =
        signExtend(static_cast<int64_t>(bits), details.width);
  }
  return true;
}

static bool buildBitcast(CodeBuilder &b, Operation *op) {
  if (!b.emitOp(runBitcast, op))
    return false;
  auto &details = b.addDetails<Bits>(b.code->insts.back());
  auto from = dyn_cast<FloatType>(elementOf(op->getOperand(0)));
  auto to = dyn_cast<FloatType>(elementOf(op->getResult(0)));
  details.from = from ? &from.getFloatSemantics() : nullptr;
  details.to = to ? &to.getFloatSemantics() : nullptr;
  details.width = getWidth(elementOf(op->getResult(0)));
  return true;
}

// --- select and constants

static bool runSelect(Machine &m, const Inst &inst) {
  m.scalars[inst.dst] = m.scalars[m.scalars[inst.a].i ? inst.b : inst.c];
  return true;
}
static bool runSelectTensor(Machine &m, const Inst &inst) {
  m.tensors[inst.dst] = m.take(inst, m.scalars[inst.a].i ? inst.b : inst.c);
  return true;
}
static bool buildSelect(CodeBuilder &b, Operation *op) {
  auto select = cast<arith::SelectOp>(op);
  return b.emitOp(
      b.get(select.getTrueValue()).isTensor ? runSelectTensor : runSelect, op);
}

static bool buildConstant(CodeBuilder &b, Operation *op) {
  auto value = cast<arith::ConstantOp>(op).getValue();
  Register result;
  if (!b.define(op->getResult(0), result))
    return false;
  if (!result.isTensor) {
    b.function.scalars[result.number] = readScalar(value);
    return true;
  }
  auto array = readConstant(value, b.machine.budget);
  if (!array)
    return b.machine.fail(op, array.takeError());
  b.function.tensors[result.number] = std::move(*array);
  return true;
}

static bool buildIndexConstant(CodeBuilder &b, Operation *op) {
  Register result;
  if (!b.define(op->getResult(0), result))
    return false;
  b.function.scalars[result.number] = readScalar(op->getAttr("value"));
  return true;
}

void mlir::diffattn::interpreter::addCastOps(OpTable &table) {
  table["index.constant"] = buildIndexConstant;
  table["index.bool.constant"] = buildIndexConstant;
  table["index.casts"] = buildSignExtend;
  table["index.castu"] = buildZeroExtend;
  table["arith.constant"] = buildConstant;
  table["arith.select"] = buildSelect;
  table["arith.extsi"] = buildSignExtend;
  table["arith.extui"] = buildZeroExtend;
  table["arith.trunci"] = buildTruncate;
  table["arith.index_cast"] = buildSignExtend;
  table["arith.index_castui"] = buildZeroExtend;
  table["arith.sitofp"] = buildToFloat<SignedToFloat>;
  table["arith.uitofp"] = buildToFloat<UnsignedToFloat>;
  table["arith.fptosi"] = buildToInteger<true>;
  table["arith.fptoui"] = buildToInteger<false>;
  table["arith.extf"] = buildExtF;
  table["arith.truncf"] = buildTruncF;
  table["arith.bitcast"] = buildBitcast;
}
