//===- IndexPoly.h - polynomials over loop indices and sizes ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Integers as polynomials over *atoms*: loop indices with a known extent, sizes
// that are only known when the program runs, integers that nothing is known of,
// and floor divisions. A *position* in a tensor is one polynomial for each
// axis. Affine expressions of MLIR are not enough here: splitting and merging
// axes of dynamic size multiplies an index by a size, and whether
// `(b * H + h) floordiv H` is `b` depends on the extent of `h`.
//
// Of a loop b below B and a loop h below H, which is a size,
//
//     IndexSpace space;
//     IndexPoly H = space.size(tensor, 1);
//     IndexPoly b = space.loop(space.size(tensor, 0)), h = space.loop(H);
//     space.floorDiv(b * H + h, H) == b
//     space.mod(b * H + h, H) == h
//     space.provablyLess(b * H + h, space.size(tensor, 0) * H)
//
// Polynomials of one IndexSpace are equal if and only if they are written
// alike, so == is exact up to what is not seen. "Provably" means for all loops
// and sizes; what is not proven may hold all the same. Two limits are taken for
// granted: a size is at least 1 and less than 2^31, and a product of sizes and
// positions is at most 2^40.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_ANALYSIS_TENSOREXPR_INDEXPOLY_H
#define DIFFATTN_ANALYSIS_TENSOREXPR_INDEXPOLY_H

#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Value.h"
#include "llvm/ADT/DenseMap.h"

#include <map>
#include <optional>
#include <vector>

namespace mlir::diffattn::tensorexpr {

using AtomId = unsigned;
/// A product of atoms, sorted; empty for a constant.
using Monomial = std::vector<AtomId>;

/// A polynomial with integer coefficients; no stored coefficient is zero.
class IndexPoly {
public:
  IndexPoly(int64_t constant = 0) {
    if (constant)
      terms[{}] = constant;
  }
  static IndexPoly atom(AtomId id) {
    IndexPoly poly;
    poly.terms[{id}] = 1;
    return poly;
  }

  std::optional<int64_t> constant() const;
  /// The atom if this is nothing else.
  std::optional<AtomId> asAtom() const;
  int64_t constantPart() const {
    auto it = terms.find({});
    return it == terms.end() ? 0 : it->second;
  }
  void addTerm(const Monomial &monomial, int64_t coefficient);
  /// True if there are at most `maxTerms` terms, of at most `maxDegree` atoms.
  /// Integers may be computed by long chains that use each value twice: written
  /// out, these have more terms than memory.
  bool isWithin(size_t maxTerms, size_t maxDegree) const;

  bool operator==(const IndexPoly &other) const { return terms == other.terms; }
  bool operator!=(const IndexPoly &other) const { return terms != other.terms; }
  friend IndexPoly operator+(const IndexPoly &a, const IndexPoly &b);
  friend IndexPoly operator-(const IndexPoly &a, const IndexPoly &b);
  friend IndexPoly operator*(const IndexPoly &a, const IndexPoly &b);

  std::map<Monomial, int64_t> terms;
};

/// Where an element lies: a polynomial for each axis.
using Position = SmallVector<IndexPoly>;

/// Owns the atoms of one analysis.
class IndexSpace {
public:
  struct Atom {
    enum Kind { Loop, Size, Opaque, FloorDiv, Broadcast, Within } kind;
    /// Loop: its extent. FloorDiv: the dividend. Others: the position.
    IndexPoly first;
    /// FloorDiv: the divisor. Broadcast and Within: the size of the axis.
    IndexPoly second;
    /// Size: a tensor and its axis. Opaque: an index value.
    Value value;
    int64_t axis = 0;
    /// Provably at least 0; loops and sizes always are.
    bool nonNegative = false;
    /// The size of an axis, so at least 1 and less than 2^31: also an index
    /// value that was joined with one.
    bool isSize = false;
    /// The number of atoms inside, with this one.
    unsigned weight = 1;
  };
  struct Range {
    int64_t low, high;
  };
  using Substitution = std::map<AtomId, IndexPoly>;

