//===- Meaning.cpp - values of expressions --------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Meaning.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include "gtest/gtest.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn::tensorexpr;

namespace plain {

Point pointOf(ArrayRef<IndexPoly> positions, ArrayRef<int64_t> at) {
  Point point;
  for (auto [position, number] : llvm::zip_equal(positions, at))
    point[*position.asAtom()] = number;
  return point;
}

std::optional<int64_t> Meaning::atom(AtomId id, const Point &at) const {
  const IndexSpace::Atom &atom = space[id];
  using Atom = IndexSpace::Atom;
  switch (atom.kind) {
  case Atom::Loop: {
    auto it = at.find(id);
    return it == at.end() ? std::nullopt : std::optional(it->second);
  }
  case Atom::Size:
    return run.array(atom.value).shape[atom.axis];
  case Atom::Opaque: {
    Number number = run.number(atom.value);
    return number.isDefined() ? std::optional(number.integer) : std::nullopt;
  }
  case Atom::FloorDiv:
  case Atom::Broadcast:
  case Atom::Within:
    break;
  }
  std::optional<int64_t> a = of(atom.first, at), b = of(atom.second, at);
  if (!a || !b)
    return std::nullopt;
  switch (atom.kind) {
  case Atom::FloorDiv:
    if (*b <= 0)
      return std::nullopt;
    return *a >= 0 ? *a / *b : -1 - (-1 - *a) / *b;
  case Atom::Broadcast:
    return *b == 1 ? 0 : *a;
  default:
    // Outside of the axis it is read and not used.
    return std::max<int64_t>(std::min(*a, *b - 1), 0);
  }
}

std::optional<int64_t> Meaning::of(const IndexPoly &poly,
                                   const Point &at) const {
  unsigned __int128 sum = 0;
  for (auto &[monomial, coefficient] : poly.terms) {
    unsigned __int128 product = static_cast<__int128>(coefficient);
    for (AtomId id : monomial) {
      std::optional<int64_t> factor = atom(id, at);
      if (!factor)
        return std::nullopt;
      product *= static_cast<unsigned __int128>(static_cast<__int128>(*factor));
    }
    sum += product;
  }
  return static_cast<int64_t>(static_cast<uint64_t>(sum));
}

Number Meaning::reduce(Expr expr, const Point &at) {
  SmallVector<int64_t> extents;
  for (AtomId loop : expr->bound) {
    std::optional<int64_t> extent = of(space.extent(loop), at);
    if (!extent)
      return {};
    extents.push_back(*extent);
  }
  bool isFloat = isa<FloatType>(expr->type);
  std::optional<Number> total;
  bool isDefined = true;
  forEach(extents, [&](ArrayRef<int64_t> turn) {
    Point inner = at;
    for (auto [loop, k] : llvm::zip(expr->bound, turn))
      inner[loop] = k;
    Number element = of(expr->operands[0], inner);
    isDefined &= element.isDefined();
    if (!isDefined)
      return;
    bool isExtreme =
        expr->combiner() == Combiner::Max || expr->combiner() == Combiner::Min;
    metNan |= isExtreme && std::isnan(element.real);
    if (!total) {
      total = element;
      return;
    }
    switch (expr->combiner()) {
    case Combiner::Sum:
      total =
          isFloat
              ? Number::ofReal(nearest(total->real + element.real, expr->type))
              : Number::of(wrap(static_cast<__int128>(total->integer) +
                                    element.integer,
                                expr->type));
      break;
    case Combiner::Max:
      total = Number::ofReal(std::fmax(total->real, element.real));
      break;
    case Combiner::Min:
      total = Number::ofReal(std::fmin(total->real, element.real));
      break;
    case Combiner::And:
      total = Number::of(total->integer & element.integer);
      break;
    case Combiner::Or:
      total = Number::of(total->integer | element.integer);
      break;
    }
  });
  return isDefined && total ? *total : Number();
}

Number Meaning::of(Expr expr, const Point &at) {
  switch (expr->kind) {
  case Kind::Const:
    return isa<FloatType>(expr->type)
               ? Number::ofReal(expr->number)
               : Number::of(static_cast<int64_t>(expr->number));
  case Kind::Index: {
    std::optional<int64_t> number = of(expr->index, at);
    return number ? Number::of(*number) : Number();
  }
  case Kind::Load: {
    SmallVector<int64_t> position;
    for (const IndexPoly &poly : expr->indices) {
      std::optional<int64_t> index = of(poly, at);
      if (!index)
        return {};
      position.push_back(*index);
    }
    return run.array(expr->value).at(position);
  }
  case Kind::Scalar:
    return run.number(expr->value);
  case Kind::Select: {
    Number condition = of(expr->operands[0], at);
    return condition.isDefined()
               ? of(expr->operands[condition.integer ? 1 : 2], at)
               : Number();
  }
  case Kind::Reduce:
    return reduce(expr, at);
  case Kind::Softmax:
    ADD_FAILURE() << "the analysis makes no softmaxes";
    return {};
  default:
    break;
  }
  SmallVector<Number> o;
  for (Expr operand : expr->operands) {
    o.push_back(of(operand, at));
    // An undefined operand makes the result undefined; select, which discards
    // one, is handled above.
    if (!o.back().isDefined())
      return {};
  }
  if (expr->kind == Kind::Opaque) {
    // Operands may be known at a greater width than that of the op.
    for (auto [number, operand] : llvm::zip(o, expr->proto->getOperands()))
      if (Type type = getElementTypeOrSelf(operand.getType());
          number.kind == Number::Integer && type.isIntOrIndex())
        number = Number::of(wrap(number.integer, type));
    return compute(expr->proto, o);
  }
  Type type = expr->type;
  bool isFloat = isa<FloatType>(type);
  auto real = [&](long double number) {
    return Number::ofReal(nearest(number, type));
  };
  auto integer = [&](__int128 bits) { return Number::of(wrap(bits, type)); };
  double x = o[0].real, y = o.size() > 1 ? o[1].real : 0;
  __int128 a = o[0].integer, b = o.size() > 1 ? o[1].integer : 0;
  switch (expr->kind) {
  case Kind::Add:
    return isFloat ? real(x + y) : integer(a + b);
  case Kind::Sub:
    return isFloat ? real(x - y) : integer(a - b);
  case Kind::Mul:
    return isFloat ? real(x * y) : integer(a * b);
  case Kind::Div:
    return real(x / y);
  case Kind::Neg:
    return real(-x);
  case Kind::Max:
  case Kind::Min:
    if (std::isnan(x) || std::isnan(y)) {
      metNan = true;
      return {};
    }
    return real(expr->kind == Kind::Max ? std::max(x, y) : std::min(x, y));
  case Kind::Exp:
    return real(std::exp(static_cast<long double>(x)));
  case Kind::Exp2:
    return real(std::exp2(static_cast<long double>(x)));
  case Kind::Log:
    return real(std::log(static_cast<long double>(x)));
  case Kind::Sqrt:
    return real(std::sqrt(x));
  case Kind::Rsqrt:
    return real(1 / std::sqrt(static_cast<long double>(x)));
  case Kind::Tanh:
    return real(std::tanh(static_cast<long double>(x)));
  case Kind::Cast:
    return real(x);
  case Kind::FromInt:
    return real(static_cast<long double>(o[0].integer));
  case Kind::CmpF:
  case Kind::CmpI: {
    // By an op of its own: the plain reading of comparisons.
    bool isReal = expr->kind == Kind::CmpF;
    using F = arith::CmpFPredicate;
    using I = arith::CmpIPredicate;
    if (isReal) {
      bool isNan = std::isnan(x) || std::isnan(y);
      switch (static_cast<F>(expr->predicate)) {
      case F::AlwaysFalse:
        return Number::of(0);
      case F::AlwaysTrue:
        return Number::of(1);
      case F::ORD:
        return Number::of(!isNan);
      case F::UNO:
        return Number::of(isNan);
      case F::OEQ:
        return Number::of(x == y);
      case F::UEQ:
        return Number::of(isNan || x == y);
      case F::ONE:
        return Number::of(!isNan && x != y);
      case F::UNE:
        return Number::of(isNan || x != y);
      case F::OLT:
        return Number::of(x < y);
      case F::ULT:
        return Number::of(isNan || x < y);
      case F::OLE:
        return Number::of(x <= y);
      case F::ULE:
        return Number::of(isNan || x <= y);
      case F::OGT:
        return Number::of(x > y);
      case F::UGT:
        return Number::of(isNan || x > y);
      case F::OGE:
        return Number::of(x >= y);
      case F::UGE:
        return Number::of(isNan || x >= y);
      }
    }
    // Extension by the sign keeps either order of integers.
    auto p = static_cast<uint64_t>(o[0].integer),
         q = static_cast<uint64_t>(o[1].integer);
    switch (static_cast<I>(expr->predicate)) {
    case I::eq:
      return Number::of(a == b);
    case I::ne:
      return Number::of(a != b);
    case I::slt:
      return Number::of(a < b);
    case I::sle:
      return Number::of(a <= b);
    case I::sgt:
      return Number::of(a > b);
    case I::sge:
      return Number::of(a >= b);
    case I::ult:
      return Number::of(p < q);
    case I::ule:
      return Number::of(p <= q);
    case I::ugt:
      return Number::of(p > q);
    case I::uge:
      return Number::of(p >= q);
    }
    return {};
  }
  case Kind::And:
    return integer(o[0].integer & o[1].integer);
  case Kind::Or:
    return integer(o[0].integer | o[1].integer);
  case Kind::Xor:
    return integer(o[0].integer ^ o[1].integer);
  default:
    ADD_FAILURE() << "an unknown kind of expression";
    return {};
  }
}

} // namespace plain
