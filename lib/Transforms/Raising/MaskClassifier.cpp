//===- MaskClassifier.cpp - which keys a mask hides -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "MaskClassifier.h"

#include "FarNumbers.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include <algorithm>
#include <cmath>

namespace mlir::diffattn::raise {

/// Finite numbers at or below this hide a key: no score comes near, so the
/// key's weight is exactly zero in f32 if the row has any other key.
static constexpr double hidden = -kFarNumber;
/// Adding a score to these gives the number back, give or take its last bits,
/// so that replacing a score and adding to it hide a key alike.
static constexpr double swallows = -1e8;

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

/// `expr` without loads of what is understood.
static Expr openLoads(ExprGraph &graph, Expr expr) {
  while (Expr further = graph.expand(expr))
    expr = further;
  return expr;
}

/// The comparison of integers, by `predicate`, that `visible` is; or null.
Expr MaskClassifier::openComparison(Expr visible,
                                    arith::CmpIPredicate &predicate) {
  bool negated = false;
  visible = openLoads(graph, visible);
  while (visible->kind == Kind::Xor) {
    const auto *one = llvm::find_if(visible->operands, [](Expr e) {
      return e->kind == Kind::Const && e->number != 0;
    });
    if (one == visible->operands.end())
      return nullptr;
    visible =
        openLoads(graph, visible->operands[one == visible->operands.begin()]);
    negated = !negated;
  }
  if (visible->kind != Kind::CmpI)
    return nullptr;
  predicate = static_cast<arith::CmpIPredicate>(visible->predicate);
  if (negated)
    predicate = arith::invertPredicate(predicate);
  return visible;
}

/// The integers of queries and keys, if `visible` compares them for equality.
std::optional<Segments> MaskClassifier::segmentsOf(Expr visible) {
  arith::CmpIPredicate predicate;
  Expr comparison = openComparison(visible, predicate);
  if (!comparison || predicate != arith::CmpIPredicate::eq)
    return std::nullopt;
  auto without = [&](Expr expr, std::optional<AtomId> loop) {
    return loop ? graph.withoutLoop(expr, *loop) : expr;
  };
  auto isInteger = [](Expr expr) {
    return expr->type && (expr->type.isInteger(32) || expr->type.isInteger(64));
  };
  for (unsigned i : {0, 1}) {
    Segments ids{without(without(comparison->operands[i], key), head),
                 without(without(comparison->operands[1 - i], query), head)};
    if (!isInteger(ids.query) || ids.query->type != ids.key->type ||
        graph.mentions(ids.query, key) || graph.mentions(ids.query, head) ||
        !graph.mentions(ids.key, key) || graph.mentions(ids.key, head) ||
        (query && graph.mentions(ids.key, *query)))
      continue;
    return ids;
  }
  return std::nullopt;
}

/// n, if `visible` is key < n for a number n that is one for a whole batch.
Expr MaskClassifier::validKeysOf(Expr visible) {
  using P = arith::CmpIPredicate;
  P predicate;
  visible = openComparison(visible, predicate);
  if (!visible)
    return nullptr;
  for (unsigned i : {0, 1}) {
    Expr position = openLoads(graph, visible->operands[i]),
         count = visible->operands[1 - i];
    if (position->kind != Kind::Index)
      continue;
    std::optional<int64_t> distance =
        (position->index - IndexPoly::atom(key)).constant();
    if (!distance || graph.mentions(count, key) ||
        graph.mentions(count, head) || (query && graph.mentions(count, *query)))
      continue;
    // key + behind < count, or with one more where they may be equal.
    bool strict = predicate == (i == 0 ? P::slt : P::sgt),
         loose = predicate == (i == 0 ? P::sle : P::sge);
    if (!strict && !loose)
      return nullptr;
    return plus(count, (loose ? 1 : 0) - *distance, visible->type);
  }
  return nullptr;
}

/// The keys that stay visible are those that `condition` shows; the others get
/// `fill`, or, where it is added, a score with `fill` in it.
void MaskClassifier::hide(Expr condition, double fill, bool isSelect) {
  steps.push_back({condition, fill, isSelect, /*bias=*/nullptr});
}

static Type boolean(Expr expr) {
  return IntegerType::get(expr->type.getContext(), 1);
}

Expr MaskClassifier::sumOf(ArrayRef<Expr> numbers, Type type) {
  Expr sum = nullptr;
  for (Expr number : numbers) {
    Expr wide =
        number->type == type ? number : graph.make(Kind::Cast, type, {number});
    sum = sum ? graph.make(Kind::Add, type, {sum, wide}) : wide;
  }
  return sum;
}

/// Terms into which a bias is taken apart: each may be a mask. Further ones
/// stay together, for sums of sums of a graph may have millions.
static constexpr size_t kMaxTerms = 64;

void MaskClassifier::readBias(Expr bias) {
  if (!graph.mentions(bias, key) && !hidesRows(graph, bias))
    return; // the same for all keys of a row: no effect
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
        return hide(i == 1 ? condition : graph.notOf(condition), *fill,
                    /*isSelect=*/false);
      }
    }
  if (opened->kind == Kind::Add && steps.size() < kMaxTerms) {
    readBias(opened->operands[0]);
    return readBias(opened->operands[1]);
  }
  // Constants of zeros and large negative numbers.
  if (Expr closed = graph.close(bias)) {
    if (std::optional<std::vector<double>> values = evaluate(closed)) {
      double lowest = *std::min_element(values->begin(), values->end());
      bool twoValues = llvm::all_of(
          *values, [&](double value) { return value == 0 || value == lowest; });
      if (twoValues && lowest == 0)
        return;
      if (twoValues && lowest <= hidden)
        return hide(graph.make(Kind::CmpF, boolean(bias),
                               {closed, graph.constant(0, closed->type)},
                               static_cast<int64_t>(arith::CmpFPredicate::OEQ)),
                    lowest, /*isSelect=*/false);
    }
  }
  steps.push_back({nullptr, 0, false, bias});
}

