//===- Epilogue.cpp - ops after the difference, per head ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Epilogue.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <cmath>

namespace mlir::diffattn::raise {

llvm::SetVector<Operation *> onlyFor(Value value) {
  llvm::SetVector<Operation *> set;
  Operation *last = value.getDefiningOp();
  set.insert(last);
  Block *block = last->getBlock();
  for (Operation *op = last->getPrevNode(); op; op = op->getPrevNode()) {
    if (op->use_empty() ||
        !isa_and_nonnull<linalg::LinalgDialect, tensor::TensorDialect,
                         arith::ArithDialect, math::MathDialect>(
            op->getDialect()))
      continue;
    // Reading a size is no use of the values: sizes are known otherwise.
    bool only = llvm::all_of(op->getUsers(), [&](Operation *user) {
      Operation *ancestor = block->findAncestorOpInBlock(*user);
      return isa<tensor::DimOp>(user) || (ancestor && set.contains(ancestor));
    });
    bool needed = llvm::any_of(op->getUsers(), [&](Operation *user) {
      Operation *ancestor = block->findAncestorOpInBlock(*user);
      return ancestor && set.contains(ancestor);
    });
    if (only && needed)
      set.insert(op);
  }
  return set;
}

Expr logitsOf(ExprGraph &graph, Expr sigmoid) {
  sigmoid = graph.open(sigmoid);
  if (sigmoid->kind != Kind::Div || !sigmoid->operands[0]->isConst(1))
    return nullptr;
  Expr sum = graph.open(sigmoid->operands[1]);
  if (sum->kind != Kind::Add)
    return nullptr;
  for (unsigned i : {0, 1}) {
    Expr power = graph.open(sum->operands[i]);
    std::optional<double> one = graph.constantValue(sum->operands[1 - i]);
    if (power->kind != Kind::Exp || !one || *one != 1)
      continue;
    Expr exponent = graph.open(power->operands[0]);
    if (exponent->kind == Kind::Neg)
      return exponent->operands[0];
  }
  return nullptr;
}

namespace {
/// Reads one value after the difference as a product.
struct EpilogueReader {
  EpilogueReader(ExprGraph &graph, const Differential &match,
                 const llvm::DenseSet<Value> &dependent)
      : graph(graph), match(match), dependent(dependent) {}

  ExprGraph &graph;
  const Differential &match;
  const llvm::DenseSet<Value> &dependent;

  SmallVector<Expr> factors;
  SmallVector<Expr> inverseNorms; ///< 1 / each is a factor
  SmallVector<Expr> normRoots;    ///< rsqrt of each is a factor
  double number = 1;
  Expr core = nullptr;
  llvm::SmallSetVector<Type, 2> roundedTo; ///< between the core and the value

