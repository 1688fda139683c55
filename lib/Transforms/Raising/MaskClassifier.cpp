//===- MaskClassifier.cpp - which keys a mask hides -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "MaskClassifier.h"

#include "Softmax.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include <algorithm>
#include <cmath>

namespace mlir::diffattn::raise {

/// Finite numbers at or below this hide a key: no score comes near, so the
/// key's weight is exactly zero in f32 if the row has any other key.
static constexpr double hidden = -1e4;
/// Adding a score to these gives the number back, give or take its last bits,
/// so that replacing a score and adding to it hide a key alike.
static constexpr double swallows = -1e8;
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

/// Opens element-wise ops until a conjunction is on top, and turns negated
/// disjunctions into conjunctions.
Expr MaskClassifier::openCondition(Expr condition) {
  Expr opened = condition;
  while (opened->kind == Kind::Load) {
    Expr further = graph.expand(opened);
    if (!further)
      break;
    opened = further;
  }
  if (opened->kind == Kind::And)
    return opened;
  if (opened->kind == Kind::Xor)
    for (unsigned i : {0, 1}) {
      if (opened->operands[i]->kind != Kind::Const ||
          opened->operands[i]->number == 0)
        continue;
      Expr inner = opened->operands[1 - i];
      while (inner->kind == Kind::Load) {
        Expr further = graph.expand(inner);
        if (!further)
          break;
        inner = further;
      }
      if (inner->kind == Kind::Or)
        return graph.make(
            Kind::And, inner->type,
            {graph.notOf(inner->operands[0]), graph.notOf(inner->operands[1])});
      Expr flipped = graph.notOf(inner);
      if (flipped->kind != Kind::Xor)
        return openCondition(flipped);
    }
  return condition;
}

/// A number of keys that is `more` than `count`. Beyond all keys, or below
/// none, `count` stands for these, so that the sum does not wrap around.
Expr MaskClassifier::plus(Expr count, int64_t more, Type boolean) {
  if (count->kind == Kind::Index && graph.isBounded(count->index))
    return graph.index(count->index + more);
  if (more == 0)
    return count;
  Type type = count->type ? count->type : IndexType::get(boolean.getContext());
  Expr limit = graph.index(more > 0 ? keys() : IndexPoly(0));
  auto inside =
      more > 0 ? arith::CmpIPredicate::slt : arith::CmpIPredicate::sgt;
  count = graph.make(Kind::Select, type,
                     {graph.make(Kind::CmpI, boolean, {count, limit},
                                 static_cast<int64_t>(inside)),
                      count, limit});
  return graph.make(Kind::Add, type, {count, graph.index(more)});
}

/// n, if `visible` says key < n for a number n that is one for a whole batch.
Expr MaskClassifier::validKeysOf(Expr visible) {
  using P = arith::CmpIPredicate;
  auto openLoads = [&](Expr expr) {
    while (Expr further = graph.expand(expr))
      expr = further;
    return expr;
  };
  bool negated = false;
  visible = openLoads(visible);
  while (visible->kind == Kind::Xor) {
    const auto *one = llvm::find_if(visible->operands, [](Expr e) {
      return e->kind == Kind::Const && e->number != 0;
    });
    if (one == visible->operands.end())
      return nullptr;
    visible = openLoads(visible->operands[one == visible->operands.begin()]);
    negated = !negated;
  }
  if (visible->kind != Kind::CmpI)
    return nullptr;
  auto predicate = static_cast<P>(visible->predicate);
  if (negated)
    predicate = arith::invertPredicate(predicate);
  for (unsigned i : {0, 1}) {
    Expr position = openLoads(visible->operands[i]),
         count = visible->operands[1 - i];
    if (position->kind != Kind::Index)
      continue;
    std::optional<int64_t> behind =
        (position->index - IndexPoly::atom(key)).constant();
    if (!behind || graph.mentions(count, key) || graph.mentions(count, head) ||
        (query && graph.mentions(count, *query)))
      continue;
    // key + behind < count, or with one more where they may be equal.
    bool strict = predicate == (i == 0 ? P::slt : P::sgt),
         loose = predicate == (i == 0 ? P::sle : P::sge);
    if (!strict && !loose)
      return nullptr;
    return plus(count, (loose ? 1 : 0) - *behind, visible->type);
  }
  return nullptr;
}

bool MaskClassifier::addVisible(Mask &mask, Expr visible, double fill,
                                bool isSelect) {
  if (fill > hidden) {
    reason = "scores are replaced by a number that does not hide a key";
    return false;
  }
  bool infinite = std::isinf(fill);
  // A conjunction of a band and of something else: each in its own way.
  if (infinite && !bandOf(visible)) {
    Expr opened = openCondition(visible);
    if (opened->kind == Kind::And)
      return addVisible(mask, opened->operands[0], fill, isSelect) &&
             addVisible(mask, opened->operands[1], fill, isSelect);
  }
  if (std::optional<Band> band = bandOf(visible)) {
    Band joined = mask.band;
    if ((infinite || keepsAKey(*band)) && intersect(joined, *band)) {
      mask.band = joined;
      return true;
    }
  }
  if (infinite && !mask.validKeys)
    if (Expr count = validKeysOf(visible)) {
      mask.validKeys = count;
      return true;
    }
  if (infinite) {
    mask.visible.push_back(visible);
    return true;
  }
  // Rows may see no key: a large negative number then weighs all keys alike,
  // which a mask would not.
  if (isSelect && fill > swallows) {
    reason = "scores are replaced by a finite number, and a row may see no key";
    return false;
  }
  Type type = mask.bias.empty()
                  ? FloatType(Float32Type::get(visible->type.getContext()))
                  : mask.bias.front()->type;
  mask.bias.push_back(graph.make(
      Kind::Select, type,
      {visible, graph.constant(0, type), graph.constant(fill, type)}));
  return true;
}

bool MaskClassifier::addBias(Mask &mask, Expr bias) {
  if (!graph.mentions(bias, key) && !hidesRows(graph, bias))
    return true; // the same for all keys of a row: no effect
  Expr opened = graph.stripCasts(bias);
  while (opened->kind == Kind::Load) {
    Expr further = graph.expand(opened);
    if (!further)
      break;
    opened = graph.stripCasts(further);
  }
  if (opened->kind == Kind::Select)
    for (unsigned i : {1, 2}) {
      std::optional<double> zero = graph.constantValue(opened->operands[i]);
      std::optional<double> fill = graph.constantValue(opened->operands[3 - i]);
      if (zero && fill && *zero == 0 && *fill <= hidden) {
        Expr condition = opened->operands[0];
        return addVisible(mask, i == 1 ? condition : graph.notOf(condition),
                          *fill, /*isSelect=*/false);
      }
    }
  if (opened->kind == Kind::Add)
    return addBias(mask, opened->operands[0]) &&
           addBias(mask, opened->operands[1]);
  // Constants of zeros and large negative numbers.
  if (Expr closed = graph.close(bias)) {
    if (std::optional<std::vector<double>> values = evaluate(closed)) {
      double lowest = *std::min_element(values->begin(), values->end());
      bool twoValues = llvm::all_of(
          *values, [&](double value) { return value == 0 || value == lowest; });
      if (twoValues && lowest == 0)
        return true;
      Type boolean = IntegerType::get(bias->type.getContext(), 1);
      if (twoValues && lowest <= hidden)
        return addVisible(
            mask,
            graph.make(Kind::CmpF, boolean,
                       {closed, graph.constant(0, closed->type)},
                       static_cast<int64_t>(arith::CmpFPredicate::OEQ)),
            lowest, /*isSelect=*/false);
    }
  }
  mask.bias.push_back(bias);
  return true;
}

std::optional<Mask> MaskClassifier::classify(ArrayRef<MaskPart> parts) {
  Mask mask;
  for (const MaskPart &part : parts)
    if (!(part.bias ? addBias(mask, part.bias)
                    : addVisible(mask, part.visible, part.fill,
                                 /*isSelect=*/true)))
      return std::nullopt;
  return mask;
}

} // namespace mlir::diffattn::raise
