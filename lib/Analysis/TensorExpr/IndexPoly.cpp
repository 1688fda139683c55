//===- IndexPoly.cpp - polynomials over loop indices and sizes ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/IndexPoly.h"

#include "mlir/IR/AffineExpr.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <numeric>

namespace mlir::diffattn::tensorexpr {

// Index arithmetic wraps around, and so do the coefficients.
static int64_t wrapAdd(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) +
                              static_cast<uint64_t>(b));
}
static int64_t wrapMul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) *
                              static_cast<uint64_t>(b));
}

std::optional<int64_t> IndexPoly::constant() const {
  if (terms.empty())
    return 0;
  if (terms.size() == 1 && terms.begin()->first.empty())
    return terms.begin()->second;
  return std::nullopt;
}

std::optional<AtomId> IndexPoly::asAtom() const {
  if (terms.size() == 1 && terms.begin()->first.size() == 1 &&
      terms.begin()->second == 1)
    return terms.begin()->first[0];
  return std::nullopt;
}

void IndexPoly::addTerm(const Monomial &monomial, int64_t coefficient) {
  int64_t &slot = terms[monomial];
  slot = wrapAdd(slot, coefficient);
  if (slot == 0)
    terms.erase(monomial);
}

bool IndexPoly::isWithin(size_t maxTerms, size_t maxDegree) const {
  return terms.size() <= maxTerms && llvm::all_of(terms, [&](const auto &term) {
           return term.first.size() <= maxDegree;
         });
}

IndexPoly operator+(const IndexPoly &a, const IndexPoly &b) {
  IndexPoly sum = a;
  for (auto &[monomial, coefficient] : b.terms)
    sum.addTerm(monomial, coefficient);
  return sum;
}

IndexPoly operator-(const IndexPoly &a, const IndexPoly &b) {
  IndexPoly difference = a;
  for (auto &[monomial, coefficient] : b.terms)
    difference.addTerm(monomial, wrapMul(coefficient, -1));
  return difference;
}

IndexPoly operator*(const IndexPoly &a, const IndexPoly &b) {
  IndexPoly product;
  for (auto &[ma, ca] : a.terms)
    for (auto &[mb, cb] : b.terms) {
      Monomial monomial;
      std::merge(ma.begin(), ma.end(), mb.begin(), mb.end(),
                 std::back_inserter(monomial));
      product.addTerm(monomial, wrapMul(ca, cb));
    }
  return product;
}

unsigned IndexSpace::weight(const IndexPoly &poly) const {
  constexpr unsigned most = 1u << 30;
  unsigned sum = 0;
  for (auto &[monomial, coefficient] : poly.terms)
    for (AtomId id : monomial)
      sum = std::min(most, sum + atoms[id].weight);
  return sum;
}

AtomId IndexSpace::intern(Atom atom) {
  for (auto [id, other] : llvm::enumerate(atoms))
    if (atom.kind != Atom::Loop && other.kind == atom.kind &&
        other.first == atom.first && other.second == atom.second &&
        other.value == atom.value && other.axis == atom.axis)
      return id;
  atom.weight = 1 + weight(atom.first) + weight(atom.second);
  atoms.push_back(std::move(atom));
  return atoms.size() - 1;
}

IndexPoly IndexSpace::resolve(AtomId id) const {
  auto it = joined.find(id);
  if (it == joined.end())
    return IndexPoly::atom(id);
  // A size may be a polynomial of others, which may have been joined later.
  return resolve(it->second);
}

IndexPoly IndexSpace::resolve(const IndexPoly &poly) const {
  IndexPoly result;
  for (auto &[monomial, coefficient] : poly.terms) {
    IndexPoly product = coefficient;
    for (AtomId part : monomial)
      product = product * resolve(part);
    result = result + product;
  }
  return result;
}

std::pair<Value, int64_t>
IndexSpace::sizeSource(AtomId size,
                       llvm::function_ref<bool(Value)> preferred) const {
  for (Atom::Kind kind : {Atom::Size, Atom::Opaque})
    for (auto [id, atom] : llvm::enumerate(atoms))
      if (atom.kind == kind && preferred(atom.value) &&
          resolve(id) == IndexPoly::atom(size))
        return {atom.value, kind == Atom::Size ? atom.axis : kNoAxis};
  return {atoms[size].value, atoms[size].axis};
}