  bool depends(Expr expr) const {
    if (expr->kind == Kind::Load && dependent.contains(expr->value))
      return true;
    return llvm::any_of(expr->operands,
                        [&](Expr operand) { return depends(operand); });
  }
  bool isCore(Expr expr) const {
    return expr->kind == Kind::Load && expr->value == match.root;
  }
  /// Opens loads of what depends on the difference, but not the difference.
  Expr open(Expr expr) {
    expr = graph.stripCasts(expr);
    while (expr->kind == Kind::Load && !isCore(expr)) {
      Expr opened = graph.expand(expr);
      if (!opened)
        return expr;
      expr = graph.stripCasts(opened);
    }
    return expr;
  }
  /// The 16-bit types that `open` passes.
  void noteRoundings(Expr expr) {
    while (true) {
      if (isHalfFloat(expr->type))
        roundedTo.insert(expr->type);
      if (expr->kind == Kind::Cast)
        expr = expr->operands[0];
      else if (expr->kind != Kind::Load || isCore(expr) ||
               !(expr = graph.expand(expr)))
        return;
    }
  }
  bool read(Expr expr);
  bool readOpened(Expr expr);
  bool readDivisor(Expr expr);
  bool readNorm(Epilogue &epilogue);
  std::optional<double> readMeanSquare(Expr expr);
};
} // namespace

bool EpilogueReader::readDivisor(Expr expr) {
  if (depends(expr)) {
    inverseNorms.push_back(expr);
    return true;
  }
  if (std::optional<double> value = graph.constantValue(expr)) {
    number /= *value;
    return *value != 0;
  }
  factors.push_back(
      graph.make(Kind::Div, expr->type, {graph.constant(1, expr->type), expr}));
  return true;
}

bool EpilogueReader::read(Expr expr) {
  if (!depends(expr)) {
    if (std::optional<double> value = graph.constantValue(expr))
      number *= *value;
    else
      factors.push_back(expr);
    return true;
  }
  bool hadCore = core;
  if (!readOpened(open(expr)))
    return false;
  // On the way to the core, not to a factor made of it.
  if (!hadCore && core)
    noteRoundings(expr);
  return true;
}

bool EpilogueReader::readOpened(Expr expr) {
  if (isCore(expr)) {
    if (core)
      return false; // not linear
    core = expr;
    return true;
  }
  switch (expr->kind) {
  case Kind::Mul:
    return read(expr->operands[0]) && read(expr->operands[1]);
  case Kind::Neg:
    number = -number;
    return read(expr->operands[0]);
  case Kind::Div:
    return read(expr->operands[0]) && readDivisor(expr->operands[1]);
  case Kind::Rsqrt:
    normRoots.push_back(expr->operands[0]);
    return true;
  default:
    return false;
  }
}

/// How far a constant of this type lies from the number that was meant, as a
/// share of it: its rounding and that of the one it was computed from.
static double tolerance(Type type) {
  unsigned precision = llvm::APFloat::semanticsPrecision(
      cast<FloatType>(type).getFloatSemantics());
  return std::max(std::ldexp(1.0, 1 - int(precision)), 1e-6);
}

/// The mean over one head of the square of the difference: the eps beside it.
std::optional<double> EpilogueReader::readMeanSquare(Expr expr) {
  double eps = 0;
  expr = open(expr);
  if (expr->kind == Kind::Add)
    for (unsigned i : {0, 1})
      if (std::optional<double> value =
              graph.constantValue(expr->operands[i])) {
        eps = *value;
        expr = open(expr->operands[1 - i]);
        break;
      }
  std::optional<double> divisor;
  double allowed = 0;
  if (expr->kind == Kind::Div) {
    divisor = graph.constantValue(expr->operands[1]);
    allowed = tolerance(expr->operands[1]->type);
    expr = open(expr->operands[0]);
  } else if (expr->kind == Kind::Mul) {
    for (unsigned i : {0, 1})
      if (std::optional<double> value =
              graph.constantValue(expr->operands[i])) {
        divisor = 1.0 / *value;
        allowed = tolerance(expr->operands[i]->type);
        expr = open(expr->operands[1 - i]);
        break;
      }
  }
  if (!divisor || expr->kind != Kind::Reduce ||
      expr->combiner() != Combiner::Sum || expr->bound.size() != 1)
    return std::nullopt;
  std::optional<int64_t> width = graph.space.extent(expr->bound[0]).constant();
  if (!width || std::fabs(*divisor - *width) > allowed * *width)
    return std::nullopt;
  // A norm over part of a head is another norm.
  if (graph.space.extent(expr->bound[0]) !=
      graph.space.extent(match.roles.valueWidth))
    return std::nullopt;
  Expr square = open(expr->operands[0]);
  if (square->kind != Kind::Mul)
    return std::nullopt;
  Expr a = open(square->operands[0]), b = open(square->operands[1]);
  if (!isCore(a) || !isCore(b) || a->indices != b->indices)
    return std::nullopt;
  // Its indices must be those of the core but along the axis of the width,
  // which the sum runs over.
  bool alongWidth = false;
  for (auto [axis, poly] : llvm::enumerate(a->indices)) {
    if (graph.space.mentions(poly, expr->bound[0])) {
      if (poly != IndexPoly::atom(expr->bound[0]) ||
          match.position[axis] != IndexPoly::atom(match.roles.valueWidth))
        return std::nullopt;
      alongWidth = true;
    } else if (poly != core->indices[axis]) {
      return std::nullopt;
    }
  }
  return alongWidth ? std::optional<double>(eps) : std::nullopt;
}

bool EpilogueReader::readNorm(Epilogue &epilogue) {
  if (inverseNorms.size() + normRoots.size() > 1)
    return false;
  if (inverseNorms.empty() && normRoots.empty())
    return true;
  std::optional<double> eps;
  if (!normRoots.empty()) {
    eps = readMeanSquare(normRoots[0]);
  } else {
    Expr root = open(inverseNorms[0]);
    double outside = 0;
    if (root->kind == Kind::Add)
      for (unsigned i : {0, 1})
        if (std::optional<double> value =
                graph.constantValue(root->operands[i])) {
          outside = *value;
          epilogue.epsOutside = true;
          root = open(root->operands[1 - i]);
          break;
        }
    if (root->kind == Kind::Sqrt)
      eps = readMeanSquare(root->operands[0]);
    if (eps && epilogue.epsOutside) {
      if (*eps != 0)
        return false;
      eps = outside;
    }
  }
  if (!eps)
    return false;
  epilogue.norm = true;
  epilogue.eps = *eps;
  return true;
}

/// Expresses the loops of a later value by the loops of the roles: both are
/// positions in the difference, and so equal, axis by axis.
static bool unify(ExprGraph &graph, ArrayRef<IndexPoly> later,
                  ArrayRef<IndexPoly> roles, IndexSpace::Substitution &map) {
  for (auto [a, b] : llvm::zip(later, roles)) {
    if (std::optional<AtomId> atom = a.asAtom()) {
      map[*atom] = b;
      continue;
    }
    // 4 x + y and 4 b + h: term by term.
    if (a.terms.size() != b.terms.size())
      return false;
    for (auto &[monomial, coefficient] : a.terms) {
      AtomId loop = 0;
      Monomial stride;
      unsigned loops = 0;
      for (AtomId id : monomial)
        if (graph.space[id].kind == IndexSpace::Atom::Loop) {
          loop = id;
          ++loops;
        } else {
          stride.push_back(id);
        }
      if (loops != 1)
        return false;
      bool isMapped = false;
      for (auto &[other, c] : b.terms) {
        Monomial rest;
        AtomId role = 0;
        for (AtomId id : other)
          if (graph.space[id].kind == IndexSpace::Atom::Loop)
            role = id;
          else
            rest.push_back(id);
        if (rest == stride && c == coefficient &&
            rest.size() + 1 == other.size()) {
          map[loop] = IndexPoly::atom(role);
          isMapped = true;
        }
      }
      if (!isMapped)
        return false;
    }
  }
  return true;
}

/// Maps loops to roles where positions cut through a loop: tries the loops of
/// the roles for those of the later value.
static bool unifyLoops(ExprGraph &graph, ArrayRef<IndexPoly> later,
                       ArrayRef<IndexPoly> roles, ArrayRef<AtomId> loops,
                       ArrayRef<AtomId> candidates,
                       IndexSpace::Substitution &map) {
  if (map.size() == loops.size())
    return llvm::all_of(llvm::zip(later, roles), [&](auto pair) {
      return graph.space.substitute(std::get<0>(pair), map) ==
             std::get<1>(pair);
    });
  AtomId loop = loops[map.size()];
  for (AtomId role : candidates) {
    bool taken = llvm::any_of(map, [&](const auto &entry) {
      return entry.second == IndexPoly::atom(role);
    });
    if (taken || graph.space.extent(role) != graph.space.extent(loop))
      continue;
    map[loop] = IndexPoly::atom(role);
    if (unifyLoops(graph, later, roles, loops, candidates, map))
      return true;
    map.erase(loop);
  }
  return false;
}

static std::optional<Epilogue>
readEpilogue(ExprGraph &graph, const Differential &match,
             const llvm::DenseSet<Value> &dependent, Value result) {
  EpilogueReader reader(graph, match, dependent);
  SmallVector<IndexPoly> loops = graph.freshLoops(result);
  // Axes of one element have no loop.
  for (IndexPoly &loop : loops)
    if (graph.space.extent(*loop.asAtom()) == IndexPoly(1))
      loop = 0;
  if (!reader.read(graph.load(result, loops)) || !reader.core)
    return std::nullopt;
  Epilogue epilogue;
  epilogue.result = result;
  if (!reader.readNorm(epilogue))
    return std::nullopt;
  IndexSpace::Substitution map;
  if (!unify(graph, reader.core->indices, match.position, map)) {
    map.clear();
    SmallVector<AtomId> own;
    for (const IndexPoly &loop : loops)
      if (std::optional<AtomId> atom = loop.asAtom())
        own.push_back(*atom);
    const Roles &r = match.roles;
    if (!unifyLoops(graph, reader.core->indices, match.position, own,
                    {r.batch, r.head, r.query, r.valueWidth}, map))
      return std::nullopt;
  }
  for (const IndexPoly &loop : loops) {
    std::optional<AtomId> atom = loop.asAtom();
    if (atom && !map.count(*atom))
      return std::nullopt;
    epilogue.position.push_back(atom ? map[*atom] : IndexPoly(0));
  }
  epilogue.outScale = reader.number;
  epilogue.roundedTo = reader.roundedTo;
  const Roles &r = match.roles;
  for (Expr factor : reader.factors) {
    factor = graph.substitute(factor, map);
    bool perWidth = true;
    for (AtomId loop : {r.batch, r.head, r.query, r.key})
      perWidth &= !graph.mentions(factor, loop);
    if (perWidth && epilogue.norm) {
      epilogue.weights.push_back(factor);
    } else if (Expr gate = logitsOf(graph, factor); gate && !epilogue.gate) {
      epilogue.gate = gate;
    } else {
      return std::nullopt;
    }
  }
  return epilogue;
}

Epilogue findEpilogue(ExprGraph &graph, const Differential &match) {
  Epilogue best;
  best.result = match.root;
  best.position = match.position;
  // Common factors are multiplied after the op, so no norm can be in it.
  if (!match.commonFactors.empty())
    return best;

  llvm::DenseSet<Value> dependent{match.root};
  Operation *root = match.root.getDefiningOp();
  unsigned distance = 0;
  for (Operation *op = root->getNextNode(); op && distance < 400;
       op = op->getNextNode(), ++distance) {
    if (!isa_and_nonnull<linalg::LinalgDialect, tensor::TensorDialect,
                         arith::ArithDialect, math::MathDialect>(
            op->getDialect()) ||
        op->getNumResults() != 1 ||
        !isa<RankedTensorType>(op->getResult(0).getType()))
      continue;
    bool uses = llvm::any_of(op->getOperands(), [&](Value operand) {
      return dependent.contains(operand);
    });
    if (!uses)
      continue;
    // Products lead out of one head.
    if (auto linalgOp = dyn_cast<linalg::LinalgOp>(op))
      if (linalgOp.getNumReductionLoops() > 0 &&
          linalgOp.getNumDpsInputs() != 1)
        continue;
    Value result = op->getResult(0);
    dependent.insert(result);
    std::optional<Epilogue> read =
        readEpilogue(graph, match, dependent, result);
    if (read && onlyFor(result).contains(root))
      best = *read;
  }
  return best;
}

std::optional<OutputNumbers> outputNumbers(const Differential &match,
                                           const Epilogue &epilogue,
                                           std::string &reason) {
  OutputNumbers numbers;
  numbers.outScale = epilogue.outScale;
  if (!epilogue.norm) {
    numbers.outScale *= match.outScale;
  } else {
    // A factor before a norm only moves its eps.
    const double size = std::fabs(match.outScale);
    numbers.eps = epilogue.eps / (epilogue.epsOutside ? size : size * size);
    numbers.outScale *= match.outScale < 0 ? -1 : 1;
  }
  auto isFinite = [](double number) {
    return std::isfinite(static_cast<float>(number));
  };
  if (!isFinite(match.lambda))
    reason = "lambda is no finite number of f32";
  else if (!isFinite(match.outScale) || !isFinite(numbers.outScale))
    reason = "the factor of the difference is no finite number of f32";
  else if (!isFinite(numbers.eps) || numbers.eps < 0)
    reason = "the eps of the norm is negative, or no finite number of f32";
  else
    return numbers;
  return std::nullopt;
}

} // namespace mlir::diffattn::raise
