//===- FuseDifferential.cpp - raising graphs to diffattn.attention --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Passes.h"

#include "Build.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Transforms/Raising/Materialize.h"
#include "NearMiss.h"
#include "Precision.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Remarks.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/EquivalenceClasses.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

#include <functional>

namespace mlir::diffattn {
#define GEN_PASS_DEF_FUSEDIFFERENTIALPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::raise;

namespace {
remark::RemarkOpts options(StringRef name) {
  return remark::RemarkOpts::name(name).category("diffattn-fuse");
}

/// A candidate that became an op.
struct Raised {
  /// The place of its root in the function, counted in candidates.
  unsigned place;
  Location loc;
  bool isSingle, droppedNanToNum, droppedNanGuard;
  std::string f32Reason;

  void emitRemark() const {
    if (droppedNanToNum)
      remark::passed(loc, options("DroppedNanToNum"))
          << remark::add("nan_to_num on the scores is gone: it changes "
                         "nothing for finite scores");
    if (droppedNanGuard)
      remark::passed(loc, options("DroppedNanGuard"))
          << remark::add("nan_to_num on a map is gone: a row that sees no key "
                         "is zero");
    if (!f32Reason.empty())
      remark::missed(loc, options("ComputedInF32"))
          << remark::reason("{0}", f32Reason)
          << remark::metric("Summary", "16-bit attention is computed in f32");
    remark::passed(loc, options("Raised"))
        << remark::add(isSingle ? "one map became a diffattn.attention"
                                : "two maps became one diffattn.attention");
  }
};

/// A candidate that stays; its remark waits until nothing more can be raised.
struct Unraised {
  unsigned place;
  Operation *op;
  std::string reason;

  void emitRemark() const {
    remark::missed(op->getLoc(), options("NotRaised"))
        << remark::add("{0} stays", op->getName().getStringRef())
        << remark::reason("{0}", reason)
        << remark::metric("Summary", "attention is not fused");
  }
};

/// State of one round for the next.
struct Progress {
  /// Whether two maps may still become one attention. Single maps come after
  /// all of these, so that one of two is not raised alone.
  bool hasPairs = true;
  /// The maps of differences that stay, which stay with these.
  llvm::DenseSet<Value> inPairs;
};

/// Raises what one analysis of a function allows. Facts on a value come from
/// the ops that it is computed from, so candidates are raised from the last one
/// to the first one, and those that depend on a raised one are left to the next
/// round. Analyzing anew after each would take a time that grows with the
/// square of their number.
class Round {
public:
  Round(Operation *function, const FuseDifferentialPassOptions &options,
        Progress &progress)
      : function(function), options(options), progress(progress),
        graph(function), maps(graph, function) {}
  ~Round() {
    for (Operation *op : removed)
      op->destroy();
  }

  /// Returns whether anything was raised, with remarks on that; otherwise they
  /// are on candidates that stay.
  bool run() {
    if (progress.hasPairs) {
      if (raise(/*single=*/false))
        return true;
      progress.hasPairs = false;
      progress.inPairs = reported;
    }
    return options.singleMaps && raise(/*single=*/true);
  }

private:
  struct Candidate {
    unsigned place;
    Value root;
  };
  bool raise(bool single);
  SmallVector<SmallVector<Candidate>> findCandidates();
  bool isStale(Value root) const {
    Operation *op = root.getDefiningOp();
    return removed.contains(op) || changed.contains(op);
  }
  bool tryRaise(const Candidate &candidate, bool single, std::string &reason);
  void addNearMisses(SmallVectorImpl<Unraised> &unraised);
  void resolveSizes(const llvm::SetVector<Operation *> &dying);
  void eraseDead(Operation *last, const llvm::SetVector<Operation *> &dying);
  void markChanged(Value value);

  /// Takes an unused op out of the function. It lives as long as the analysis,
  /// whose keys are addresses of values.
  void erase(Operation *op) {
    for (Value result : op->getResults())
      progress.inPairs.erase(result);
    op->remove();
    op->dropAllReferences();
    removed.insert(op);
  }

