//===- Softmax.cpp - where a softmax map is made --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Softmax.h"

#include "FarNumbers.h"
#include "HalfFloats.h"

#include "DiffAttn/Analysis/TensorExpr/Conditions.h"

#include "mlir/Dialect/Math/IR/Math.h"

#include <cmath>

namespace mlir::diffattn::raise {

namespace {
/// A term of a sum and its sign.
using Signed = std::pair<Expr, bool>;

struct SoftmaxMatcher {
  ExprGraph &graph;
  Softmax &result;

  bool match(Expr element);

private:
  bool matchQuotient(Expr numerator, Expr divisor);
  Expr takeGuard(Expr divisor, double &added, double &least);
  bool isShiftedByMaximum(Expr exponent, AtomId key);
  Expr takeMask(Expr weight, Expr &visible);
  Expr truthOf(Expr factor);
  Expr withoutNeedlessZeros(Expr weight);
  bool matchLogSum(Expr exponent, bool base2);
  std::optional<AtomId> keyOf(unsigned axis, Expr total, Expr numerator);
  Expr withoutKeyFreeTerms(Expr expr, AtomId key);
  Expr split(Expr expr, AtomId key, bool positive, SmallVector<Signed> &free);
  void flatten(Expr expr, bool positive, SmallVector<Signed> &terms);
  bool cancel(SmallVector<Signed> &a, ArrayRef<Signed> b);
  void take(unsigned axis, Expr exponent, AtomId key, bool base2);
};
} // namespace

/// A softmax does not change when something is added to all keys of a row, so
/// the shift by the maximum, or by anything else, is not part of the scores.
Expr SoftmaxMatcher::withoutKeyFreeTerms(Expr expr, AtomId key) {
  auto isFree = [&](Expr e) { return !graph.mentions(e, key); };
  auto isShift = [&](Expr e) { return isFree(e) && !hidesRows(graph, e); };
  switch (expr->kind) {
  case Kind::Load:
  case Kind::Cast: {
    Expr opened =
        expr->kind == Kind::Load ? graph.expand(expr) : expr->operands[0];
    if (!opened)
      return expr;
    Expr rest = withoutKeyFreeTerms(opened, key);
    return rest == opened ? expr : rest;
  }
  case Kind::Add:
    if (isShift(expr->operands[0]))
      return withoutKeyFreeTerms(expr->operands[1], key);
    [[fallthrough]];
  case Kind::Sub:
    if (isShift(expr->operands[1]))
      return withoutKeyFreeTerms(expr->operands[0], key);
    return expr;
  case Kind::Mul:
  case Kind::Div:
    for (unsigned i : {0, 1}) {
      if (!isFree(expr->operands[1 - i]) || (i == 1 && expr->kind == Kind::Div))
        continue;
      Expr rest = withoutKeyFreeTerms(expr->operands[i], key);
      if (rest == expr->operands[i])
        return expr;
      SmallVector<Expr> operands(expr->operands.begin(), expr->operands.end());
      operands[i] = rest;
      return graph.make(expr->kind, expr->type, operands);
    }
    return expr;
  default:
    return expr;
  }
}

/// True if `exponent` is x + max(x): powers that leave f32 from x = 44 on,
/// where the quotient is NaN, and what takes NaN for another number gives that.
static bool addsItsMaximum(ExprGraph &graph, Expr exponent, AtomId key) {
  Expr sum = graph.open(exponent);
  return sum->kind == Kind::Add && llvm::any_of(sum->operands, [&](Expr term) {
           Expr maximum = graph.open(term);
           return maximum->kind == Kind::Reduce &&
                  maximum->combiner() == Combiner::Max &&
                  !graph.mentions(maximum, key);
         });
}

void SoftmaxMatcher::take(unsigned axis, Expr exponent, AtomId key,
                          bool base2) {
  result.keyAxis = axis;
  if (addsItsMaximum(graph, exponent, key))
    result.flaw = "a softmax adds the maximum to its scores";
  result.scores = withoutKeyFreeTerms(exponent, key);
  if (!base2)
    return;
  // exp2(c x) = exp(c ln 2 x): one factor, since a fill times c may leave f32,
  // and ln 2 in 16 bits would be another number.
  double factor = M_LN2;
  Expr scores = graph.open(graph.stripCasts(result.scores));
  if (scores->kind == Kind::Mul)
    for (unsigned i : {0, 1})
      if (std::optional<double> number =
              graph.constantValue(scores->operands[i])) {
        factor *= *number;
        result.scores = scores->operands[1 - i];
        break;
      }
  if (std::fabs(factor - 1) <= 1e-6)
    return;
  Type type = result.scores->type;
  if (isHalfFloat(type))
    type = Float32Type::get(type.getContext());
  result.scores = graph.make(Kind::Mul, type,
                             {graph.make(Kind::Cast, type, {result.scores}),
                              graph.constant(factor, type)});
}

/// The loop of `axis` if it can be the keys that `total` sums over.
std::optional<AtomId> SoftmaxMatcher::keyOf(unsigned axis, Expr total,
                                            Expr numerator) {
  AtomId key = *result.loops[axis].asAtom();
  if (graph.mentions(total, key) || !graph.mentions(numerator, key) ||
      graph.space.extent(key) != graph.space.extent(total->bound[0]))
    return std::nullopt;
  return key;
}

static bool isSum(Expr expr) {
  return expr->kind == Kind::Reduce && expr->combiner() == Combiner::Sum &&
         expr->bound.size() == 1;
}

/// The sum within a guard that keeps a divisor from zero: `sum + added` or
/// `max(sum, least)`.
Expr SoftmaxMatcher::takeGuard(Expr divisor, double &added, double &least) {
  Expr total = graph.open(divisor);
  if (isSum(total))
    return total;
  if (std::optional<Clamp> clamp = matchClamp(graph, total);
      clamp && clamp->isLower) {
    least = clamp->bound;
    return graph.open(clamp->value);
  }
  if (total->kind == Kind::Add)
    for (unsigned i : {0, 1})
      if (std::optional<double> number =
              graph.constantValue(total->operands[i])) {
        added = *number;
        return graph.open(total->operands[1 - i]);
      }
  return total;
}

/// True if `exponent` is x - max(x) over the keys: the largest power is 1, and
/// so the sum is at least 1.
bool SoftmaxMatcher::isShiftedByMaximum(Expr exponent, AtomId key) {
  Expr difference = graph.open(exponent);
  if (difference->kind != Kind::Sub)
    return false;
  Expr maximum = graph.open(difference->operands[1]);
  if (maximum->kind != Kind::Reduce || maximum->combiner() != Combiner::Max ||
      maximum->bound.size() != 1 || graph.mentions(maximum, key))
    return false;
  Expr x = graph.substitute(maximum->operands[0],
                            {{maximum->bound[0], IndexPoly::atom(key)}});
  return graph.equal(graph.peelCasts(x),
                     graph.peelCasts(difference->operands[0]));
}

/// The condition under which `factor` is 1, if it is 0 elsewhere; else null.
Expr SoftmaxMatcher::truthOf(Expr factor) {
  Expr opened = graph.open(factor);
  if (opened->kind == Kind::Select) {
    std::optional<double> a = graph.constantValue(opened->operands[1]),
                          b = graph.constantValue(opened->operands[2]);
    if (a && b && *a == 1 && *b == 0)
      return opened->operands[0];
    return a && b && *a == 0 && *b == 1 ? graph.notOf(opened->operands[0])
                                        : nullptr;
  }
  if (opened->kind == Kind::FromInt && opened->operands[0]->type &&
      opened->operands[0]->type.isInteger(1))
    return opened->operands[0];
  return nullptr;
}

/// The power in `weight`, which may be multiplied by 0 at some keys.
Expr SoftmaxMatcher::takeMask(Expr weight, Expr &visible) {
  Expr opened = graph.open(weight);
  for (unsigned i : {0, 1}) {
    Expr power = nullptr;
    if (opened->kind == Kind::Mul) {
      visible = truthOf(opened->operands[1 - i]);
      power = opened->operands[i];
    } else if (opened->kind == Kind::Select) {
      std::optional<double> other =
          graph.constantValue(opened->operands[2 - i]);
      if (!other || *other != 0)
        continue;
      visible = i == 0 ? opened->operands[0] : graph.notOf(opened->operands[0]);
      power = opened->operands[1 + i];
    }
    if (!power || !visible)
      continue;
    power = graph.open(power);
    if (power->kind == Kind::Exp || power->kind == Kind::Exp2)
      return power;
  }
  visible = nullptr;
  return opened;
}

/// Powers that are set to zero where their score is -inf are zero already.
Expr SoftmaxMatcher::withoutNeedlessZeros(Expr weight) {
  Expr opened = graph.open(weight);
  for (unsigned i : {1, 2}) {
    if (opened->kind != Kind::Select ||
        graph.constantValue(opened->operands[3 - i]) != 0.0)
      continue;
    Expr power = graph.open(opened->operands[i]),
         condition = opened->operands[0];
    if ((power->kind == Kind::Exp || power->kind == Kind::Exp2) &&
        areHiddenUnless(graph, power->operands[0],
                        i == 1 ? condition : graph.notOf(condition)))
      return opened->operands[i];
  }
  return weight;
}

bool SoftmaxMatcher::matchQuotient(Expr numerator, Expr divisor) {
  double added = 0, least = 0;
  Expr total = takeGuard(divisor, added, least);
  if (!isSum(total))
    return false;
  for (unsigned axis = 0; axis < result.loops.size(); ++axis) {
    std::optional<AtomId> key = keyOf(axis, total, numerator);
    if (!key)
      continue;
    Expr summed = graph.substitute(total->operands[0],
                                   {{total->bound[0], result.loops[axis]}});
    summed = withoutNeedlessZeros(summed);
    // A power is its own magnitude.
    if (Expr opened = graph.open(summed);
        opened->kind == Kind::Opaque && isa<math::AbsFOp>(opened->proto))
      summed = opened->operands[0];
    if (!graph.equal(graph.peelCasts(summed), graph.peelCasts(numerator)))
      continue;
    Expr visible = nullptr, power = takeMask(numerator, visible);
    if (power->kind != Kind::Exp && power->kind != Kind::Exp2)
      return false;
    Expr exponent = power->operands[0];
    take(axis, exponent, *key, power->kind == Kind::Exp2);
    result.losesFarRows =
        withoutKeyFreeTerms(exponent, *key) == exponent &&
        readsFarNumber(graph, exponent,
                       {/*infinite=*/false, /*insideReductions=*/false});
    if (visible)
      result.scores =
          graph.make(Kind::Select, result.scores->type,
                     {visible, result.scores,
                      graph.constant(-INFINITY, result.scores->type)});
    // A sum of at least 1 is its own maximum with 1, and does not change when
    // less than half of its last bit is added.
    bool atLeastOne = !visible && isShiftedByMaximum(exponent, *key);
    double halfBit = std::ldexp(
        0.5, 1 - static_cast<int>(
                     cast<FloatType>(total->type).getFPMantissaWidth()));
    bool addsNothing =
        added == 0 || (atLeastOne && added > 0 && added < halfBit);
    bool limitsNothing = least <= 0 || (atLeastOne && least <= 1);
    if (!addsNothing)
      result.flaw = "a softmax adds a number to its sum that may count";
    if (!limitsNothing)
      result.flaw = "a softmax keeps its sum above a number that may count";
    return true;
  }
  return false;
}

void SoftmaxMatcher::flatten(Expr expr, bool positive,
                             SmallVector<Signed> &terms) {
  Expr opened = graph.open(expr);
  if (opened->kind == Kind::Add || opened->kind == Kind::Sub) {
    flatten(opened->operands[0], positive, terms);
    flatten(opened->operands[1], positive != (opened->kind == Kind::Sub),
            terms);
  } else if (opened->kind == Kind::Neg) {
    flatten(opened->operands[0], !positive, terms);
  } else {
    terms.push_back({opened->kind == Kind::Log ? opened : expr, positive});
  }
}

/// The part of the sum `expr` that depends on the key; the other terms go to
/// `free`.
Expr SoftmaxMatcher::split(Expr expr, AtomId key, bool positive,
                           SmallVector<Signed> &free) {
  expr = graph.stripCasts(expr);
  if (expr->kind == Kind::Load) {
    Expr opened = graph.expand(expr);
    opened = opened ? graph.stripCasts(opened) : nullptr;
    if (!opened || (opened->kind != Kind::Add && opened->kind != Kind::Sub &&
                    opened->kind != Kind::Load))
      return expr;
    unsigned before = free.size();
    Expr rest = split(opened, key, positive, free);
    return free.size() == before && opened->kind != Kind::Load ? expr : rest;
  }
  if (expr->kind != Kind::Add && expr->kind != Kind::Sub)
    return expr;
  bool second = positive != (expr->kind == Kind::Sub);
  if (!graph.mentions(expr->operands[1], key)) {
    flatten(expr->operands[1], second, free);
    return split(expr->operands[0], key, positive, free);
  }
  if (expr->kind == Kind::Add && !graph.mentions(expr->operands[0], key)) {
    flatten(expr->operands[0], positive, free);
    return split(expr->operands[1], key, positive, free);
  }
  return expr;
}

/// True if `a` and `b` are the same terms.
bool SoftmaxMatcher::cancel(SmallVector<Signed> &a, ArrayRef<Signed> b) {
  for (const Signed &term : b) {
    auto *same = llvm::find_if(a, [&](const Signed &other) {
      return other.second == term.second &&
             graph.equal(other.first, term.first);
    });
    if (same == a.end())
      return false;
    a.erase(same);
  }
  return a.empty();
}

bool SoftmaxMatcher::matchLogSum(Expr exponent, bool base2) {
  // exp2 would need a logarithm of base 2.
  if (base2)
    return false;
  for (unsigned axis = 0; axis < result.loops.size(); ++axis) {
    AtomId key = *result.loops[axis].asAtom();
    if (!graph.mentions(exponent, key))
      continue;
    SmallVector<Signed> free;
    Expr rest = split(exponent, key, /*positive=*/true, free);
    for (auto [k, term] : llvm::enumerate(free)) {
      if (term.first->kind != Kind::Log || term.second)
        continue;
      Expr total = graph.open(term.first->operands[0]);
      // A sum of powers is its own magnitude.
      if (total->kind == Kind::Opaque && isa<math::AbsFOp>(total->proto))
        total = graph.open(total->operands[0]);
      if (!isSum(total) || !keyOf(axis, total, exponent))
        continue;
      Expr power = graph.open(graph.substitute(
          total->operands[0], {{total->bound[0], result.loops[axis]}}));
      if (power->kind != Kind::Exp)
        continue;
      // x + a - log(sum(exp(x + b))): a softmax if a and b are one.
      SmallVector<Signed> inside, outside(free);
      outside.erase(outside.begin() + k);
      Expr summed = split(power->operands[0], key, /*positive=*/true, inside);
      if (!graph.equal(graph.peelCasts(summed), graph.peelCasts(rest)) ||
          !cancel(outside, inside))
        continue;
      take(axis, exponent, key, base2);
      return true;
    }
  }
  return false;
}

bool SoftmaxMatcher::match(Expr element) {
  switch (element->kind) {
  case Kind::Div:
    return matchQuotient(element->operands[0], element->operands[1]);
  case Kind::Mul:
    for (unsigned i : {0, 1}) {
      Expr reciprocal = graph.open(element->operands[i]);
      if (reciprocal->kind == Kind::Div &&
          reciprocal->operands[0]->isConst(1) &&
          matchQuotient(element->operands[1 - i], reciprocal->operands[1]))
        return true;
    }
    return false;
  case Kind::Exp:
  case Kind::Exp2:
    return matchLogSum(element->operands[0], element->kind == Kind::Exp2);
  default:
    return false;
  }
}

bool areHiddenUnless(ExprGraph &graph, Expr scores, Expr visible) {
  Expr opened = graph.open(scores);
  if (opened->kind == Kind::Sub)
    opened = graph.open(opened->operands[0]);
  for (unsigned i : {1, 2}) {
    if (opened->kind != Kind::Select ||
        graph.constantValue(opened->operands[3 - i]) != -INFINITY)
      continue;
    Expr condition = opened->operands[0];
    if (graph.equal(i == 1 ? condition : graph.notOf(graph.open(condition)),
                    visible) ||
        areHiddenUnless(graph, opened->operands[i], visible))
      return true;
  }
  return false;
}

Expr withoutZeroedKeys(ExprGraph &graph, Expr scores, Expr visible) {
  Expr select = graph.open(graph.stripCasts(scores));
  for (unsigned i : {1, 2}) {
    if (select->kind != Kind::Select)
      return nullptr;
    Expr condition = select->operands[0], score = select->operands[i];
    std::optional<double> fill = graph.constantValue(select->operands[3 - i]);
    if (!fill || *fill > -kFarNumber ||
        !graph.equal(i == 1 ? condition : graph.notOf(condition), visible) ||
        readsFarNumber(graph, score,
                       {/*infinite=*/false, /*insideReductions=*/false}))
      continue;
    Expr hidden =
        graph.make(Kind::Select, score->type,
                   {visible, score, graph.constant(-INFINITY, score->type)});
    return score->type == scores->type
               ? hidden
               : graph.make(Kind::Cast, scores->type, {hidden});
  }
  return nullptr;
}

std::optional<Softmax> matchSoftmax(ExprGraph &graph, Expr element,
                                    ArrayRef<IndexPoly> loops) {
  Softmax result;
  result.loops.assign(loops.begin(), loops.end());
  if (!SoftmaxMatcher{graph, result}.match(graph.stripCasts(element)))
    return std::nullopt;
  return result;
}

std::optional<Softmax> matchSoftmax(ExprGraph &graph, Value value) {
  Operation *op = value.getDefiningOp();
  Softmax result;
  if (auto softmax = dyn_cast<linalg::SoftmaxOp>(op)) {
    result.loops = graph.freshLoops(value);
    result.keyAxis = softmax.getDimension();
    result.scores = graph.load(softmax.getInput(), result.loops);
    return result;
  }
  auto linalgOp = dyn_cast<linalg::LinalgOp>(op);
  if (!(linalgOp && isElementwise(linalgOp)) &&
      !op->hasTrait<OpTrait::Elementwise>())
    return std::nullopt;
  if (!isa<FloatType>(elementType(value)))
    return std::nullopt;
  result.loops = graph.freshLoops(value);
  Expr element = graph.load(value, result.loops);
  if (element->kind != Kind::Load || element->value != value)
    return std::nullopt; // only moves elements: not where the map is made
  element = graph.expand(element);
  return element ? matchSoftmax(graph, element, result.loops) : std::nullopt;
}

} // namespace mlir::diffattn::raise
