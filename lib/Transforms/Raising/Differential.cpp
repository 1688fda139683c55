//===- Differential.cpp - recognising attention ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Differential.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/IR/KernelLimits.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <cmath>

namespace mlir::diffattn::raise {

/// Loops over `root`. Axes that a later reshape splits are split at once, so
/// that batch and head have loops of their own.
static SmallVector<IndexPoly> positionOf(ExprGraph &graph, Value root) {
  for (Operation *user : root.getUsers()) {
    auto expand = dyn_cast<tensor::ExpandShapeOp>(user);
    if (!expand)
      continue;
    SmallVector<IndexPoly> position;
    for (auto &group : expand.getReassociationIndices()) {
      IndexPoly flat;
      for (int64_t k : group) {
        IndexPoly size = graph.sizeOf(expand.getResult(), k);
        flat = flat * size +
               (size == IndexPoly(1) ? IndexPoly(0) : graph.space.loop(size));
      }
      position.push_back(flat);
    }
    return position;
  }
  SmallVector<IndexPoly> position;
  for (int64_t k = 0; k < cast<ShapedType>(root.getType()).getRank(); ++k) {
    IndexPoly size = graph.sizeOf(root, k);
    position.push_back(size == IndexPoly(1) ? IndexPoly(0)
                                            : graph.space.loop(size));
  }
  return position;
}

void flattenProduct(Expr expr, SmallVectorImpl<Expr> &factors) {
  if (expr->kind == Kind::Mul) {
    flattenProduct(expr->operands[0], factors);
    flattenProduct(expr->operands[1], factors);
  } else {
    factors.push_back(expr);
  }
}

/// Moves the factors that `a` and `b` share to `common`.
static void takeCommon(ExprGraph &graph, SmallVectorImpl<Expr> &a,
                       SmallVectorImpl<Expr> &b,
                       SmallVectorImpl<Expr> &common) {
  for (auto *x = a.begin(); x != a.end();) {
    auto *y = llvm::find_if(b, [&](Expr e) { return graph.equal(*x, e); });
    if (y == b.end()) {
      ++x;
      continue;
    }
    common.push_back(*x);
    b.erase(y);
    x = a.erase(x);
  }
}

/// `expr` in the type that it was widened from.
static Expr withoutWidening(ExprGraph &graph, Expr expr) {
  while (true) {
    Expr cast = expr->kind == Kind::Load ? graph.expand(expr) : expr;
    if (!cast || cast->kind != Kind::Cast ||
        cast->operands[0]->type.getIntOrFloatBitWidth() >=
            cast->type.getIntOrFloatBitWidth())
      return expr;
    expr = cast->operands[0];
  }
}

/// The factors of `value`, also of products that are ops of their own.
static void openProduct(ExprGraph &graph, Expr value,
                        SmallVectorImpl<Expr> &factors) {
  SmallVector<Expr> parts;
  flattenProduct(value, parts);
  for (Expr part : parts) {
    Expr opened = graph.open(part);
    if (opened->kind == Kind::Mul)
      openProduct(graph, opened, factors);
    else
      factors.push_back(withoutWidening(graph, part));
  }
}

static void openFactors(ExprGraph &graph, Term &term) {
  SmallVector<Expr> factors;
  for (Expr factor : term.factors)
    openProduct(graph, factor, factors);
  term.factors.clear();
  for (Expr factor : factors)
    if (std::optional<double> number = graph.constantValue(factor))
      term.coefficient *= *number;
    else
      term.factors.push_back(factor);
}

/// One value for both maps, or the reason why there is none. Factors of the
/// values that are the same for all keys become factors of the term.
static Expr commonValue(ExprGraph &graph, Term &first, Term &second, AtomId key,
                        std::string &reason) {
  if (graph.equal(first.value, second.value))
    return first.value;
  SmallVector<Expr> a, b, common;
  openProduct(graph, first.value, a);
  openProduct(graph, second.value, b);
  takeCommon(graph, a, b, common);
  bool perKey = !common.empty(), free = perKey;
  for (auto [term, rest] : {std::pair(&first, &a), std::pair(&second, &b)})
    for (Expr factor : *rest) {
      factor = graph.withoutLoop(factor, key);
      bool depends = graph.mentions(factor, key);
      perKey &= depends;
      free &= !depends;
      if (std::optional<double> number = graph.constantValue(factor))
        term->coefficient *= *number;
      else
        term->factors.push_back(factor);
    }
  if (!free) {
    reason = perKey ? "lambda depends on the key"
                    : "the two maps are multiplied by different values";
    return nullptr;
  }
  // Factors that were widened before they were multiplied are again.
  if (common.size() > 1)
    for (Expr &factor : common)
      factor = graph.make(Kind::Cast, first.value->type, {factor});
  Expr value = common[0];
  for (Expr factor : ArrayRef(common).drop_front())
    value = multiply(graph, value, factor);
  return value;
}

/// Adds up terms that differ by their numbers alone.
static void mergeTerms(ExprGraph &graph, Terms &terms) {
  auto alike = [&](const Term &x, const Term &y) {
    SmallVector<Expr> a(x.factors.begin(), x.factors.end()),
        b(y.factors.begin(), y.factors.end()), common;
    takeCommon(graph, a, b, common);
    return a.empty() && b.empty() && x.map && y.map && x.value && y.value &&
           graph.equal(x.map, y.map) && graph.equal(x.value, y.value) &&
           haveSameSink(graph, x, y);
  };
  for (unsigned i = 0; i < terms.size(); ++i)
    for (unsigned k = i + 1; k < terms.size();)
      if (alike(terms[i], terms[k])) {
        terms[i].coefficient += terms[k].coefficient;
        terms[i].sources.append(terms[k].sources);
        keepCommon(terms[i].roundedTo, terms[k].roundedTo);
        terms.erase(terms.begin() + k);
      } else {
        ++k;
      }
}

static bool sameNumber(double a, double b) {
  return std::fabs(a - b) <= 1e-6 * std::max(std::fabs(a), std::fabs(b));
}

/// Puts factors known at run time, and what is left of the scale, on a query.
static void scaleQuery(ExprGraph &graph, Scores &scores, double number) {
  Expr &query = scores.query;
  for (Expr factor : scores.factors) {
    // A product that the graph makes in a wider type is not rounded.
    bool widens = isHalfFloat(query->type) && !isHalfFloat(factor->type);
    Type type = widens ? factor->type : query->type;
    query = graph.make(Kind::Mul, type,
                       {graph.make(Kind::Cast, type, {query}),
                        graph.make(Kind::Cast, type, {factor})});
  }
  scores.factors.clear();
  if (number != 1)
    query = graph.make(Kind::Mul, query->type,
                       {query, graph.constant(number, query->type)});
}

void forEachExpr(Differential &match, llvm::function_ref<void(Expr &)> fn) {
  for (Scores *scores : match.maps()) {
    fn(scores->query);
    fn(scores->key);
    for (Expr &factor : scores->factors)
      fn(factor);
    for (MaskPart &part : scores->mask)
      fn(part.visible ? part.visible : part.bias);
  }
  for (Expr &expr : match.lambdaFactors)
    fn(expr);
  for (Expr &expr : match.commonFactors)
    fn(expr);
  if (match.sink)
    fn(match.sink);
  fn(match.value);
}

/// One positive scale for all maps; what differs goes to the queries.
static bool setScale(ExprGraph &graph, Differential &match,
                     const RecognizerOptions &options, std::string &reason) {
  // Two infinities would pass for one number.
  if (!llvm::all_of(match.maps(), [](const Scores *scores) {
        return std::isfinite(scores->scale);
      })) {
    reason = "the scores are scaled by a number that is not finite";
    return false;
  }
  double ratio = match.second ? match.second->scale / match.first.scale : 1;
  if (match.second && !sameNumber(match.first.scale, match.second->scale) &&
      !options.rescaleQueries) {
    reason = "the scores of the two maps are scaled differently (the option "
             "rescale-queries raises them by scaling the second query)";
    return false;
  }
  // The op's scale is positive; a sign goes to the queries, and so does a scale
  // that is nothing, or so small that the ratio to it leaves f32.
  constexpr double kMinScale = 0x1p-64;
  const bool isTiny = std::fabs(match.first.scale) < kMinScale;
  const double scale = isTiny ? 1 : std::fabs(match.first.scale);
  const double factor = match.first.scale / scale;
  scaleQuery(graph, match.first, factor);
  if (match.second) {
    scaleQuery(graph, *match.second,
               sameNumber(ratio, 1) ? factor : match.second->scale / scale);
    match.second->scale = scale;
  }
  match.first.scale = scale;
  if (!(scale <= kMaxScale)) {
    reason = "the scores are scaled by more than 2^64";
    return false;
  }
  auto isPositive = [](float cap) { return cap > 0 && std::isfinite(cap); };
  if (match.first.softcap &&
      !isPositive(static_cast<float>(*match.first.softcap))) {
    reason = "the cap of the scores is no positive number in f32";
    return false;
  }
  return true;
}

/// The factors of the difference of `first` and `second`, which may swap.
static bool findFactors(ExprGraph &graph, Differential &match, Term *&a,
                        Term *&b, std::string &reason) {
  // Which map is first: the one that no run-time factor scales.
  takeCommon(graph, a->factors, b->factors, match.commonFactors);
  // lambda and lambda * 0.5 have lambda in common.
  if (!a->factors.empty() && !b->factors.empty()) {
    openFactors(graph, *a);
    openFactors(graph, *b);
    takeCommon(graph, a->factors, b->factors, match.commonFactors);
  }
  if (!a->factors.empty() ||
      (b->factors.empty() && a->coefficient < 0 && b->coefficient > 0))
    std::swap(a, b);
  if (!a->factors.empty()) {
    reason = "both maps are scaled by values known only at run time";
    return false;
  }
  if (a->coefficient == 0)
    std::swap(a, b);
  if (a->coefficient == 0 || !a->factors.empty())
    return false;
  match.outScale = a->coefficient;
  match.lambda = -b->coefficient / a->coefficient;
  match.lambdaFactors.assign(b->factors.begin(), b->factors.end());
  return true;
}

/// The scores of one map. None, with a `reason`, where they are no product.
static std::optional<Scores> readScores(ExprGraph &graph, AtomId key,
                                        const Term &term, std::string &reason) {
  std::optional<Scores> read =
      ScoreReader(graph, key, reason)
          .read(graph.substitute(term.map->operands[0],
                                 {{term.map->bound[0], IndexPoly::atom(key)}}));
  if (!read && reason.empty())
    reason = kNoProduct.str();
  return read;
}

/// True if a product of queries and keys is subtracted from the scores.
static bool subtractsScores(ExprGraph &graph, AtomId key,
                            const Scores &scores) {
  return llvm::any_of(scores.mask, [&](const MaskPart &part) {
    std::string unused;
    return part.bias && part.bias->kind == Kind::Neg &&
           ScoreReader(graph, key, unused).read(part.bias->operands[0]);
  });
}

std::optional<Differential> recognize(ExprGraph &graph, Maps &maps, Value root,
                                      const RecognizerOptions &options,
                                      std::string &reason) {
  maps.start();
  Differential match;
  match.root = root;
  match.position = positionOf(graph, root);
  Expr element = graph.load(root, match.position);
  if (element->kind != Kind::Load || element->value != root)
    return std::nullopt; // only moves elements of another result
  std::optional<Terms> terms = maps.linearize(element);
  if (!terms) {
    reason = maps.reason;
    return std::nullopt;
  }
  const unsigned count = options.single ? 1 : 2;
  if (terms->size() < count || !llvm::all_of(*terms, [](const Term &term) {
        return term.map && term.value;
      }))
    return std::nullopt;
  if (terms->size() > count)
    mergeTerms(graph, *terms);
  if (terms->size() < count || (options.single && terms->size() > 1))
    return std::nullopt;
  if (terms->size() > 2) {
    reason = "the result combines more than two maps";
    return std::nullopt;
  }
  if (!maps.flaw.empty()) {
    reason = maps.flaw;
    return std::nullopt;
  }
  if (maps.droppedNanGuard && maps.losesFarRows) {
    reason = "a guard makes rows zero in which a softmax without its maximum "
             "has finite scores alone";
    return std::nullopt;
  }
  match.droppedNanGuard = maps.droppedNanGuard;
  for (const Term &term : *terms)
    match.replaced.append(term.sources);
  match.roundedTo = terms->front().roundedTo;
  keepCommon(match.roundedTo, terms->back().roundedTo);

  AtomId key = *maps.sharedKey;
  match.roles.key = key;
  Term *a = &terms->front(), *b = &terms->back();
  if (options.single) {
    match.value = a->value;
    match.outScale = a->coefficient;
    match.commonFactors.assign(a->factors.begin(), a->factors.end());
    match.sink = a->sink;
    if (match.outScale == 0)
      return std::nullopt;
  } else if (a->sink || b->sink) {
    reason = kMoreKeys.str();
    return std::nullopt;
  } else {
    match.value = commonValue(graph, *a, *b, key, reason);
    if (!match.value || !findFactors(graph, match, a, b, reason))
      return std::nullopt;
  }

  std::optional<Scores> scores = readScores(graph, key, *a, reason);
  if (!scores)
    return std::nullopt;
  match.first = *scores;
  match.roles.width = match.first.width;
  if (options.single) {
    if (subtractsScores(graph, key, match.first)) {
      reason = "one softmax is over a difference of scores";
      return std::nullopt;
    }
  } else {
    match.second = readScores(graph, key, *b, reason);
    if (!match.second)
      return std::nullopt;
    // One loop over the width of a head.
    if (graph.space.extent(match.first.width) !=
        graph.space.extent(match.second->width)) {
      reason = "the two maps have heads of different width";
      return std::nullopt;
    }
    IndexSpace::Substitution width{
        {match.second->width, IndexPoly::atom(match.first.width)}};
    match.second->query = graph.substitute(match.second->query, width);
    match.second->key = graph.substitute(match.second->key, width);
  }
  // No value holds the bare product where the sum starts at a number other
  // than 0, which is the same for all keys and was dropped.
  for (const Scores *map : match.maps())
    if (map->product)
      match.replaced.push_back(map->product);

  if (!solveRoles(graph, match, reason))
    return std::nullopt;

  // As loops over a map in memory one map is slower than the graph's products.
  for (AtomId width : {match.roles.width, match.roles.valueWidth})
    if (int64_t size = *graph.space.extent(width).constant();
        options.single && size > kMaxHeadDim) {
      reason = "a head of " + std::to_string(size) + " is above " +
               std::to_string(kMaxHeadDim) + ", the widest of a kernel";
      return std::nullopt;
    }

  MaskClassifier classifier(graph, match.roles.head, match.roles.query, key,
                            reason);
  std::optional<Mask> mask = classifier.classify(match.first.mask);
  if (!mask)
    return std::nullopt;
  match.mask = *mask;
  if (match.second) {
    std::optional<Mask> second = classifier.classify(match.second->mask);
    if (!second)
      return std::nullopt;
    if (!mask->isSame(graph, *second)) {
      reason = "the two maps have different masks";
      return std::nullopt;
    }
    if (match.first.softcap != match.second->softcap) {
      reason = "the scores of the two maps are capped differently";
      return std::nullopt;
    }
  }
  return setScale(graph, match, options, reason) ? std::optional(match)
                                                 : std::nullopt;
}

} // namespace mlir::diffattn::raise
