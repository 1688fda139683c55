//===- IntegerOps.cpp - integers of any width -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Registers hold integers sign-extended, so comparing two of one width as
// signed or unsigned numbers of 64 bits is comparing them at their width.
//
//===----------------------------------------------------------------------===//
#include "CodeBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Index/IR/IndexOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/bit.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

using Wide = __int128;
using UnsignedWide = unsigned __int128;

namespace {
/// An operation on two integers of a width. Sets `error` where the op has no
/// value, and `undefined` where MLIR does not say which.
struct Integers {
  int64_t a, b;
  int width;
  const char *error = nullptr, *undefined = nullptr;

  uint64_t ua() const { return static_cast<uint64_t>(zeroExtend(a, width)); }
  uint64_t ub() const { return static_cast<uint64_t>(zeroExtend(b, width)); }
  bool isLowest(int64_t value) const {
    return value == signExtend(int64_t(1) << (width - 1) % 64, width);
  }
};
} // namespace

static constexpr const char *kByZero =
    "expected a divisor other than 0, but got 0";

/// Whether a signed division has a result.
static bool checkSigned(Integers &x) {
  if (x.b == 0)
    x.error = kByZero;
  else if (x.b == -1 && x.isLowest(x.a))
    x.error = "expected a quotient that the type holds, but got the lowest "
              "number divided by -1";
  return !x.error;
}
static bool checkUnsigned(Integers &x) {
  if (x.b == 0)
    x.error = kByZero;
  return !x.error;
}
static bool checkShift(Integers &x) {
  if (x.ub() >= static_cast<uint64_t>(x.width))
    x.undefined = "the result of a shift by the width or more is not defined";
  return !x.undefined;
}

static int64_t add(Integers &x) {
  return int64_t(uint64_t(x.a) + uint64_t(x.b));
}
static int64_t sub(Integers &x) {
  return int64_t(uint64_t(x.a) - uint64_t(x.b));
}
static int64_t mul(Integers &x) {
  return int64_t(uint64_t(x.a) * uint64_t(x.b));
}
static int64_t divS(Integers &x) { return checkSigned(x) ? x.a / x.b : 0; }
static int64_t remS(Integers &x) { return checkSigned(x) ? x.a % x.b : 0; }
static int64_t floorDivS(Integers &x) {
  if (!checkSigned(x))
    return 0;
  return x.a / x.b - (x.a % x.b != 0 && (x.a < 0) != (x.b < 0));
}
static int64_t ceilDivS(Integers &x) {
  if (!checkSigned(x))
    return 0;
  return x.a / x.b + (x.a % x.b != 0 && (x.a < 0) == (x.b < 0));
}
static int64_t divU(Integers &x) {
  return checkUnsigned(x) ? int64_t(x.ua() / x.ub()) : 0;
}
static int64_t remU(Integers &x) {
  return checkUnsigned(x) ? int64_t(x.ua() % x.ub()) : 0;
}
static int64_t ceilDivU(Integers &x) {
  if (!checkUnsigned(x))
    return 0;
  return int64_t(x.ua() / x.ub() + (x.ua() % x.ub() != 0));
}
static int64_t bitAnd(Integers &x) { return x.a & x.b; }
static int64_t bitOr(Integers &x) { return x.a | x.b; }
static int64_t bitXor(Integers &x) { return x.a ^ x.b; }
static int64_t maxS(Integers &x) { return std::max(x.a, x.b); }
static int64_t minS(Integers &x) { return std::min(x.a, x.b); }
static int64_t maxU(Integers &x) {
  return uint64_t(x.a) > uint64_t(x.b) ? x.a : x.b;
}
static int64_t minU(Integers &x) {
  return uint64_t(x.a) < uint64_t(x.b) ? x.a : x.b;
}
static int64_t shiftL(Integers &x) {
  return checkShift(x) ? int64_t(uint64_t(x.a) << x.b) : 0;
}
static int64_t shiftRS(Integers &x) {
  return checkShift(x) ? x.a >> x.b : x.a >> 63;
}
static int64_t shiftRU(Integers &x) {
  return checkShift(x) ? int64_t(x.ua() >> x.b) : 0;
}

