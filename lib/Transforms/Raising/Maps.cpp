//===- Maps.cpp - softmax maps and what is linear in them -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Maps.h"

#include "DiffAttn/Analysis/TensorExpr/Conditions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <cmath>
#include <utility>

namespace mlir::diffattn::raise {

Maps::Maps(ExprGraph &graph, Operation *function) : graph(graph) {
  // In program order, so that operands are known before their users.
  function->walk<WalkOrder::PreOrder>([&](Operation *op) {
    if (isa<linalg::LinalgOp>(op->getParentOp()))
      return;
    for (Value result : op->getResults())
      if (isa<RankedTensorType>(result.getType()))
        if (Role role = computeRole(result); role != Role::None)
          roles[result] = role;
  });
}

Maps::Role Maps::computeRole(Value value) {
  Operation *op = value.getDefiningOp();
  if (auto softmax = matchSoftmax(graph, value)) {
    softmaxes[value] = *softmax;
    return Role::Map;
  }
  SmallVector<Value> sources;
  auto linalgOp = dyn_cast<linalg::LinalgOp>(op);
  std::optional<Body> body = readBody(value);
  if (body)
    bodies[value] = *body;
  if (linalgOp && !isElementwise(linalgOp)) {
    Role role = roleOfReduction(linalgOp, value);
    return body ? body->role : role;
  }
  if (body)
    return Role::Map;
  if (linalgOp) {
    sources = readBy(linalgOp);
  } else if (isa<tensor::CastOp, tensor::CollapseShapeOp, tensor::ExpandShapeOp,
                 tensor::ExtractSliceOp, tensor::InsertSliceOp,
                 tensor::ConcatOp, tensor::ReshapeOp, tensor::PadOp>(op) ||
             op->hasTrait<OpTrait::Elementwise>()) {
    llvm::append_range(sources, op->getOperands());
  }
  Role role = Role::None;
  for (Value source : sources)
    role = std::max(role, roleOf(source));
  return role;
}

/// Maps of two heads or of signal and noise are a few; keys may be.
static constexpr int64_t kMaxFewTerms = 4;

bool Maps::runsAlongKeys(Value product) {
  Expr load = graph.load(product, graph.freshLoops(product));
  Expr sum = load->kind == Kind::Load ? open(load) : nullptr;
  return sum && sum->kind == Kind::Reduce && sum->bound.size() == 1 &&
         runsAlongKeys(sum->operands[0], sum->bound[0]);
}

/// True if `loop` runs along the keys of a map that `expr` reads.
bool Maps::runsAlongKeys(Expr expr, AtomId loop) {
  if (expr->kind == Kind::Load) {
    auto it = softmaxes.find(expr->value);
    if (it != softmaxes.end())
      return graph.space.mentions(expr->indices[it->second.keyAxis], loop);
    Expr opened = roleOf(expr->value) != Role::None ? open(expr) : nullptr;
    return opened && runsAlongKeys(opened, loop);
  }
  if (expr->kind == Kind::Softmax)
    return graph.space.mentions(expr->index, loop);
  return llvm::any_of(expr->operands, [&](Expr operand) {
    return runsAlongKeys(operand, loop);
  });
}

bool Maps::combinesFewMaps(linalg::LinalgOp op) const {
  for (auto [iterator, size] :
       llvm::zip(op.getIteratorTypesArray(), op.getStaticLoopRanges()))
    if (iterator == utils::IteratorType::reduction &&
        !ShapedType::isDynamic(size) && size <= kMaxFewTerms)
      return true;
  return false;
}

/// Only the product with values leads on from maps to attention, and from
/// attention to itself a sum of a few that were stacked.
Maps::Role Maps::roleOfReduction(linalg::LinalgOp op, Value result) {
  Role strongest = Role::None;
  SmallVector<Value> inputs = readBy(op);
  for (Value input : inputs)
    strongest = std::max(strongest, roleOf(input));
  if (strongest == Role::Attention)
    return combinesFewMaps(op) && numberOfSums(op) == 1 ? Role::Attention
                                                        : Role::None;
  if (strongest != Role::Map)
    return Role::None;
  // A window over maps: no map any more, but worth a remark.
  if (numberOfSums(op) > 1)
    return inputs.size() >= 2 ? Role::Map : Role::None;
  if (combinesFewMaps(op) && !runsAlongKeys(result))
    return Role::Map;
  return inputs.size() >= 2 ? Role::Attention : Role::None;
}

bool Maps::dependsOnMap(Expr expr) const {
  if (expr->kind == Kind::Softmax ||
      (expr->kind == Kind::Load && roleOf(expr->value) != Role::None))
    return true;
  return llvm::any_of(expr->operands,
                      [&](Expr operand) { return dependsOnMap(operand); });
}

//===----------------------------------------------------------------------===//
// Sums of terms
//===----------------------------------------------------------------------===//

static std::optional<Terms> fail() { return std::nullopt; }

Expr multiply(ExprGraph &graph, Expr a, Expr b) {
  if (a->type == b->type)
    return graph.make(Kind::Mul, a->type, {a, b});
  Type wide = Float32Type::get(a->type.getContext());
  return graph.make(
      Kind::Mul, wide,
      {graph.make(Kind::Cast, wide, {a}), graph.make(Kind::Cast, wide, {b})});
}

/// A test of whether a number of truth values is 0: their sum, as that over the
/// truth values, and whether it holds for 0 or for all others.
struct CountTest {
  Expr anyOf;
  bool holdsForNone;
};

static std::optional<CountTest> asCountTest(ExprGraph &graph, Expr compare) {
  if (compare->kind != Kind::CmpI && compare->kind != Kind::CmpF)
    return std::nullopt;
  for (unsigned side : {0, 1}) {
    Expr sum = graph.open(compare->operands[side]);
    if (sum->kind != Kind::Reduce || sum->combiner() != Combiner::Sum)
      continue;
    // Narrow integers count only so far.
    Type type = sum->type;
    if (type.isInteger() && type.getIntOrFloatBitWidth() < 32)
      continue;
    auto number = [&](int64_t n) {
      return compare->kind == Kind::CmpI
                 ? graph.index(IndexPoly(n))
                 : graph.constant(static_cast<double>(n), type);
    };
    Expr one = graph.open(sum->operands[0]);
    if (one->kind != Kind::Select ||
        !graph.equal(one->operands[1], number(1)) ||
        !graph.equal(one->operands[2], number(0)))
      continue;
    auto holdsFor = [&](int64_t n) {
      SmallVector<Expr, 3> operands(compare->operands);
      operands[side] = number(n);
      return graph.constantValue(graph.make(compare->kind, compare->type,
                                            operands, compare->predicate));
    };
    // A comparison that is the same for 1, 2 and many is so in between.
    std::optional<double> none = holdsFor(0), some = holdsFor(1);
    if (!none || !some || *none == *some || holdsFor(2) != some ||
        holdsFor(int64_t(1) << 30) != some)
      return std::nullopt;
    return CountTest{graph.withBody(sum, one->operands[0]), *none != 0};
  }
  return std::nullopt;
}

/// True if `condition` holds where no key of the map's row has a finite score:
/// the guard of a safe softmax. The op gives zeros for such a row by itself.
bool Maps::isEmptyRowGuard(Expr condition, Expr map) {
  Expr all = graph.open(condition);
  Type boolean = IntegerType::get(
      all->type ? all->type.getContext() : map->type.getContext(), 1);
  bool negated = false;
  if (all->kind == Kind::Xor) {
    for (unsigned i : {0, 1})
      if (all->operands[i]->kind == Kind::Const &&
          all->operands[i]->number != 0) {
        negated = true;
        all = graph.open(all->operands[1 - i]);
        break;
      }
  }
  if (std::optional<CountTest> count = asCountTest(graph, all)) {
    if (count->holdsForNone == negated)
      return false;
    all = count->anyOf;
    negated = true;
  } else if (all->kind != Kind::Reduce || all->type != boolean ||
             all->combiner() != (negated ? Combiner::Or : Combiner::And)) {
    return false;
  }
  if (all->bound.size() != 1)
    return false;
  AtomId key = map->bound[0];
  if (graph.space.extent(all->bound[0]) != graph.space.extent(key))
    return false;
  Expr test = graph.open(graph.substitute(
      all->operands[0], {{all->bound[0], IndexPoly::atom(key)}}));
  // By the mask that hides the keys, or by what it leaves of the scores.
  if (areHiddenUnless(graph, map->operands[0],
                      negated ? test : graph.notOf(test)))
    return true;
  if (negated) {
    if (test->kind != Kind::Xor || !(test->operands[1]->kind == Kind::Const))
      return false;
    test = graph.open(test->operands[0]);
  }
  if (test->kind != Kind::CmpF ||
      static_cast<arith::CmpFPredicate>(test->predicate) !=
          arith::CmpFPredicate::OEQ)
    return false;
  for (unsigned i : {0, 1})
    if (test->operands[i]->isConst(-INFINITY))
      return graph.equal(graph.peelCasts(test->operands[1 - i]),
                         graph.peelCasts(map->operands[0]));
  return false;
}

std::optional<Terms> Maps::linearizeSelect(Expr select) {
  Expr condition = select->operands[0];
  Expr a = select->operands[1], b = select->operands[2];
  if (std::optional<double> truth = graph.constantValue(condition))
    return linearize(*truth != 0 ? a : b);
  // Pieces of a concatenation: the same terms, with other values.
  if (condition->kind == Kind::CmpI) {
    std::optional<Terms> lhs = linearize(a), rhs = linearize(b);
    if (!lhs || !rhs || lhs->size() != rhs->size())
      return fail();
    for (auto [x, y] : llvm::zip(*lhs, *rhs)) {
      bool same = x.coefficient == y.coefficient && x.map && y.map && x.value &&
                  y.value && x.factors.size() == y.factors.size() &&
                  x.value->type == y.value->type && graph.equal(x.map, y.map) &&
                  haveSameSink(graph, x, y);
      if (!same)
        return fail();
      for (auto [f, g] : llvm::zip(x.factors, y.factors))
        if (!graph.equal(f, g))
          return fail();
      x.sources.append(y.sources);
      keepCommon(x.roundedTo, y.roundedTo);
      x.value = graph.choose(x.value->type, condition, x.value, y.value);
    }
    return lhs;
  }
  // Guards that put zeros into rows that see no key.
  auto isNumber = [](Expr e) { return e->kind == Kind::Const; };
  bool zeroFirst = isNumber(a);
  Expr rest = zeroFirst ? b : a, number = zeroFirst ? a : b;
  if (!isNumber(number))
    return fail();
  std::optional<Terms> terms = linearize(rest);
  if (!terms || terms->empty())
    return fail();
  if (dependsOnMap(condition)) {
    // nan_to_num on a map, which is a number between 0 and 1 in every row
    // that sees a key.
    bool testsNan = false;
    std::optional<bool> truth = truthIfFinite(
        graph, condition, [&](Expr e) { return dependsOnMap(e); }, testsNan);
    if (!truth || *truth == zeroFirst || (testsNan && !number->isConst(0)))
      return fail();
    droppedNanGuard = true;
    return terms;
  }
  if (!number->isConst(0) || terms->size() != 1 || !terms->front().map ||
      terms->front().value)
    return fail();
  Expr guard = zeroFirst ? condition : graph.notOf(condition);
  Expr map = terms->front().map;
  Expr scores =
      graph.substitute(map->operands[0], {{map->bound[0], map->index}});
  Expr visible = graph.notOf(guard);
  if (areHiddenUnless(graph, scores, visible))
    return terms;
  if (std::optional<AtomId> at = map->index.asAtom())
    if (Expr hidden = withoutZeroedKeys(graph, scores, visible)) {
      AtomId key = map->bound[0];
      terms->front().map =
          graph.softmax(graph.substitute(hidden, {{*at, IndexPoly::atom(key)}}),
                        key, map->index);
      return terms;
    }
  if (!isEmptyRowGuard(guard, map)) {
    reason = "a map is set to zero under a condition that is not an empty row";
    return fail();
  }
  return terms;
}

llvm::SetVector<Value> Maps::sourceMaps(Value root, bool &combined) const {
  llvm::SetVector<Value> seen, sources;
  combined = false;
  seen.insert(root);
  for (unsigned next = 0; next < seen.size(); ++next) {
    Value value = seen[next];
    if (softmaxes.contains(value)) {
      sources.insert(value);
      continue;
    }
    if (unsigned inside = softmaxesInside(value)) {
      sources.insert(value);
      combined |= inside > 1;
    }
    llvm::SmallPtrSet<Value, 4> maps;
    value.getDefiningOp()->walk([&](Operation *op) {
      for (Value operand : op->getOperands()) {
        if (roleOf(operand) != Role::None)
          seen.insert(operand);
        if (roleOf(operand) == Role::Map)
          maps.insert(operand);
      }
    });
    combined |= maps.size() > 1;
  }
  return sources;
}

bool haveSameSink(ExprGraph &graph, const Term &a, const Term &b) {
  return a.sink && b.sink ? graph.equal(a.sink, b.sink) : a.sink == b.sink;
}

/// Makes a map over one key more than `loop` runs along, the last one, one over
/// these with a sink, which is the score of that key.
bool Maps::takeSink(Term &term, AtomId loop) {
  const IndexPoly keys = graph.space.extent(loop);
  const AtomId bound = term.map->bound[0];
  if (graph.space.extent(bound) != keys + IndexPoly(1))
    return false;
  Expr scores = term.map->operands[0];
  IndexPoly key = graph.space.loop(keys);
  term.sink = graph.substitute(scores, {{bound, keys}});
  term.map = graph.softmax(graph.substitute(scores, {{bound, key}}),
                           *key.asAtom(), term.map->index);
  return true;
}

std::optional<Terms> Maps::linearizeProduct(Expr reduce) {
  if (reduce->combiner() != Combiner::Sum || reduce->bound.size() != 1)
    return fail();
  AtomId loop = reduce->bound[0];
  std::optional<AtomId> outer = std::exchange(summed, loop);
  std::optional<Terms> terms = linearize(reduce->operands[0]);
  summed = outer;
  if (!terms)
    return fail();
  IndexPoly key = sharedKey ? IndexPoly::atom(*sharedKey)
                            : graph.space.loop(graph.space.extent(loop));
  if (graph.space.extent(loop) != graph.space.extent(*key.asAtom()))
    return fail();
  for (Term &term : *terms) {
    if (!term.map || term.value)
      return fail();
    // The sum is over the keys of one row: where it moves along another axis
    // too, each weight was divided by a sum of its own.
    if (term.map->index != IndexPoly::atom(loop) ||
        graph.mentions(term.map->operands[0], loop)) {
      if (used.size() > 1)
        reason = "a softmax does not run along the axis that is summed";
      return fail();
    }
    if (graph.space.extent(term.map->bound[0]) != graph.space.extent(loop) &&
        !takeSink(term, loop)) {
      reason = kMoreKeys;
      return fail();
    }
    SmallVector<Expr, 2> outside;
    for (Expr factor : term.factors) {
      factor = graph.withoutLoop(factor, loop);
      if (!graph.mentions(factor, loop)) {
        outside.push_back(factor);
        continue;
      }
      factor = graph.substitute(factor, {{loop, key}});
      term.value = term.value ? multiply(graph, term.value, factor) : factor;
    }
    if (!term.value)
      return fail();
    term.factors = outside;
    term.map = graph.softmax(term.map->operands[0], term.map->bound[0], key);
  }
  sharedKey = key.asAtom();
  return terms;
}

/// A sum over maps that were stacked, term by term.
std::optional<Terms> Maps::linearizeFewFold(Expr reduce) {
  if (reduce->combiner() != Combiner::Sum || reduce->bound.size() != 1)
    return fail();
  std::optional<int64_t> count =
      graph.space.extent(reduce->bound[0]).constant();
  if (!count || *count > kMaxFewTerms)
    return fail();
  Terms sum;
  for (int64_t k = 0; k < *count; ++k) {
    std::optional<Terms> terms = linearize(
        graph.substitute(reduce->operands[0], {{reduce->bound[0], k}}));
    if (!terms)
      return fail();
    sum.append(*terms);
  }
  return sum;
}

std::optional<Terms> Maps::linearize(Expr expr) {
  std::optional<Terms> terms = linearizeNode(expr);
  if (terms && isHalfFloat(expr->type))
    for (Term &term : *terms)
      if (term.map)
        term.roundedTo.insert(expr->type);
  return terms;
}

/// True for what no body can compute.
static bool holdsSoftmax(Expr expr) {
  return expr->kind == Kind::Softmax ||
         llvm::any_of(expr->operands, holdsSoftmax);
}

std::optional<Terms> Maps::linearizeNode(Expr expr) {
  if (expr->kind == Kind::Const)
    return Terms{{expr->number, {}, nullptr, nullptr}};
  // A factor that is one for all keys of a product is no map of it, even where
  // another softmax made it.
  if (!dependsOnMap(expr) || (summed && !graph.mentions(expr, *summed))) {
    if (std::optional<double> number = graph.constantValue(expr))
      return Terms{{*number, {}, nullptr, nullptr}};
    if (holdsSoftmax(expr))
      return fail();
    return Terms{{1, {expr}, nullptr, nullptr}};
  }
  switch (expr->kind) {
  case Kind::Load: {
    auto it = softmaxes.find(expr->value);
    if (it == softmaxes.end()) {
      auto body = bodies.find(expr->value);
      if (body != bodies.end()) {
        if (!body->second.flaw.empty())
          flaw = body->second.flaw;
        losesFarRows |= body->second.losesFarRows;
      }
      Expr opened = open(expr);
      Value outer = std::exchange(source, expr->value);
      std::optional<Terms> terms = opened ? linearize(opened) : fail();
      source = outer;
      return terms;
    }
    // Outside of a product, a softmax is a factor.
    if (!summed)
      return Terms{{1, {expr}, nullptr, nullptr}};
    const Softmax &softmax = it->second;
    used.insert(expr->value);
    if (!softmax.flaw.empty())
      flaw = softmax.flaw;
    losesFarRows |= softmax.losesFarRows;
    IndexSpace::Substitution at;
    for (auto [axis, loop] : llvm::enumerate(softmax.loops))
      if (axis != softmax.keyAxis)
        at[*loop.asAtom()] = expr->indices[axis];
    Expr map = graph.softmax(graph.substitute(softmax.scores, at),
                             *softmax.loops[softmax.keyAxis].asAtom(),
                             expr->indices[softmax.keyAxis]);
    return Terms{{1, {}, map, nullptr, {expr->value}}};
  }
  case Kind::Softmax:
    if (!summed)
      return fail();
    used.insert(source);
    return Terms{{1, {}, expr, nullptr, {source}}};
  case Kind::Cast:
    return linearize(expr->operands[0]);
  case Kind::Neg:
  case Kind::Add:
  case Kind::Sub: {
    std::optional<Terms> sum = linearize(expr->operands[0]);
    if (!sum)
      return fail();
    if (expr->kind == Kind::Neg) {
      for (Term &term : *sum)
        term.coefficient = -term.coefficient;
      return sum;
    }
    std::optional<Terms> second = linearize(expr->operands[1]);
    if (!second)
      return fail();
    for (Term &term : *second) {
      if (expr->kind == Kind::Sub)
        term.coefficient = -term.coefficient;
      sum->push_back(term);
    }
    return sum;
  }
  case Kind::Mul:
  case Kind::Div: {
    std::optional<Terms> lhs = linearize(expr->operands[0]);
    if (!lhs)
      return fail();
    if (expr->kind == Kind::Div) {
      Expr divisor = expr->operands[1];
      if (dependsOnMap(divisor))
        return fail();
      for (Term &term : *lhs)
        if (divisor->kind == Kind::Const)
          term.coefficient /= divisor->number;
        else
          term.factors.push_back(
              graph.make(Kind::Div, divisor->type,
                         {graph.constant(1, divisor->type), divisor}));
      return lhs;
    }
    std::optional<Terms> rhs = linearize(expr->operands[1]);
    if (!rhs || lhs->size() * rhs->size() > 16)
      return fail();
    Terms product;
    for (const Term &x : *lhs)
      for (const Term &y : *rhs) {
        if ((x.map && y.map) || (x.value && y.value))
          return fail();
        Term term = x;
        term.coefficient *= y.coefficient;
        term.factors.append(y.factors);
        if (y.map) {
          term.map = y.map;
          term.value = y.value;
          term.sources = y.sources;
          term.roundedTo = y.roundedTo;
          term.sink = y.sink;
        }
        product.push_back(term);
      }
    return product;
  }
  case Kind::Select:
    return linearizeSelect(expr);
  case Kind::Reduce: {
    if (std::optional<Terms> product = linearizeProduct(expr))
      return product;
    std::string before = std::exchange(reason, "");
    std::optional<Terms> sum = linearizeFewFold(expr);
    if (!sum)
      reason = before;
    return sum;
  }
  default:
    return fail();
  }
}

} // namespace mlir::diffattn::raise
