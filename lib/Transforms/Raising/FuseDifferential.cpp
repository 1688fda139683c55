//===- FuseDifferential.cpp - raising graphs to diffattn.attention --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Passes.h"

#include "Build.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "Materialize.h"
#include "NearMiss.h"
#include "Precision.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Remarks.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
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
/// A candidate that stays, to be told once nothing more can be raised.
struct Unraised {
  Operation *op;
  std::string reason;
};

struct FuseDifferentialPass final
    : diffattn::impl::FuseDifferentialPassBase<FuseDifferentialPass> {
  using FuseDifferentialPassBase::FuseDifferentialPassBase;

  void runOnOperation() override {
    while (true) {
      SmallVector<Unraised> unraised;
      if (raiseOne(unraised))
        continue;
      for (const Unraised &difference : unraised)
        remark::missed(difference.op->getLoc(), options("NotRaised"))
            << remark::add("{0} stays", difference.op->getName().getStringRef())
            << remark::reason("{0}", difference.reason)
            << remark::metric("Summary", "attention is not fused");
      return;
    }
  }

private:
  static remark::RemarkOpts options(StringRef name) {
    return remark::RemarkOpts::name(name).category("diffattn-fuse");
  }

  /// True for a concatenation, also as a body that chooses what it reads.
  static bool isConcat(Operation *op) {
    auto linalgOp = dyn_cast<linalg::LinalgOp>(op);
    return isa<tensor::ConcatOp>(op) ||
           (linalgOp && isElementwise(linalgOp) &&
            !linalgOp.getBlock()->getOps<scf::IfOp>().empty());
  }

  /// Raises the first candidate that can be raised.
  bool raiseOne(SmallVectorImpl<Unraised> &unraised) {
    Operation *function = getOperation();
    ExprGraph graph(function);
    Maps maps(graph, function);
    // A concatenation of two halves of the values comes before the halves.
    SmallVector<Value> roots;
    for (bool concats : {true, false})
      function->walk([&](Operation *op) {
        if (isConcat(op) == concats)
          for (Value result : op->getResults())
            if (maps.roleOf(result) == Maps::Role::Attention)
              roots.push_back(result);
      });
    llvm::DenseSet<Value> told;
    for (Value root : roots) {
      std::string reason;
      if (tryRaise(graph, maps, root, reason))
        return true;
      // What follows a refused difference would be refused again.
      bool news = llvm::any_of(maps.used,
                               [&](Value map) { return !told.contains(map); });
      if (!reason.empty() && news) {
        unraised.push_back({root.getDefiningOp(), reason});
        told.insert(maps.used.begin(), maps.used.end());
      }
    }
    // Whatever else keeps a difference of softmaxes is told too.
    for (const NearMiss &miss : findNearMisses(graph, maps, function)) {
      if (llvm::any_of(miss.softmaxes,
                       [&](Value map) { return told.contains(map); }))
        continue;
      unraised.push_back(
          {miss.op,
           miss.recognized
               ? "what lies between two softmaxes and their difference "
                 "is not understood"
               : "a difference of softmaxes, one of which is not "
                 "understood"});
      told.insert(miss.softmaxes.begin(), miss.softmaxes.end());
    }
    return false;
  }

  bool tryRaise(ExprGraph &graph, Maps &maps, Value root, std::string &reason) {
    RecognizerOptions recognizer;
    recognizer.rescaleQueries = rescaleQueries;
    std::optional<Differential> found =
        recognize(graph, maps, root, recognizer, reason);
    if (!found) {
      if (reason.empty())
        reason = whyNotLinear(maps, root);
      // Loops of one key tell nothing of what runs along keys.
      else if (maps.sharedKey &&
               graph.space.extent(*maps.sharedKey) == IndexPoly(1))
        reason = "there is one key, whose weight is 1 in both maps";
      return false;
    }
    if (StringRef wide = findDouble(graph, *found); !wide.empty()) {
      reason = (wide + " is computed in f64, of which the op's f32 would lose "
                       "digits")
                   .str();
      return false;
    }
    Epilogue epilogue = findEpilogue(graph, *found);
    if (readsReplaced(*found, epilogue)) {
      reason = "what the maps are multiplied by is computed from a map or from "
               "its scores";
      return false;
    }
    auto dying = onlyFor(epilogue.result);
    for (Value value : found->replaced)
      if (!dying.contains(value.getDefiningOp())) {
        reason = usedElsewhere(value, dying);
        return false;
      }
    resolveSizes(graph, dying);
    AttentionOp attention;
    Location loc = root.getLoc();
    Precision precision = choosePrecision(graph, *found, epilogue);
    Value result = build(graph, *found, epilogue, precision.elements, dying,
                         attention, reason);
    if (!result)
      return false;
    epilogue.result.replaceAllUsesWith(result);
    eraseDead(epilogue.result.getDefiningOp(), dying);

    if (found->first.droppedNanToNum || found->second.droppedNanToNum)
      remark::passed(loc, options("DroppedNanToNum"))
          << remark::add("nan_to_num on the scores is gone: it changes "
                         "nothing for finite scores");
    if (found->droppedNanGuard)
      remark::passed(loc, options("DroppedNanGuard"))
          << remark::add("nan_to_num on a map is gone: a row that sees no key "
                         "is zero");
    if (!precision.whyF32.empty())
      remark::missed(loc, options("ComputedInF32"))
          << remark::reason("{0}", precision.whyF32)
          << remark::metric("Summary", "16-bit attention is computed in f32");
    remark::passed(loc, options("Raised"))
        << remark::add("two maps became one diffattn.attention");
    return true;
  }

  /// A product of values with what two maps make together is a near miss.
  static std::string whyNotLinear(Maps &maps, Value root) {
    auto product = root.getDefiningOp<linalg::LinalgOp>();
    if (!product || product.getNumReductionLoops() == 0)
      return "";
    // One softmax may hold both maps.
    bool combined = false;
    llvm::SetVector<Value> behind = maps.mapsBehind(root, combined);
    if (behind.size() < 2 && !(combined && maps.runsAlongKeys(root)))
      return "";
    maps.used.insert(behind.begin(), behind.end());
    return "the result is not a sum of products of one map with the values";
  }

  /// True if an operand of the op would be computed from what it replaces.
  static bool readsReplaced(Differential &found, const Epilogue &epilogue) {
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
    forEachExpr(found, [&](Expr &expr) { read(expr); });
    llvm::for_each(epilogue.weights, read);
    if (epilogue.gate)
      read(epilogue.gate);
    for (unsigned next = 0; next < work.size(); ++next)
      work[next]->walk(
          [&](Operation *op) { llvm::for_each(op->getOperands(), add); });
    return llvm::any_of(found.replaced, [&](Value value) {
      return work.contains(value.getDefiningOp());
    });
  }

  static std::string usedElsewhere(Value value,
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

  /// Sizes that are read from tensors that will be gone are read elsewhere.
  static void resolveSizes(ExprGraph &graph,
                           const llvm::SetVector<Operation *> &dying) {
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
        same.erase();
        continue;
      }
      dim.getResult().replaceAllUsesWith(size);
      dim.erase();
    }
  }

  /// True if `op`, or an op that it is inside of, is in `dying`.
  static bool diesWith(Operation *op,
                       const llvm::SetVector<Operation *> &dying) {
    while (op && !dying.contains(op))
      op = op->getParentOp();
    return op;
  }

  static void eraseDead(Operation *last,
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
        op->erase();
    }
  }
};
} // namespace