  /// A new loop from 0 to `extent` - 1.
  IndexPoly loop(const IndexPoly &extent);
  /// The size of a dynamic axis; equal sizes that were joined are one atom.
  IndexPoly size(Value tensor, int64_t axis);
  /// An integer that is not looked into, extended by its sign.
  IndexPoly opaque(Value index);
  /// The quotient, rounded down; `b` is positive.
  IndexPoly floorDiv(const IndexPoly &a, const IndexPoly &b);
  /// 0 in an axis of one element, else `position`: what is broadcast at run
  /// time.
  IndexPoly broadcast(const IndexPoly &position, const IndexPoly &size);
  /// `position` where it is inside of an axis by the condition under which it
  /// is read: a piece of a concatenation.
  IndexPoly within(const IndexPoly &position, const IndexPoly &size);
  /// `poly` where all such conditions hold.
  IndexPoly withoutBounds(const IndexPoly &poly);
  IndexPoly mod(const IndexPoly &a, const IndexPoly &b) {
    return a - b * floorDiv(a, b);
  }
  /// States that two sizes are equal. Only before the first other use.
  void join(const IndexPoly &a, const IndexPoly &b);
  /// States that two products are equal; sizes that both have in common are
  /// left out. Only before the first other use.
  void joinProducts(const IndexPoly &a, const IndexPoly &b);

  /// A tensor and axis whose size `size` is, or an integer that it is and
  /// `kNoAxis`: one that `preferred` likes, if there is one, else the tensor
  /// that the atom was made for.
  static constexpr int64_t kNoAxis = -1;
  std::pair<Value, int64_t>
  sizeSource(AtomId size, llvm::function_ref<bool(Value)> preferred) const;

  const Atom &operator[](AtomId id) const { return atoms[id]; }
  const IndexPoly &extent(AtomId loop) const { return atoms[loop].first; }

  IndexPoly substitute(const IndexPoly &poly, const Substitution &map);
  bool mentions(const IndexPoly &poly, AtomId id) const;
  /// Calls `fn` on every atom, also on those inside divisions.
  void visit(const IndexPoly &poly, llvm::function_ref<void(AtomId)> fn) const;
  /// `expr` of `operands`: dimensions, and from `firstSymbol` on symbols.
  IndexPoly apply(AffineExpr expr, ArrayRef<IndexPoly> operands,
                  unsigned firstSymbol = 0);

  /// True if `a < b`, or `a <= b`, whatever the loops and sizes are. Loops run
  /// at least once, so sizes count as positive.
  bool provablyLess(const IndexPoly &a, const IndexPoly &b) const {
    return provablyNonNegative(b - a - 1);
  }
  bool provablyNonNegative(const IndexPoly &poly) const {
    return provablyNonNegative(poly, [](AtomId) { return true; });
  }
  /// True if `poly` is at least 0 where only the sizes that `isPositive` names
  /// cannot be 0.
  bool provablyNonNegative(const IndexPoly &poly,
                           llvm::function_ref<bool(AtomId)> isPositive) const;
  /// The number of atoms in `poly`, also of those inside of divisions: what it
  /// costs to look at. At most 2^30.
  unsigned weight(const IndexPoly &poly) const;

  /// Numbers that `poly` stays between, if it never wraps around in 64 bits.
  /// Sizes known only at run time count as less than 2^31, and products of
  /// these as at most 2^40, which no tensor's elements exceed.
  std::optional<Range> rangeOf(const IndexPoly &poly) const;
  /// The value of `poly` with 64 bits that wrap around, where atoms have the
  /// numbers `at`; none where one has no number or no value.
  std::optional<int64_t> evaluate(const IndexPoly &poly,
                                  const llvm::DenseMap<AtomId, int64_t> &at);

private:
  /// Smallest value of `poly` as a polynomial of sizes, if it is known.
  std::optional<IndexPoly> lowerBound(const IndexPoly &poly) const;
  std::optional<IndexPoly> upperBoundOf(const Monomial &monomial) const;
  std::optional<Range> rangeOf(AtomId id) const;
  AtomId intern(Atom atom);
  /// True for an atom of a position and a size, or of a dividend and a divisor.
  static bool isComposed(const Atom &atom) {
    return atom.kind == Atom::FloorDiv || atom.kind == Atom::Broadcast ||
           atom.kind == Atom::Within;
  }
  IndexPoly compose(Atom::Kind kind, const IndexPoly &first,
                    const IndexPoly &second);
  IndexPoly resolve(AtomId id) const;
  IndexPoly resolve(const IndexPoly &poly) const;

  std::vector<Atom> atoms;
  std::map<AtomId, IndexPoly> joined;
};

} // namespace mlir::diffattn::tensorexpr

#endif // DIFFATTN_ANALYSIS_TENSOREXPR_INDEXPOLY_H