IndexPoly IndexSpace::loop(const IndexPoly &extent) {
  return IndexPoly::atom(intern({Atom::Loop, extent, {}, {}, 0, true}));
}

IndexPoly IndexSpace::size(Value tensor, int64_t axis) {
  return resolve(intern({Atom::Size, {}, {}, tensor, axis, true, true}));
}

IndexPoly IndexSpace::opaque(Value index) {
  return resolve(intern({Atom::Opaque, {}, {}, index, 0, false, false}));
}

void IndexSpace::join(const IndexPoly &one, const IndexPoly &other) {
  // Either may have been read before an earlier join.
  IndexPoly a = resolve(one), b = resolve(other);
  auto take = [&](const IndexPoly &name, const IndexPoly &other) {
    std::optional<AtomId> atom = name.asAtom();
    // Not in terms of itself: the names would go round in circles. Nor of what
    // is long to write, as the square of a square of a size.
    if (!atom || mentions(other, *atom) || !other.isWithin(64, 16))
      return false;
    joined[*atom] = other;
    return true;
  };
  if (a == b)
    return;
  // A size counts as at least 1: a program with another one is wrong when it
  // runs, or computes nothing.
  for (const IndexPoly *poly : {&a, &b})
    if (std::optional<int64_t> number = poly->constant(); number && *number < 1)
      return;
  // A value that is a size is at least 1.
  std::optional<AtomId> x = a.asAtom(), y = b.asAtom();
  if (x && y && (atoms[*x].isSize || atoms[*y].isSize))
    for (AtomId id : {*x, *y})
      if (atoms[id].kind == Atom::Opaque)
        atoms[id].isSize = atoms[id].nonNegative = true;
  // Rather in terms of the older size: arguments come first.
  if (x && y && *x < *y ? take(b, a) || take(a, b) : take(a, b) || take(b, a))
    return;
}

void IndexSpace::joinProducts(const IndexPoly &a, const IndexPoly &b) {
  if (a.terms.size() != 1 || b.terms.size() != 1)
    return;
  auto [x, m] = *a.terms.begin();
  auto [y, n] = *b.terms.begin();
  int64_t gcd = std::gcd(m, n);
  if (m <= 0 || n <= 0)
    return;
  IndexPoly left, right;
  Monomial rest;
  std::set_difference(x.begin(), x.end(), y.begin(), y.end(),
                      std::back_inserter(rest));
  left.addTerm(rest, m / gcd);
  rest.clear();
  std::set_difference(y.begin(), y.end(), x.begin(), x.end(),
                      std::back_inserter(rest));
  right.addTerm(rest, n / gcd);
  join(left, right);
}

/// Splits `a` into the multiple of `divisor` (a single term) and the rest.
static std::pair<IndexPoly, IndexPoly>
divide(const IndexPoly &a, const Monomial &divisor, int64_t coefficient) {
  IndexPoly quotient, rest;
  for (auto &[monomial, c] : a.terms) {
    bool divides = std::includes(monomial.begin(), monomial.end(),
                                 divisor.begin(), divisor.end());
    if (!divides) {
      rest.addTerm(monomial, c);
      continue;
    }
    Monomial left;
    std::set_difference(monomial.begin(), monomial.end(), divisor.begin(),
                        divisor.end(), std::back_inserter(left));
    // A number may be divided in part: 7 = 2 * 3 + 1.
    int64_t whole = monomial.empty() ? llvm::divideFloorSigned(c, coefficient)
                                     : c / coefficient;
    if (!monomial.empty() && c % coefficient != 0) {
      rest.addTerm(monomial, c);
      continue;
    }
    if (whole)
      quotient.addTerm(left, whole);
    if (int64_t remainder = c - whole * coefficient)
      rest.addTerm(monomial, remainder);
  }
  return {quotient, rest};
}

