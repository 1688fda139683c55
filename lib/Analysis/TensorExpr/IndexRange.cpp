//===- IndexRange.cpp - numbers that polynomials stay between -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/IndexPoly.h"

#include "mlir/IR/BuiltinTypes.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace mlir::diffattn::tensorexpr {

using Wide = __int128;
static constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
static constexpr int64_t kMaxElements = int64_t(1) << 40;

/// The range of one factor; none where it is not known, or too wide.
std::optional<IndexSpace::Range> IndexSpace::rangeOf(AtomId id) const {
  const Atom &atom = atoms[id];
  if (atom.isSize)
    return Range{1, kMaxSize};
  switch (atom.kind) {
  case Atom::Size:
    break;
  case Atom::Opaque: {
    auto type = dyn_cast<IntegerType>(atom.value.getType());
    if (!type || type.getWidth() > 32)
      return std::nullopt;
    return Range{llvm::minIntN(type.getWidth()),
                 llvm::maxIntN(type.getWidth())};
  }
  case Atom::Within:
  case Atom::Loop: {
    std::optional<Range> extent =
        rangeOf(atom.kind == Atom::Loop ? atom.first : atom.second);
    if (!extent)
      return std::nullopt;
    return Range{0, std::max<int64_t>(extent->high - 1, 0)};
  }
  case Atom::Broadcast: {
    std::optional<Range> position = rangeOf(atom.first);
    if (!position)
      return std::nullopt;
    return Range{std::min<int64_t>(position->low, 0),
                 std::max<int64_t>(position->high, 0)};
  }
  case Atom::FloorDiv: {
    std::optional<Range> dividend = rangeOf(atom.first),
                         divisor = rangeOf(atom.second);
    if (!dividend || !divisor || divisor->low < 1)
      return std::nullopt;
    auto quotient = [](int64_t a, int64_t b) {
      return llvm::divideFloorSigned(a, b);
    };
    return Range{quotient(dividend->low,
                          dividend->low < 0 ? divisor->low : divisor->high),
                 quotient(dividend->high,
                          dividend->high < 0 ? divisor->high : divisor->low)};
  }
  }
  llvm_unreachable("unknown kind of atom");
}

std::optional<IndexSpace::Range>
IndexSpace::rangeOf(const IndexPoly &poly) const {
  Wide low = 0, high = 0;
  auto fits = [](Wide number) {
    return std::numeric_limits<int64_t>::min() <= number &&
           number <= std::numeric_limits<int64_t>::max();
  };
  for (auto &[monomial, coefficient] : poly.terms) {
    Wide from = 1, to = 1;
    // Positions and sizes multiply to numbers of elements.
    bool counts = llvm::all_of(monomial, [&](AtomId id) {
      return atoms[id].isSize || atoms[id].kind == Atom::Loop;
    });
    for (AtomId id : monomial) {
      std::optional<Range> factor = rangeOf(id);
      if (!factor)
        return std::nullopt;
      std::tie(from, to) = std::minmax({from * factor->low, from * factor->high,
                                        to * factor->low, to * factor->high});
      if (counts && monomial.size() > 1)
        to = std::min<Wide>(to, kMaxElements);
      if (!fits(from) || !fits(to))
        return std::nullopt;
    }
    std::tie(from, to) = std::minmax({from * coefficient, to * coefficient});
    low += from;
    high += to;
    if (!fits(low) || !fits(high))
      return std::nullopt;
  }
  return Range{static_cast<int64_t>(low), static_cast<int64_t>(high)};
}

} // namespace mlir::diffattn::tensorexpr
