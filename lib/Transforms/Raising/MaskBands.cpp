//===- MaskBands.cpp - bands of visible keys ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "MaskClassifier.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include <algorithm>

namespace mlir::diffattn::raise {

/// Masks are evaluated in full up to this many pairs of query and key.
static constexpr int64_t evaluationLimit = 1 << 24;

bool MaskClassifier::intersect(Band &band, const Band &other) {
  auto merge = [&](std::optional<IndexPoly> &mine,
                   const std::optional<IndexPoly> &theirs, bool wantSmaller) {
    if (!theirs)
      return true;
    if (!mine) {
      mine = theirs;
      return true;
    }
    bool mineSmaller = graph.space.provablyNonNegative(*theirs - *mine);
    bool theirsSmaller = graph.space.provablyNonNegative(*mine - *theirs);
    if (!mineSmaller && !theirsSmaller)
      return false;
    if (mineSmaller != wantSmaller && *mine != *theirs)
      mine = theirs;
    return true;
  };
  return merge(band.low, other.low, /*wantSmaller=*/false) &&
         merge(band.high, other.high, /*wantSmaller=*/true);
}

/// True if the first row and the last, and so every row between, sees a key.
bool MaskClassifier::keepsAKey(const Band &band) {
  if (band.high && !graph.space.provablyNonNegative(*band.high))
    return false;
  if (band.low &&
      !graph.space.provablyNonNegative(keys() - queries() - *band.low))
    return false;
  return !band.low || !band.high ||
         graph.space.provablyNonNegative(*band.high - *band.low);
}

std::optional<Band> MaskClassifier::bandFromComparisons(Expr visible) {
  if (visible->kind == Kind::Const)
    return visible->number != 0 ? std::optional<Band>(Band()) : std::nullopt;
  if (visible->kind == Kind::And) {
    std::optional<Band> a = bandFromComparisons(visible->operands[0]),
                        b = bandFromComparisons(visible->operands[1]);
    if (!a || !b || !intersect(*a, *b))
      return std::nullopt;
    return a;
  }
  bool negated = false;
  while (visible->kind == Kind::Xor) {
    Expr inner = nullptr;
    for (unsigned i : {0, 1})
      if (visible->operands[i]->kind == Kind::Const &&
          visible->operands[i]->number != 0)
        inner = visible->operands[1 - i];
    if (!inner)
      return std::nullopt;
    visible = inner;
    negated = !negated;
  }
  // not (a or b) = not a and not b
  if (negated && visible->kind == Kind::Or) {
    std::optional<Band> a =
        bandFromComparisons(graph.notOf(visible->operands[0]));
    std::optional<Band> b =
        bandFromComparisons(graph.notOf(visible->operands[1]));
    if (!a || !b || !intersect(*a, *b))
      return std::nullopt;
    return a;
  }
  if (visible->kind != Kind::CmpI)
    return std::nullopt;
  Expr a = visible->operands[0], b = visible->operands[1];
  if (a->kind != Kind::Index || b->kind != Kind::Index ||
      !graph.isBounded(a->index) || !graph.isBounded(b->index))
    return std::nullopt;
  IndexPoly offset = IndexPoly::atom(key);
  if (query)
    offset = offset - IndexPoly::atom(*query);
  auto free = [&](const IndexPoly &poly) {
    bool sizes = true;
    graph.space.visit(poly,
                      [&](AtomId id) { sizes &= graph.space[id].isSize; });
    return sizes;
  };
  Band band;
  // difference >= 0, with difference = sign * (key - query) + rest
  auto limit = [&](const IndexPoly &difference) {
    if (IndexPoly rest = difference + offset; free(rest)) {
      band.high = rest;
      return true;
    }
    IndexPoly rest = difference - offset;
    if (!free(rest))
      return false;
    band.low = IndexPoly(0) - rest;
    return true;
  };
  IndexPoly more = a->index - b->index, less = b->index - a->index;
  auto predicate = static_cast<arith::CmpIPredicate>(visible->predicate);
  if (negated)
    predicate = arith::invertPredicate(predicate);
  bool known = false;
  switch (predicate) {
  case arith::CmpIPredicate::sge:
    known = limit(more);
    break;
  case arith::CmpIPredicate::sgt:
    known = limit(more - 1);
    break;
  case arith::CmpIPredicate::sle:
    known = limit(less);
    break;
  case arith::CmpIPredicate::slt:
    known = limit(less - 1);
    break;
  case arith::CmpIPredicate::eq:
    known = limit(more) && limit(less);
    break;
  default:
    break;
  }
  return known ? std::optional<Band>(band) : std::nullopt;
}

std::optional<std::vector<double>> MaskClassifier::evaluate(Expr closed) {
  std::optional<int64_t> rows = queries().constant();
  std::optional<int64_t> columns = keys().constant();
  if (!rows || !columns || *rows * *columns > evaluationLimit)
    return std::nullopt;
  std::vector<double> values;
  values.reserve(*rows * *columns);
  llvm::DenseMap<AtomId, int64_t> at;
  for (int64_t i = 0; i < *rows; ++i)
    for (int64_t j = 0; j < *columns; ++j) {
      if (query)
        at[*query] = i;
      at[key] = j;
      // Nothing where batch or head matter too.
      std::optional<double> value = graph.evaluate(closed, at);
      if (!value)
        return std::nullopt;
      values.push_back(*value);
    }
  return values;
}

std::optional<Band> MaskClassifier::bandByEvaluation(Expr visible) {
  std::optional<std::vector<double>> seen = evaluate(visible);
  if (!seen)
    return std::nullopt;
  int64_t rows = *queries().constant(), columns = *keys().constant();
  int64_t low = columns, high = -rows;
  auto forEach = [&](auto fn) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        if (!fn(j - i, (*seen)[i * columns + j] != 0))
          return false;
    return true;
  };
  forEach([&](int64_t offset, bool visible) {
    if (visible) {
      low = std::min(low, offset);
      high = std::max(high, offset);
    }
    return true;
  });
  if (!forEach([&](int64_t offset, bool visible) {
        return visible == (low <= offset && offset <= high);
      }))
    return std::nullopt;
  Band band;
  band.low = IndexPoly(low);
  band.high = IndexPoly(high);
  return band;
}

std::optional<Band> MaskClassifier::bandOf(Expr visible) {
  Expr closed = graph.close(visible);
  if (!closed)
    return std::nullopt;
  std::optional<Band> band = bandFromComparisons(closed);
  if (!band)
    band = bandByEvaluation(closed);
  if (!band)
    return std::nullopt;
  // Limits that no pair of query and key reaches are none.
  if (band->low &&
      graph.space.provablyNonNegative(IndexPoly(1) - queries() - *band->low))
    band->low.reset();
  if (band->high && graph.space.provablyNonNegative(*band->high - keys() + 1))
    band->high.reset();
  return band;
}

} // namespace mlir::diffattn::raise