/// Long division: splits `a` into a multiple of `divisor` and the rest, like
/// x * y + x + z by y + 1 into x and z. Nothing if numbers grow large, or after
/// too many steps.
static std::optional<std::pair<IndexPoly, IndexPoly>>
divideLong(const IndexPoly &a, const IndexPoly &divisor) {
  constexpr int64_t most = int64_t(1) << 31;
  using Term = std::pair<const Monomial, int64_t>;
  // By degree first, so that each step leaves lower terms than it takes.
  auto lower = [](const Term &x, const Term &y) {
    return std::pair(x.first.size(), x.first) <
           std::pair(y.first.size(), y.first);
  };
  auto isSmall = [&](const Term &term) {
    return -most < term.second && term.second < most;
  };
  const Term &lead =
      *std::max_element(divisor.terms.begin(), divisor.terms.end(), lower);
  if (lead.second <= 0 || !llvm::all_of(divisor.terms, isSmall))
    return std::nullopt;
  IndexPoly quotient, rest = a;
  for (int steps = 0;
       steps < 64 && rest.isWithin(64, 16) && llvm::all_of(rest.terms, isSmall);
       ++steps) {
    const Term *top = nullptr;
    for (const Term &term : rest.terms)
      if (term.second % lead.second == 0 &&
          std::includes(term.first.begin(), term.first.end(),
                        lead.first.begin(), lead.first.end()) &&
          (!top || lower(*top, term)))
        top = &term;
    if (!top)
      return std::pair(quotient, rest);
    Monomial left;
    std::set_difference(top->first.begin(), top->first.end(),
                        lead.first.begin(), lead.first.end(),
                        std::back_inserter(left));
    IndexPoly step;
    step.addTerm(left, top->second / lead.second);
    quotient = quotient + step;
    rest = rest - step * divisor;
  }
  return std::nullopt;
}

std::optional<IndexPoly>
IndexSpace::upperBoundOf(const Monomial &monomial) const {
  IndexPoly bound = 1;
  for (AtomId id : monomial) {
    const Atom &atom = atoms[id];
    // A product of bounds is a bound of the product where no factor is
    // negative.
    if (!atom.nonNegative)
      return std::nullopt;
    if (atom.isSize) {
      bound = bound * IndexPoly::atom(id);
      continue;
    }
    switch (atom.kind) {
    case Atom::Loop:
      bound = bound * (atom.first - 1);
      break;
    case Atom::Size:
    case Atom::Opaque:
      return std::nullopt;
    case Atom::Within:
      bound = bound * (atom.second - 1);
      break;
    case Atom::Broadcast: {
      std::optional<IndexPoly> low = lowerBound(IndexPoly(0) - atom.first);
      if (!low)
        return std::nullopt;
      bound = bound * (IndexPoly(0) - *low);
      break;
    }
    case Atom::FloorDiv: {
      // floor((q * d + r) / d) = q for 0 <= r < d.
      std::optional<IndexPoly> low = lowerBound(IndexPoly(0) - atom.first);
      if (!low || atom.second.terms.size() != 1 ||
          atom.second.terms.begin()->second <= 0)
        return std::nullopt;
      auto [divisor, coefficient] = *atom.second.terms.begin();
      auto [quotient, rest] = divide(IndexPoly(0) - *low, divisor, coefficient);
      if (!provablyNonNegative(rest) || !provablyLess(rest, atom.second))
        return std::nullopt;
      bound = bound * quotient;
      break;
    }
    }
  }
  return bound;
}

std::optional<IndexPoly> IndexSpace::lowerBound(const IndexPoly &poly) const {
  IndexPoly bound;
  for (auto &[monomial, coefficient] : poly.terms) {
    // Sizes and opaque integers are kept, as they may still cancel out.
    bool fixed = llvm::all_of(monomial, [&](AtomId id) {
      return atoms[id].isSize || atoms[id].kind == Atom::Opaque;
    });
    if (fixed) {
      bound.addTerm(monomial, coefficient);
      continue;
    }
    if (!llvm::all_of(monomial,
                      [&](AtomId id) { return atoms[id].nonNegative; }))
      return std::nullopt;
    if (coefficient > 0)
      continue; // loops and quotients start at zero
    std::optional<IndexPoly> top = upperBoundOf(monomial);
    if (!top)
      return std::nullopt;
    bound = bound + IndexPoly(coefficient) * *top;
  }
  return bound;
}