// Faults of ops with nsw, nuw or exact whose promise does not hold.
static constexpr const char *kOverflows =
    "the result of an overflow under nsw or nuw is not defined";
static constexpr const char *kInexact =
    "the result of an exact op with a remainder is not defined";

static void flagUnless(Integers &x, Wide exact, int64_t wrapped,
                       bool isSigned) {
  Wide got =
      isSigned ? Wide(wrapped) : Wide(uint64_t(zeroExtend(wrapped, x.width)));
  if (got != exact)
    x.undefined = kOverflows;
}
using Function = int64_t (*)(Integers &);
enum Flags { kNsw = 1, kNuw = 2, kExact = 4 };

/// `flags` of `x` op y, whose wrapped result is `result`.
template <Function fn>
static void checkFlags(Integers &x, int64_t result, int flags) {
  auto check = [&](bool isSigned) {
    const Wide a = isSigned ? Wide(x.a) : Wide(x.ua());
    const Wide b = isSigned ? Wide(x.b) : Wide(x.ub());
    if (fn == add)
      flagUnless(x, a + b, result, isSigned);
    else if (fn == sub)
      flagUnless(x, a - b, result, isSigned);
    else if (fn == mul) {
      // Below 2^128 as unsigned numbers, and far from it as signed ones.
      const UnsignedWide product = UnsignedWide(a) * UnsignedWide(b);
      flagUnless(x, Wide(product), result, isSigned);
    } else if (fn == shiftL && !x.undefined) {
      const int64_t back =
          isSigned ? result >> x.b
                   : int64_t(uint64_t(zeroExtend(result, x.width)) >> x.b);
      if (back != (isSigned ? x.a : int64_t(x.ua())))
        x.undefined = kOverflows;
    }
  };
  if (flags & kNsw)
    check(true);
  if (flags & kNuw)
    check(false);
  if (!(flags & kExact) || x.error || x.undefined)
    return;
  bool rest = false;
  if (fn == divS)
    rest = x.a % x.b != 0;
  else if (fn == divU)
    rest = x.ua() % x.ub() != 0;
  else if (fn == shiftRS || fn == shiftRU)
    rest = x.a & ((int64_t(1) << x.b) - 1);
  if (rest)
    x.undefined = kInexact;
}

/// `imm` holds the width, and from bit 8 on the flags.
template <Function fn, bool flagged>
static bool runBinary(Machine &m, const Inst &inst) {
  const int width = static_cast<int>(inst.imm & 0xff);
  Integers x{m.scalars[inst.a].i, m.scalars[inst.b].i, width};
  const int64_t result = signExtend(fn(x), width);
  if constexpr (flagged)
    checkFlags<fn>(x, result, static_cast<int>(inst.imm >> 8));
  if (x.error)
    return m.fail(inst, x.error);
  if (x.undefined)
    m.markUndefined(inst, x.undefined);
  m.scalars[inst.dst].i = result;
  return true;
}

static int64_t getFlags(Operation *op) {
  int64_t flags = 0;
  if (auto overflow = dyn_cast<arith::ArithIntegerOverflowFlagsInterface>(op))
    flags |= (overflow.hasNoSignedWrap() ? kNsw : 0) |
             (overflow.hasNoUnsignedWrap() ? kNuw : 0);
  if (op->hasAttr("isExact"))
    flags |= kExact;
  return flags;
}

template <Function fn>
static bool buildBinary(CodeBuilder &b, Operation *op) {
  const int64_t width = getWidth(getElementTypeOrSelf(op->getResult(0)));
  const int64_t flags = getFlags(op);
  return b.emitOp(flags ? runBinary<fn, true> : runBinary<fn, false>, op,
                  width | flags << 8);
}