/// Takes finite fills for infinite ones where each row provably sees a key
/// through all masks together: the hidden keys' weights are 0 in f32 then. A
/// number that is added may be a mask too, in a form that is not read.
void MaskClassifier::proveFinite() {
  Band joined;
  SmallVector<Segments> segments;
  for (const Step &step : steps)
    if (step.bias &&
        readsFarNumber(graph, step.bias,
                       {/*infinite=*/true, /*insideReductions=*/true}))
      return;
  for (const Step &step : steps)
    if (step.visible && !readTogether(step.visible, joined, segments))
      return;
  if (keepsAKey(joined, segments))
    for (Step &step : steps)
      step.fill = -INFINITY;
}

bool MaskClassifier::readTogether(Expr visible, Band &band,
                                  SmallVectorImpl<Segments> &segments) {
  if (std::optional<Band> one = bandOf(visible))
    return intersect(band, *one);
  if (std::optional<Segments> ids = segmentsOf(visible)) {
    segments.push_back(*ids);
    return true;
  }
  Expr opened = openCondition(visible);
  return opened->kind == Kind::And &&
         readTogether(opened->operands[0], band, segments) &&
         readTogether(opened->operands[1], band, segments);
}

/// Whether each row surely sees a key. With segments that is the key at its own
/// position, where that has the row's own number: queries and keys begin or end
/// together.
bool MaskClassifier::keepsAKey(const Band &band, ArrayRef<Segments> segments) {
  if (segments.empty())
    return keepsAKey(band);
  IndexPoly more = keys() - queries();
  if (!query || !graph.space.provablyNonNegative(more))
    return false;
  return llvm::any_of(ArrayRef{IndexPoly(0), more}, [&](const IndexPoly &at) {
    if ((band.low && !graph.space.provablyNonNegative(at - *band.low)) ||
        (band.high && !graph.space.provablyNonNegative(*band.high - at)))
      return false;
    return llvm::all_of(segments, [&](const Segments &ids) {
      Expr own =
          graph.substitute(ids.key, {{key, IndexPoly::atom(*query) + at}});
      return graph.equal(own, ids.query);
    });
  });
}