bool IndexSpace::provablyNonNegative(
    const IndexPoly &poly, llvm::function_ref<bool(AtomId)> isPositive) const {
  std::optional<IndexPoly> low = lowerBound(poly);
  if (!low)
    return false;
  // Every positive size is 1 + something, so a polynomial in the somethings
  // and the other sizes without a negative coefficient is never negative.
  IndexPoly shifted;
  for (auto &[monomial, coefficient] : low->terms) {
    IndexPoly product = coefficient;
    for (AtomId id : monomial) {
      if (!atoms[id].isSize)
        return false;
      product = product * (IndexPoly::atom(id) + (isPositive(id) ? 1 : 0));
    }
    shifted = shifted + product;
  }
  return llvm::all_of(shifted.terms,
                      [](const auto &term) { return term.second >= 0; });
}

IndexPoly IndexSpace::floorDiv(const IndexPoly &a, const IndexPoly &b) {
  auto quotientOf = [&](const IndexPoly &dividend, const IndexPoly &divisor) {
    bool nonNegative = provablyNonNegative(dividend) &&
                       provablyNonNegative(divisor - IndexPoly(1));
    return IndexPoly::atom(
        intern({Atom::FloorDiv, dividend, divisor, {}, 0, nonNegative}));
  };
  if (b.terms.size() > 1)
    if (auto divided = divideLong(a, b); divided &&
                                         provablyNonNegative(divided->second) &&
                                         provablyLess(divided->second, b))
      return divided->first;
  if (b.terms.size() != 1 || b.terms.begin()->second <= 0)
    return quotientOf(a, b);
  auto [divisor, coefficient] = *b.terms.begin();
  auto [quotient, rest] = divide(a, divisor, coefficient);
  if (provablyNonNegative(rest) && provablyLess(rest, b))
    return quotient;
  // (g * x + c) floordiv (g * y) = x floordiv y for 0 <= c < g.
  int64_t gcd = coefficient;
  for (auto &[monomial, c] : rest.terms)
    if (!monomial.empty())
      gcd = std::gcd(gcd, c);
  IndexPoly dividend = rest, by = b;
  if (gcd > 1 && rest.constantPart() >= 0) {
    dividend = divide(rest - rest.constantPart(), {}, gcd).first +
               rest.constantPart() / gcd;
    by = divide(b, {}, gcd).first;
    if (by == IndexPoly(1))
      return quotient + dividend;
  }
  return quotient + quotientOf(dividend, by);
}

IndexPoly IndexSpace::broadcast(const IndexPoly &position,
                                const IndexPoly &size) {
  if (size == IndexPoly(1))
    return 0;
  // In an axis of one element a position inside of it is 0 as well.
  if (size.constant() ||
      (provablyNonNegative(position) && provablyLess(position, size)))
    return position;
  return IndexPoly::atom(intern(
      {Atom::Broadcast, position, size, {}, 0, provablyNonNegative(position)}));
}

IndexPoly IndexSpace::within(const IndexPoly &position, const IndexPoly &size) {
  if (provablyNonNegative(position) && provablyLess(position, size))
    return position;
  return IndexPoly::atom(intern({Atom::Within, position, size, {}, 0, true}));
}

IndexPoly IndexSpace::compose(Atom::Kind kind, const IndexPoly &first,
                              const IndexPoly &second) {
  switch (kind) {
  case Atom::FloorDiv:
    return floorDiv(first, second);
  case Atom::Broadcast:
    return broadcast(first, second);
  case Atom::Within:
    return within(first, second);
  default:
    llvm_unreachable("an atom without parts");
  }
}

IndexPoly IndexSpace::withoutBounds(const IndexPoly &poly) {
  IndexPoly result;
  for (auto &[monomial, coefficient] : poly.terms) {
    IndexPoly product = coefficient;
    for (AtomId id : monomial) {
      if (!isComposed(atoms[id])) {
        product = product * IndexPoly::atom(id);
        continue;
      }
      Atom::Kind kind = atoms[id].kind;
      IndexPoly first = withoutBounds(IndexPoly(atoms[id].first));
      IndexPoly second = withoutBounds(IndexPoly(atoms[id].second));
      product = product *
                (kind == Atom::Within ? first : compose(kind, first, second));
    }
    result = result + product;
  }
  return result;
}