static bool compare(arith::CmpIPredicate predicate, int64_t a, int64_t b) {
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  switch (predicate) {
  case arith::CmpIPredicate::eq:
    return a == b;
  case arith::CmpIPredicate::ne:
    return a != b;
  case arith::CmpIPredicate::slt:
    return a < b;
  case arith::CmpIPredicate::sle:
    return a <= b;
  case arith::CmpIPredicate::sgt:
    return a > b;
  case arith::CmpIPredicate::sge:
    return a >= b;
  case arith::CmpIPredicate::ult:
    return ua < ub;
  case arith::CmpIPredicate::ule:
    return ua <= ub;
  case arith::CmpIPredicate::ugt:
    return ua > ub;
  case arith::CmpIPredicate::uge:
    return ua >= ub;
  }
  return false;
}

static bool runCompare(Machine &m, const Inst &inst) {
  m.scalars[inst.dst].i =
      -int64_t(compare(static_cast<arith::CmpIPredicate>(inst.imm),
                       m.scalars[inst.a].i, m.scalars[inst.b].i));
  return true;
}

static bool buildCompare(CodeBuilder &b, Operation *op) {
  return b.emitOp(runCompare, op,
                  static_cast<int64_t>(cast<arith::CmpIOp>(op).getPredicate()));
}

/// The index dialect numbers the predicates in an order of its own.
static bool buildCompareIndex(CodeBuilder &b, Operation *op) {
  auto predicate = arith::symbolizeCmpIPredicate(
      index::stringifyIndexCmpPredicate(cast<index::CmpOp>(op).getPred()));
  return b.emitOp(runCompare, op, static_cast<int64_t>(*predicate));
}

// --- two results: the second one's register is `c`

static bool runAddExtended(Machine &m, const Inst &inst) {
  const int width = static_cast<int>(inst.imm);
  Integers x{m.scalars[inst.a].i, m.scalars[inst.b].i, width};
  const Wide sum = Wide(x.ua()) + Wide(x.ub());
  m.scalars[inst.dst].i = signExtend(int64_t(sum), width);
  m.scalars[inst.c].i = -int64_t((sum >> width) != 0);
  return true;
}

template <bool isSigned>
static bool runMulExtended(Machine &m, const Inst &inst) {
  const int width = static_cast<int>(inst.imm);
  Integers x{m.scalars[inst.a].i, m.scalars[inst.b].i, width};
  const UnsignedWide product =
      isSigned ? UnsignedWide(Wide(x.a) * Wide(x.b))
               : UnsignedWide(x.ua()) * UnsignedWide(x.ub());
  m.scalars[inst.dst].i = signExtend(int64_t(product), width);
  m.scalars[inst.c].i = signExtend(int64_t(product >> width), width);
  return true;
}

template <Handler run>
static bool buildExtended(CodeBuilder &b, Operation *op) {
  if (!b.emitOp(run, op, getWidth(getElementTypeOrSelf(op->getResult(0)))))
    return false;
  const size_t at = b.code->insts.size() - 1;
  Register second;
  if (!b.define(op->getResult(1), second))
    return false;
  b.code->insts[at].c = second.number;
  return true;
}

// --- one operand

using Unary = int64_t (*)(int64_t value, int width);

template <Unary fn>
static bool runUnary(Machine &m, const Inst &inst) {
  const int width = static_cast<int>(inst.imm);
  m.scalars[inst.dst].i = signExtend(fn(m.scalars[inst.a].i, width), width);
  return true;
}
template <Unary fn>
static bool buildUnary(CodeBuilder &b, Operation *op) {
  return b.emitOp(runUnary<fn>, op,
                  getWidth(getElementTypeOrSelf(op->getResult(0))));
}