  Operation *function;
  const FuseDifferentialPassOptions &options;
  Progress &progress;
  ExprGraph graph;
  Maps maps;
  /// Maps of refusals that have a remark.
  llvm::DenseSet<Value> reported;
  SmallVector<Raised> raised;
  llvm::SetVector<Operation *> removed;
  /// Ops of which the analysis is no longer true.
  llvm::DenseSet<Operation *> changed;
};

/// True for a concatenation, also as a body that chooses what it reads.
bool isConcat(Operation *op) {
  auto linalgOp = dyn_cast<linalg::LinalgOp>(op);
  return isa<tensor::ConcatOp>(op) ||
         (linalgOp && isElementwise(linalgOp) &&
          !linalgOp.getBlock()->getOps<scf::IfOp>().empty());
}

/// Candidates in groups of those whose maps are connected; the groups by their
/// last candidates, the last one first. In a group they are in program order,
/// but a concatenation of two halves of the values comes before the halves.
SmallVector<SmallVector<Round::Candidate>> Round::findCandidates() {
  llvm::EquivalenceClasses<Value> connected;
  SmallVector<Candidate> candidates;
  function->walk<WalkOrder::PreOrder>([&](Operation *op) {
    for (Value result : op->getResults()) {
      Maps::Role role = maps.roleOf(result);
      if (role == Maps::Role::None)
        continue;
      connected.insert(result);
      op->walk([&](Operation *inner) {
        for (Value operand : inner->getOperands())
          if (maps.roleOf(operand) != Maps::Role::None)
            connected.unionSets(result, operand);
      });
      if (role == Maps::Role::Attention)
        candidates.push_back({unsigned(candidates.size()), result});
    }
  });
  llvm::MapVector<Value, SmallVector<Candidate>> groups;
  for (const Candidate &candidate : llvm::reverse(candidates))
    groups[connected.getLeaderValue(candidate.root)].push_back(candidate);
  SmallVector<SmallVector<Candidate>> result;
  for (auto &[leader, group] : groups) {
    llvm::sort(group, [](const Candidate &a, const Candidate &b) {
      bool concatA = isConcat(a.root.getDefiningOp()),
           concatB = isConcat(b.root.getDefiningOp());
      return concatA != concatB ? concatA : a.place < b.place;
    });
    result.push_back(std::move(group));
  }
  return result;
}

bool Round::raise(bool single) {
  SmallVector<Unraised> unraised;
  for (const SmallVector<Candidate> &group : findCandidates())
    for (const Candidate &candidate : group) {
      std::string reason;
      if (isStale(candidate.root) || tryRaise(candidate, single, reason))
        continue;
      // An attention that depends on a refused difference would be refused
      // again.
      bool isNew = llvm::any_of(
          maps.used, [&](Value map) { return !reported.contains(map); });
      if (!reason.empty() && isNew) {
        unraised.push_back(
            {candidate.place, candidate.root.getDefiningOp(), reason});
        reported.insert(maps.used.begin(), maps.used.end());
      }
    }
  auto inOrder = [](const auto &a, const auto &b) { return a.place < b.place; };
  llvm::sort(raised, inOrder);
  for (const Raised &attention : raised)
    attention.emitRemark();
  if (!raised.empty())
    return true;
  llvm::sort(unraised, inOrder);
  if (!single)
    addNearMisses(unraised);
  for (const Unraised &difference : unraised)
    difference.emitRemark();
  return false;
}

/// Adds differences of softmaxes that are no candidates.
void Round::addNearMisses(SmallVectorImpl<Unraised> &unraised) {
  for (const NearMiss &miss : findNearMisses(graph, maps, function)) {
    if (llvm::any_of(miss.softmaxes,
                     [&](Value map) { return reported.contains(map); }))
      continue;
    unraised.push_back({0, miss.op,
                        miss.recognized
                            ? "what lies between two softmaxes and their "
                              "difference is not understood"
                            : "a difference of softmaxes, one of which is not "
                              "understood"});
    reported.insert(miss.softmaxes.begin(), miss.softmaxes.end());
  }
}

/// Marks what is computed from `value`.
void Round::markChanged(Value value) {
  SmallVector<Operation *> work(value.getUsers());
  while (!work.empty()) {
    Operation *op = work.pop_back_val();
    if (op == function || !changed.insert(op).second)
      continue;
    work.push_back(op->getParentOp());
    llvm::append_range(work, op->getUsers());
    // Values that a loop hands to its body are no results.
    for (Region &region : op->getRegions())
      for (Operation &inner : region.getOps())
        work.push_back(&inner);
  }
}

/// A product of values with what two maps make together is a near miss.
std::string getNonlinearReason(Maps &maps, Value root) {
  auto product = root.getDefiningOp<linalg::LinalgOp>();
  if (!product || product.getNumReductionLoops() == 0)
    return "";
  // One softmax may hold both maps.
  bool combined = false;
  llvm::SetVector<Value> sources = maps.sourceMaps(root, combined);
  if (sources.size() < 2 && !(combined && maps.runsAlongKeys(root)))
    return "";
  maps.used.insert(sources.begin(), sources.end());
  return "the result is not a sum of products of one map with the values";
}

/// True if an operand of the op would be computed from what it replaces.
bool readsReplaced(Differential &match, const Epilogue &epilogue) {
  llvm::SetVector<Operation *> work;
  auto add = [&](Value value) {
    if (Operation *op = value.getDefiningOp())
      work.insert(op);
  };
  std::function<void(Expr)> read = [&](Expr expr) {
    if (expr->value)
      add(expr->value);
    llvm::for_each(expr->operands, read);
  };
  forEachExpr(match, [&](Expr &expr) { read(expr); });
  llvm::for_each(epilogue.weights, read);
  if (epilogue.gate)
    read(epilogue.gate);
  for (unsigned next = 0; next < work.size(); ++next)
    work[next]->walk(
        [&](Operation *op) { llvm::for_each(op->getOperands(), add); });
  return llvm::any_of(match.replaced, [&](Value value) {
    return work.contains(value.getDefiningOp());
  });
}

std::string usedElsewhere(Value value,
                          const llvm::SetVector<Operation *> &dying) {
  // Follow what only moves elements to the op that needs the map.
  SmallVector<Value> work{value};
  while (!work.empty()) {
    Value next = work.pop_back_val();
    for (Operation *user : next.getUsers()) {
      if (dying.contains(user) || isa<tensor::DimOp>(user))
        continue;
      if (user->getDialect() &&
          isa<tensor::TensorDialect>(user->getDialect()) &&
          !user->use_empty() && user->getNumResults() == 1) {
        work.push_back(user->getResult(0));
        continue;
      }
      return "a map or its scores are also used by " +
             user->getName().getStringRef().str();
    }
  }
  return "a map or its scores are also used elsewhere";
}

/// True if `op`, or an op that it is inside of, is in `dying`.
bool diesWith(Operation *op, const llvm::SetVector<Operation *> &dying) {
  while (op && !dying.contains(op))
    op = op->getParentOp();
  return op;
}

bool Round::tryRaise(const Candidate &candidate, bool single,
                     std::string &reason) {
  Value root = candidate.root;
  RecognizerOptions recognizer;
  recognizer.rescaleQueries = options.rescaleQueries;
  recognizer.single = single;
  std::optional<Differential> match =
      recognize(graph, maps, root, recognizer, reason);
  if (single && llvm::any_of(maps.used, [&](Value map) {
        return progress.inPairs.contains(map);
      })) {
    reason.clear();
    return false;
  }
  if (!match) {
    if (reason.empty() && !single)
      reason = getNonlinearReason(maps, root);
    // One softmax of something else is no attention that is missed.
    else if (single && reason == kNoProduct)
      reason.clear();
    // Over one key nothing shows which values run along keys.
    else if (!reason.empty() && maps.sharedKey &&
             graph.space.extent(*maps.sharedKey) == IndexPoly(1))
      reason = single ? "there is one key, whose weight is 1"
                      : "there is one key, whose weight is 1 in both maps";
    return false;
  }
  if (StringRef wide = findDouble(graph, *match); !wide.empty()) {
    reason = (wide + " is computed in f64, of which the op's f32 would lose "
                     "digits")
                 .str();
    return false;
  }
  Epilogue epilogue = findEpilogue(graph, *match);
  if (readsReplaced(*match, epilogue)) {
    reason = "what the maps are multiplied by is computed from a map or from "
             "its scores";
    return false;
  }
  auto dying = onlyFor(epilogue.result);
  for (Value value : match->replaced)
    if (!dying.contains(value.getDefiningOp())) {
      reason = usedElsewhere(value, dying);
      return false;
    }
  AttentionOp attention;
  Location loc = root.getLoc();
  Precision precision = choosePrecision(graph, *match, epilogue);
  Value result = build(graph, *match, epilogue, precision.elements, dying,
                       attention, reason);
  if (!result)
    return false;
  // From here on nothing is refused: a round that raises nothing changes none.
  resolveSizes(dying);
  markChanged(epilogue.result);
  epilogue.result.replaceAllUsesWith(result);
  eraseDead(epilogue.result.getDefiningOp(), dying);

  raised.push_back({candidate.place, loc, single,
                    llvm::any_of(match->maps(),
                                 [](const Scores *scores) {
                                   return scores->droppedNanToNum;
                                 }),
                    match->droppedNanGuard, precision.f32Reason});
  return true;
}

/// Sizes that are read from tensors that will be gone are read elsewhere.
void Round::resolveSizes(const llvm::SetVector<Operation *> &dying) {
  SmallVector<tensor::DimOp> dims;
  for (Operation *op : dying)
    for (Operation *user : op->getUsers()) {
      auto dim = dyn_cast<tensor::DimOp>(user);
      // An op in front of this may be the constant that names its axis.
      if (dim && dim.getSource().getDefiningOp() == op && knownAxis(dim) &&
          !diesWith(dim, dying))
        dims.push_back(dim);
    }
  for (tensor::DimOp dim : dims) {
    OpBuilder builder(dim);
    Materializer sizes(graph, builder, dim.getLoc());
    sizes.dying.insert(dying.begin(), dying.end());
    Value size = sizes.index(graph.sizeOf(dim.getSource(), *knownAxis(dim)));
    auto same = size.getDefiningOp<tensor::DimOp>();
    if (same && same.getSource() == dim.getSource()) {
      erase(same);
      continue;
    }
    markChanged(dim);
    dim.getResult().replaceAllUsesWith(size);
    erase(dim);
  }
}

void Round::eraseDead(Operation *last,
                      const llvm::SetVector<Operation *> &dying) {
  Block *block = last->getBlock();
  SmallVector<Operation *> ops;
  for (Operation &op : *block) {
    ops.push_back(&op);
    if (&op == last)
      break;
  }
  for (Operation *op : llvm::reverse(ops)) {
    if (!op->use_empty())
      continue;
    // Checks inside of bodies that are replaced go with them.
    if (isOpTriviallyDead(op) || dying.contains(op))
      erase(op);
  }
}

struct FuseDifferentialPass final
    : diffattn::impl::FuseDifferentialPassBase<FuseDifferentialPass> {
  using FuseDifferentialPassBase::FuseDifferentialPassBase;

  void runOnOperation() override {
    FuseDifferentialPassOptions options;
    options.rescaleQueries = rescaleQueries;
    options.singleMaps = singleMaps;
    Progress progress;
    while (Round(getOperation(), options, progress).run()) {
    }
  }
};
} // namespace