IndexPoly IndexSpace::substitute(const IndexPoly &poly,
                                 const Substitution &map) {
  IndexPoly result;
  for (auto &[monomial, coefficient] : poly.terms) {
    IndexPoly product = coefficient;
    for (AtomId id : monomial) {
      auto it = map.find(id);
      if (it != map.end()) {
        product = product * it->second;
      } else if (isComposed(atoms[id])) {
        // Copies: new atoms may move the storage.
        Atom::Kind kind = atoms[id].kind;
        IndexPoly first = substitute(IndexPoly(atoms[id].first), map);
        IndexPoly second = substitute(IndexPoly(atoms[id].second), map);
        product = product * compose(kind, first, second);
      } else {
        product = product * IndexPoly::atom(id);
      }
    }
    result = result + product;
  }
  return result;
}

void IndexSpace::visit(const IndexPoly &poly,
                       llvm::function_ref<void(AtomId)> fn) const {
  for (auto &[monomial, coefficient] : poly.terms)
    for (AtomId id : monomial) {
      fn(id);
      if (isComposed(atoms[id])) {
        visit(atoms[id].first, fn);
        visit(atoms[id].second, fn);
      }
    }
}

bool IndexSpace::mentions(const IndexPoly &poly, AtomId id) const {
  bool isMentioned = false;
  visit(poly, [&](AtomId other) { isMentioned |= other == id; });
  return isMentioned;
}

IndexPoly IndexSpace::apply(AffineExpr expr, ArrayRef<IndexPoly> operands,
                            unsigned firstSymbol) {
  if (auto dim = dyn_cast<AffineDimExpr>(expr))
    return operands[dim.getPosition()];
  if (auto symbol = dyn_cast<AffineSymbolExpr>(expr))
    return operands[firstSymbol + symbol.getPosition()];
  if (auto number = dyn_cast<AffineConstantExpr>(expr))
    return number.getValue();
  auto binary = cast<AffineBinaryOpExpr>(expr);
  IndexPoly lhs = apply(binary.getLHS(), operands, firstSymbol),
            rhs = apply(binary.getRHS(), operands, firstSymbol);
  switch (expr.getKind()) {
  case AffineExprKind::Add:
    return lhs + rhs;
  case AffineExprKind::Mul:
    return lhs * rhs;
  case AffineExprKind::FloorDiv:
    return floorDiv(lhs, rhs);
  case AffineExprKind::Mod:
    return mod(lhs, rhs);
  case AffineExprKind::CeilDiv:
    return floorDiv(lhs + rhs - 1, rhs);
  default:
    llvm_unreachable("not a binary affine expression");
  }
}

std::optional<int64_t>
IndexSpace::evaluate(const IndexPoly &poly,
                     const llvm::DenseMap<AtomId, int64_t> &at) {
  int64_t sum = 0;
  for (auto &[monomial, coefficient] : poly.terms) {
    int64_t product = coefficient;
    for (AtomId id : monomial) {
      auto it = at.find(id);
      if (it != at.end()) {
        product = wrapMul(product, it->second);
        continue;
      }
      if (!isComposed(atoms[id]))
        return std::nullopt;
      std::optional<int64_t> a = evaluate(atoms[id].first, at),
                             b = evaluate(atoms[id].second, at);
      // There is no quotient by 0 and no position in an empty axis.
      if (!a || !b || (*b <= 0 && atoms[id].kind != Atom::Broadcast))
        return std::nullopt;
      switch (atoms[id].kind) {
      case Atom::FloorDiv:
        product = wrapMul(product, llvm::divideFloorSigned(*a, *b));
        break;
      case Atom::Broadcast:
        product = wrapMul(product, *b == 1 ? 0 : *a);
        break;
      default:
        product = wrapMul(product, std::clamp<int64_t>(*a, 0, *b - 1));
      }
    }
    sum = wrapAdd(sum, product);
  }
  return sum;
}

} // namespace mlir::diffattn::tensorexpr