static int64_t absolute(int64_t value, int) {
  return value < 0 ? int64_t(-uint64_t(value)) : value;
}
static int64_t leadingZeros(int64_t value, int width) {
  return llvm::countl_zero(uint64_t(zeroExtend(value, width))) - (64 - width);
}
static int64_t trailingZeros(int64_t value, int width) {
  return std::min<int64_t>(llvm::countr_zero(uint64_t(value)), width);
}
static int64_t populationCount(int64_t value, int width) {
  return llvm::popcount(uint64_t(zeroExtend(value, width)));
}

static int64_t power(Integers &x) {
  if (x.b < 0) {
    if (x.a == 0)
      x.error = "expected a base other than 0 for a negative power, but got 0";
    return x.a == 1 ? 1 : x.a == -1 ? (x.b & 1 ? -1 : 1) : 0;
  }
  uint64_t result = 1, base = uint64_t(x.a);
  for (int64_t exponent = x.b; exponent; exponent >>= 1) {
    if (exponent & 1)
      result *= base;
    base *= base;
  }
  return int64_t(result);
}

void mlir::diffattn::interpreter::addIntegerOps(OpTable &table) {
  table["arith.addi"] = buildBinary<add>;
  table["arith.subi"] = buildBinary<sub>;
  table["arith.muli"] = buildBinary<mul>;
  table["arith.divsi"] = buildBinary<divS>;
  table["arith.remsi"] = buildBinary<remS>;
  table["arith.floordivsi"] = buildBinary<floorDivS>;
  table["arith.ceildivsi"] = buildBinary<ceilDivS>;
  table["arith.divui"] = buildBinary<divU>;
  table["arith.remui"] = buildBinary<remU>;
  table["arith.ceildivui"] = buildBinary<ceilDivU>;
  table["arith.andi"] = buildBinary<bitAnd>;
  table["arith.ori"] = buildBinary<bitOr>;
  table["arith.xori"] = buildBinary<bitXor>;
  table["arith.maxsi"] = buildBinary<maxS>;
  table["arith.minsi"] = buildBinary<minS>;
  table["arith.maxui"] = buildBinary<maxU>;
  table["arith.minui"] = buildBinary<minU>;
  table["arith.shli"] = buildBinary<shiftL>;
  table["arith.shrsi"] = buildBinary<shiftRS>;
  table["arith.shrui"] = buildBinary<shiftRU>;
  table["arith.cmpi"] = buildCompare;
  table["arith.addui_extended"] = buildExtended<runAddExtended>;
  table["arith.mulsi_extended"] = buildExtended<runMulExtended<true>>;
  table["arith.mului_extended"] = buildExtended<runMulExtended<false>>;
  table["math.absi"] = buildUnary<absolute>;
  table["math.ctlz"] = buildUnary<leadingZeros>;
  table["math.cttz"] = buildUnary<trailingZeros>;
  table["math.ctpop"] = buildUnary<populationCount>;
  table["math.ipowi"] = buildBinary<power>;
  table["index.add"] = buildBinary<add>;
  table["index.sub"] = buildBinary<sub>;
  table["index.mul"] = buildBinary<mul>;
  table["index.divs"] = buildBinary<divS>;
  table["index.divu"] = buildBinary<divU>;
  table["index.ceildivs"] = buildBinary<ceilDivS>;
  table["index.ceildivu"] = buildBinary<ceilDivU>;
  table["index.floordivs"] = buildBinary<floorDivS>;
  table["index.rems"] = buildBinary<remS>;
  table["index.remu"] = buildBinary<remU>;
  table["index.maxs"] = buildBinary<maxS>;
  table["index.maxu"] = buildBinary<maxU>;
  table["index.mins"] = buildBinary<minS>;
  table["index.minu"] = buildBinary<minU>;
  table["index.shl"] = buildBinary<shiftL>;
  table["index.shrs"] = buildBinary<shiftRS>;
  table["index.shru"] = buildBinary<shiftRU>;
  table["index.and"] = buildBinary<bitAnd>;
  table["index.or"] = buildBinary<bitOr>;
  table["index.xor"] = buildBinary<bitXor>;
  table["index.cmp"] = buildCompareIndex;
}
