//===- Integers.cpp - integer ops at their own width ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A polynomial stands for an integer of any width, extended by its sign. What
// an op computes is a polynomial again only where that provably holds: where
// nothing wraps around in the op's type, and where no operand of an unsigned op
// may be negative. All other ops stay as they are, and are evaluated exactly
// where their operands are numbers.
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

namespace mlir::diffattn::tensorexpr {

bool isInteger(Type type) {
  return type && type.isIntOrIndex() && !type.isInteger(1);
}

static unsigned widthOf(Type type) {
  return type && !type.isIndex() ? type.getIntOrFloatBitWidth() : 64;
}

static Type operandType(Operation *op, unsigned k = 0) {
  return getElementTypeOrSelf(op->getOperand(k).getType());
}

static Type resultType(Operation *op) {
  return getElementTypeOrSelf(op->getResult(0).getType());
}

//===----------------------------------------------------------------------===//
// Numbers
//===----------------------------------------------------------------------===//

std::optional<int64_t> evaluateInteger(Operation *op, ArrayRef<int64_t> o) {
  unsigned width = widthOf(resultType(op));
  SmallVector<APInt, 2> v;
  for (auto [k, number] : llvm::enumerate(o)) {
    Type type = operandType(op, k);
    if (!type.isIntOrIndex() || widthOf(type) > 64)
      return std::nullopt;
    v.push_back(APInt(64, number, /*isSigned=*/true).trunc(widthOf(type)));
  }
  if (width > 64)
    return std::nullopt;
  using Result = std::optional<APInt>;
  auto divides = [&](bool isSigned) {
    return !v[1].isZero() &&
           !(isSigned && v[0].isMinSignedValue() && v[1].isAllOnes());
  };
  auto shifts = [&] { return v[1].ult(v[0].getBitWidth()); };
  Result result =
      TypeSwitch<Operation *, Result>(op)
          .Case([&](arith::AddIOp) { return v[0] + v[1]; })
          .Case([&](arith::SubIOp) { return v[0] - v[1]; })
          .Case([&](arith::MulIOp) { return v[0] * v[1]; })
          .Case([&](arith::AndIOp) { return v[0] & v[1]; })
          .Case([&](arith::OrIOp) { return v[0] | v[1]; })
          .Case([&](arith::XOrIOp) { return v[0] ^ v[1]; })
          .Case([&](arith::DivSIOp) {
            return divides(true) ? Result(v[0].sdiv(v[1])) : Result();
          })
          .Case([&](arith::DivUIOp) {
            return divides(false) ? Result(v[0].udiv(v[1])) : Result();
          })
          .Case([&](arith::RemSIOp) {
            return divides(true) ? Result(v[0].srem(v[1])) : Result();
          })
          .Case([&](arith::RemUIOp) {
            return divides(false) ? Result(v[0].urem(v[1])) : Result();
          })
          .Case([&](arith::FloorDivSIOp) {
            return divides(true) ? Result(llvm::APIntOps::RoundingSDiv(
                                       v[0], v[1], APInt::Rounding::DOWN))
                                 : Result();
          })
          .Case([&](arith::CeilDivSIOp) {
            return divides(true) ? Result(llvm::APIntOps::RoundingSDiv(
                                       v[0], v[1], APInt::Rounding::UP))
                                 : Result();
          })
          .Case([&](arith::CeilDivUIOp) {
            return divides(false) ? Result(llvm::APIntOps::RoundingUDiv(
                                        v[0], v[1], APInt::Rounding::UP))
                                  : Result();
          })
          .Case([&](arith::ShLIOp) {
            return shifts() ? Result(v[0].shl(v[1])) : Result();
          })
          .Case([&](arith::ShRSIOp) {
            return shifts() ? Result(v[0].ashr(v[1])) : Result();
          })
          .Case([&](arith::ShRUIOp) {
            return shifts() ? Result(v[0].lshr(v[1])) : Result();
          })
          .Case(
              [&](arith::MaxSIOp) { return llvm::APIntOps::smax(v[0], v[1]); })
          .Case(
              [&](arith::MaxUIOp) { return llvm::APIntOps::umax(v[0], v[1]); })
          .Case(
              [&](arith::MinSIOp) { return llvm::APIntOps::smin(v[0], v[1]); })
          .Case(
              [&](arith::MinUIOp) { return llvm::APIntOps::umin(v[0], v[1]); })
          .Case([&](math::AbsIOp) { return v[0].abs(); })
          .Case<arith::ExtSIOp, arith::TruncIOp, arith::IndexCastOp>(
              [&](auto) { return v[0].sextOrTrunc(width); })
          .Case<arith::ExtUIOp, arith::IndexCastUIOp>(
              [&](auto) { return v[0].zextOrTrunc(width); })
          .Default([](Operation *) { return Result(); });
  if (!result)
    return std::nullopt;
  // A truth value is 0 or 1.
  return width == 1 ? static_cast<int64_t>(result->getZExtValue())
                    : result->getSExtValue();
}

//===----------------------------------------------------------------------===//
// Polynomials
//===----------------------------------------------------------------------===//

bool ExprGraph::holds(Type type, const IndexPoly &poly) const {
  unsigned width = widthOf(type);
  // Arithmetic of 64 bits wraps around as coefficients do.
  if (width == 64)
    return true;
  std::optional<IndexSpace::Range> range = space.rangeOf(poly);
  return range && (width > 64 || (range->low >= llvm::minIntN(width) &&
                                  range->high <= llvm::maxIntN(width)));
}

bool ExprGraph::isBounded(const IndexPoly &poly) const {
  constexpr int64_t most = int64_t(1) << 62;
  std::optional<IndexSpace::Range> range = space.rangeOf(poly);
  return range && range->low >= -most && range->high <= most;
}

bool ExprGraph::isAtLeast(const IndexPoly &poly, int64_t least) const {
  std::optional<bool> less = isLess(poly, IndexPoly(least));
  return less && !*less;
}

std::optional<bool> ExprGraph::isLess(const IndexPoly &a,
                                      const IndexPoly &b) const {
  std::optional<IndexSpace::Range> x = space.rangeOf(a), y = space.rangeOf(b);
  if (!x || !y)
    return std::nullopt;
  if (x->high < y->low)
    return true;
  if (x->low >= y->high)
    return false;
  if (!isBounded(a) || !isBounded(b))
    return std::nullopt;
  if (space.provablyLess(a, b))
    return true;
  if (space.provablyNonNegative(a - b))
    return false;
  return std::nullopt;
}

std::optional<IndexPoly> ExprGraph::polyOf(Operation *op,
                                           ArrayRef<IndexPoly> o) {
  using Poly = std::optional<IndexPoly>;
  Type type = resultType(op);
  if (!isInteger(type) || !llvm::all_of(op->getOperandTypes(), [](Type type) {
        return isInteger(getElementTypeOrSelf(type));
      }))
    return std::nullopt;
  SmallVector<int64_t, 2> numbers;
  for (const IndexPoly &operand : o)
    if (std::optional<int64_t> number = operand.constant())
      numbers.push_back(*number);
  if (numbers.size() == o.size()) {
    std::optional<int64_t> number = tensorexpr::evaluateInteger(op, numbers);
    return number ? Poly(*number) : std::nullopt;
  }
  auto held = [&](const IndexPoly &poly) {
    return isSmall(poly) && holds(type, poly) ? Poly(poly) : std::nullopt;
  };
  /// The quotient of operands that are not negative where `isFloor` is false.
  auto quotient = [&](bool isFloor, bool isCeil) -> Poly {
    if (!isBounded(o[0]) || !isBounded(o[1]) || !isAtLeast(o[1], 1) ||
        (!isFloor && !isNeverNegative(o[0])))
      return std::nullopt;
    return held(space.floorDiv(isCeil ? o[0] + o[1] - 1 : o[0], o[1]));
  };
  auto remainder = [&]() -> Poly {
    if (!isBounded(o[0]) || !isBounded(o[1]) || !isNeverNegative(o[0]) ||
        !isAtLeast(o[1], 1))
      return std::nullopt;
    return held(space.mod(o[0], o[1]));
  };
  /// 2 to the power of operand 1, where it is a shift of less than the width.
  auto power = [&]() -> Poly {
    std::optional<int64_t> by = o[1].constant();
    unsigned most = std::min(widthOf(type), 63u) - 1;
    if (!by || *by < 0 || *by > most)
      return std::nullopt;
    return IndexPoly(int64_t(1) << *by);
  };
  auto rightShift = [&](bool isSigned) -> Poly {
    Poly divisor = power();
    if (!divisor || !isBounded(o[0]) || (!isSigned && !isNeverNegative(o[0])))
      return std::nullopt;
    return held(space.floorDiv(o[0], *divisor));
  };
  auto choose = [&](bool wantSmaller, bool isSigned) -> Poly {
    if (!isSigned && !(isNeverNegative(o[0]) && isNeverNegative(o[1])))
      return std::nullopt;
    if (o[0] == o[1])
      return o[0];
    std::optional<bool> less = isLess(o[0], o[1]);
    return less ? Poly(*less == wantSmaller ? o[0] : o[1]) : std::nullopt;
  };
  /// Extended by zeros, or cut off.
  auto withoutSign = [&]() -> Poly {
    unsigned from = widthOf(operandType(op));
    if (from >= widthOf(type) || isNeverNegative(o[0]))
      return held(o[0]);
    if (from < 63 && isNegative(o[0]))
      return held(o[0] + IndexPoly(int64_t(1) << from));
    return std::nullopt;
  };
  return TypeSwitch<Operation *, Poly>(op)
      .Case([&](arith::AddIOp) { return held(o[0] + o[1]); })
      .Case([&](arith::SubIOp) { return held(o[0] - o[1]); })
      .Case([&](arith::MulIOp) { return held(o[0] * o[1]); })
      .Case<arith::IndexCastOp, arith::ExtSIOp, arith::TruncIOp>(
          [&](auto) { return held(o[0]); })
      .Case<arith::IndexCastUIOp, arith::ExtUIOp>(
          [&](auto) { return withoutSign(); })
      .Case<arith::DivSIOp, arith::DivUIOp>(
          [&](auto) { return quotient(false, false); })
      .Case([&](arith::FloorDivSIOp) { return quotient(true, false); })
      .Case([&](arith::CeilDivUIOp) { return quotient(false, true); })
      .Case([&](arith::CeilDivSIOp) { return quotient(true, true); })
      .Case<arith::RemSIOp, arith::RemUIOp>([&](auto) { return remainder(); })
      .Case([&](arith::ShLIOp) -> Poly {
        Poly factor = power();
        return factor ? held(o[0] * *factor) : std::nullopt;
      })
      .Case([&](arith::ShRSIOp) { return rightShift(true); })
      .Case([&](arith::ShRUIOp) { return rightShift(false); })
      .Case([&](arith::MinSIOp) { return choose(true, true); })
      .Case([&](arith::MinUIOp) { return choose(true, false); })
      .Case([&](arith::MaxSIOp) { return choose(false, true); })
      .Case([&](arith::MaxUIOp) { return choose(false, false); })
      .Case([&](math::AbsIOp) -> Poly {
        if (isNeverNegative(o[0]))
          return o[0];
        return isNegative(o[0]) && isBounded(o[0]) ? held(IndexPoly(0) - o[0])
                                                   : std::nullopt;
      })
      .Default([](Operation *) { return std::nullopt; });
}

//===----------------------------------------------------------------------===//
// Expressions
//===----------------------------------------------------------------------===//

Expr ExprGraph::compareUnsigned(Expr a, Expr b) {
  using P = arith::CmpIPredicate;
  Type boolean = IntegerType::get(context, 1);
  auto compare = [&](P predicate, Expr x, Expr y) {
    return make(Kind::CmpI, boolean, {x, y}, static_cast<int64_t>(predicate));
  };
  auto sign = [&](const IndexPoly &poly) -> std::optional<bool> {
    if (isNeverNegative(poly))
      return false;
    return isNegative(poly) ? std::optional<bool>(true) : std::nullopt;
  };
  // A negative number is a large one, above all that are not negative.
  std::optional<bool> x = sign(a->index), y = sign(b->index);
  Expr zero = index(0);
  if (x && y)
    return *x == *y ? compare(P::slt, a, b) : constant(!*x, boolean);
  if (y)
    return make(*y ? Kind::Or : Kind::And, boolean,
                {compare(P::sge, a, zero), compare(P::slt, a, b)});
  if (x)
    return make(*x ? Kind::And : Kind::Or, boolean,
                {compare(P::slt, b, zero), compare(P::slt, a, b)});
  return nullptr;
}

Expr ExprGraph::compareIndices(Expr a, Expr b, int64_t predicate) {
  using P = arith::CmpIPredicate;
  Type boolean = IntegerType::get(context, 1);
  auto kind = static_cast<P>(predicate);
  auto not_ = [&](Expr expr) { return expr ? notOf(expr) : nullptr; };
  if (a->index == b->index)
    return constant(arith::applyCmpPredicate(kind, APInt(1, 0), APInt(1, 0)),
                    boolean);
  auto decide = [&](std::optional<bool> truth, bool value) -> Expr {
    return truth ? constant(*truth == value, boolean) : nullptr;
  };
  // Whatever wraps around, numbers apart from each other are not equal.
  if ((kind == P::eq || kind == P::ne) && (a->index - b->index).constant())
    return constant(kind == P::ne, boolean);
  std::optional<bool> less = isLess(a->index, b->index),
                      greater = isLess(b->index, a->index);
  switch (kind) {
  case P::slt:
    return decide(less, true);
  case P::sge:
    return decide(less, false);
  case P::sgt:
    return decide(greater, true);
  case P::sle:
    return decide(greater, false);
  case P::eq:
  case P::ne:
    return (less && *less) || (greater && *greater)
               ? constant(kind == P::ne, boolean)
               : nullptr;
  case P::ult:
    return compareUnsigned(a, b);
  case P::ugt:
    return compareUnsigned(b, a);
  case P::ule:
    return not_(compareUnsigned(b, a));
  case P::uge:
    return not_(compareUnsigned(a, b));
  }
  llvm_unreachable("unknown predicate");
}

/// Ops on truth values: true is 1 without a sign, and -1 with one.
Expr ExprGraph::truthOp(Operation *op, ArrayRef<Expr> o) {
  using P = arith::CmpIPredicate;
  Type boolean = IntegerType::get(context, 1);
  auto both = [&](Expr a, Expr b) { return make(Kind::And, boolean, {a, b}); };
  auto either = [&](Expr a, Expr b) { return make(Kind::Or, boolean, {a, b}); };
  auto differ = [&]() -> Expr {
    for (unsigned i : {0, 1})
      if (o[i]->isConst(1))
        return notOf(o[1 - i]);
    return make(Kind::Xor, boolean, {o[0], o[1]});
  };
  return TypeSwitch<Operation *, Expr>(op)
      .Case<arith::AndIOp, arith::MulIOp, arith::MinUIOp, arith::MaxSIOp>(
          [&](auto) { return both(o[0], o[1]); })
      .Case<arith::OrIOp, arith::MaxUIOp, arith::MinSIOp>(
          [&](auto) { return either(o[0], o[1]); })
      .Case<arith::XOrIOp, arith::AddIOp, arith::SubIOp>(
          [&](auto) { return differ(); })
      .Case([&](arith::CmpIOp compare) -> Expr {
        switch (compare.getPredicate()) {
        case P::eq:
          return notOf(differ());
        case P::ne:
          return differ();
        case P::ult:
        case P::sgt:
          return both(notOf(o[0]), o[1]);
        case P::ugt:
        case P::slt:
          return both(o[0], notOf(o[1]));
        case P::ule:
        case P::sge:
          return either(notOf(o[0]), o[1]);
        case P::uge:
        case P::sle:
          return either(o[0], notOf(o[1]));
        }
        llvm_unreachable("unknown predicate");
      })
      .Default([](Operation *) { return nullptr; });
}

Expr ExprGraph::castTruth(Operation *op, Expr truth) {
  Type type = resultType(op);
  bool isSigned = isa<arith::ExtSIOp, arith::IndexCastOp>(op);
  if (!isSigned && !isa<arith::ExtUIOp, arith::IndexCastUIOp>(op))
    return nullptr;
  return make(Kind::Select, type,
              {truth, index(IndexPoly(isSigned ? -1 : 1)), index(0)});
}

Expr ExprGraph::integerOp(Operation *op, ArrayRef<Expr> o) {
  using P = arith::CmpIPredicate;
  if (!isa<arith::ArithDialect, math::MathDialect>(op->getDialect()) ||
      isa<arith::SelectOp>(op) || op->getNumOperands() == 0)
    return nullptr;
  Type type = resultType(op), from = operandType(op);
  if (!type.isIntOrIndex() || !from.isIntOrIndex())
    return nullptr;
  if (from.isInteger(1))
    return type.isInteger(1) ? truthOp(op, o) : castTruth(op, o[0]);
  if (auto compare = dyn_cast<arith::CmpIOp>(op))
    return make(Kind::CmpI, type, {o[0], o[1]},
                static_cast<int64_t>(compare.getPredicate()));
  bool isCast = isa<arith::ExtSIOp, arith::ExtUIOp, arith::TruncIOp,
                    arith::IndexCastOp, arith::IndexCastUIOp>(op);
  // One of two numbers stays one of two.
  auto isNumber = [](Expr e) {
    return e->kind == Kind::Index && e->index.constant();
  };
  if (isCast && o[0]->kind == Kind::Select && isNumber(o[0]->operands[1]) &&
      isNumber(o[0]->operands[2])) {
    Expr a = integerOp(op, o[0]->operands[1]),
         b = integerOp(op, o[0]->operands[2]);
    return a && b ? make(Kind::Select, type, {o[0]->operands[0], a, b})
                  : nullptr;
  }
  bool indices = llvm::all_of(o, [](Expr e) { return e->kind == Kind::Index; });
  if (type.isInteger(1)) {
    if (!indices || !isa<arith::TruncIOp>(op))
      return nullptr;
    // The last bit.
    if (std::optional<int64_t> number = o[0]->index.constant())
      return constant(*number & 1, type);
    std::optional<IndexSpace::Range> range = space.rangeOf(o[0]->index);
    if (!range || range->low < 0 || range->high > 1)
      return nullptr;
    return make(Kind::CmpI, type, {o[0], index(0)},
                static_cast<int64_t>(P::ne));
  }
  if (indices) {
    SmallVector<IndexPoly, 2> polys;
    for (Expr operand : o)
      polys.push_back(operand->index);
    if (std::optional<IndexPoly> poly = polyOf(op, polys))
      return index(*poly);
  }
  auto chosen = [&](P predicate) {
    Expr first = make(Kind::CmpI, IntegerType::get(context, 1), {o[0], o[1]},
                      static_cast<int64_t>(predicate));
    return make(Kind::Select, type, {first, o[0], o[1]});
  };
  return TypeSwitch<Operation *, Expr>(op)
      .Case([&](arith::AddIOp) { return make(Kind::Add, type, o); })
      .Case([&](arith::SubIOp) { return make(Kind::Sub, type, o); })
      .Case([&](arith::MulIOp) { return make(Kind::Mul, type, o); })
      .Case([&](arith::AndIOp) { return make(Kind::And, type, o); })
      .Case([&](arith::OrIOp) { return make(Kind::Or, type, o); })
      .Case([&](arith::XOrIOp) { return make(Kind::Xor, type, o); })
      .Case([&](arith::MinSIOp) { return chosen(P::slt); })
      .Case([&](arith::MinUIOp) { return chosen(P::ult); })
      .Case([&](arith::MaxSIOp) { return chosen(P::sgt); })
      .Case([&](arith::MaxUIOp) { return chosen(P::ugt); })
      .Case([&](math::AbsIOp) -> Expr {
        // The least number of a type has no opposite in it.
        if (!indices || !holds(type, IndexPoly(0) - o[0]->index))
          return nullptr;
        Expr negative = make(Kind::CmpI, IntegerType::get(context, 1),
                             {o[0], index(0)}, static_cast<int64_t>(P::slt));
        return make(Kind::Select, type,
                    {negative, index(IndexPoly(0) - o[0]->index), o[0]});
      })
      .Case([&](arith::IndexCastOp) -> Expr {
        // Extended by its sign, an integer is the same number.
        return widthOf(type) >= widthOf(from) && !indices ? o[0] : nullptr;
      })
      .Default([](Operation *) { return nullptr; });
}

} // namespace mlir::diffattn::tensorexpr