/// Rows may see no key: a large negative number then weighs all keys alike,
/// which a mask would not. So it stays a number. Where it replaces the score it
/// replaces what was added before too, and shows what was hidden for good.
bool MaskClassifier::foldFinite(SmallVector<Expr> &numbers,
                                SmallVector<Expr> &conditions) {
  for (const Step &step : steps) {
    if (step.bias) {
      numbers.push_back(step.bias);
      continue;
    }
    if (std::isinf(step.fill)) {
      conditions.push_back(step.visible);
      continue;
    }
    if (step.isSelect && step.fill > swallows) {
      reason =
          "scores are replaced by a finite number, and a row may see no key";
      return false;
    }
    // A fill may be too large for the type of a bias.
    Type type = Float32Type::get(step.visible->type.getContext());
    Expr before = graph.constant(0, type);
    if (step.isSelect) {
      if (!numbers.empty())
        before = sumOf(numbers, type);
      numbers.clear();
      for (Expr &condition : conditions)
        condition = graph.make(Kind::Or, condition->type,
                               {condition, graph.notOf(step.visible)});
    }
    numbers.push_back(
        graph.make(Kind::Select, type,
                   {step.visible, before, graph.constant(step.fill, type)}));
  }
  return true;
}

/// A key is hidden for good unless `visible`.
void MaskClassifier::addVisible(Mask &mask, Expr visible) {
  if (std::optional<Band> band = bandOf(visible)) {
    Band joined = mask.band;
    if (intersect(joined, *band)) {
      mask.band = joined;
      return;
    }
  } else {
    // A conjunction of a band and of something else: each in its own way.
    Expr opened = openCondition(visible);
    if (opened->kind == Kind::And) {
      addVisible(mask, opened->operands[0]);
      return addVisible(mask, opened->operands[1]);
    }
  }
  if (!mask.segments)
    if (std::optional<Segments> ids = segmentsOf(visible)) {
      mask.segments = ids;
      return;
    }
  if (!mask.validKeys)
    if (Expr count = validKeysOf(visible)) {
      mask.validKeys = count;
      return;
    }
  mask.visible.push_back(visible);
}

bool Mask::isSame(ExprGraph &graph, const Mask &other) const {
  auto one = [&](Expr x, Expr y) {
    return x && y ? graph.equal(x, y) : x == y;
  };
  auto all = [&](ArrayRef<Expr> x, ArrayRef<Expr> y) {
    return x.size() == y.size() &&
           llvm::all_of(llvm::zip(x, y), [&](auto pair) {
             return graph.equal(std::get<0>(pair), std::get<1>(pair));
           });
  };
  if (segments.has_value() != other.segments.has_value() ||
      (segments && !(one(segments->query, other.segments->query) &&
                     one(segments->key, other.segments->key))))
    return false;
  return band == other.band && one(validKeys, other.validKeys) &&
         all(visible, other.visible) && all(bias, other.bias);
}

std::optional<Mask> MaskClassifier::classify(ArrayRef<MaskPart> parts) {
  steps.clear();
  for (const MaskPart &part : parts) {
    if (part.bias)
      readBias(part.bias);
    else
      hide(part.visible, part.fill, /*isSelect=*/true);
    if (!steps.empty() && steps.back().visible && steps.back().fill > hidden) {
      reason = "scores are replaced by a number that does not hide a key";
      return std::nullopt;
    }
  }
  proveFinite();
  Mask mask;
  SmallVector<Expr> conditions;
  if (!foldFinite(mask.bias, conditions))
    return std::nullopt;
  for (Expr condition : conditions)
    addVisible(mask, condition);
  return mask;
}

} // namespace mlir::diffattn::raise
