//===- DeviceValues.cpp - values on the device alone ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DeviceValues.h"

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Interfaces/ViewLikeInterface.h"
#include "llvm/ADT/DenseMap.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

/// `known` ends cycles through loops, and holds for one question alone: values
/// come and go.
static bool isOfDevice(Value value, DenseMap<Value, bool> &known) {
  auto [slot, isNew] = known.try_emplace(value, false);
  if (!isNew)
    return slot->second;
  bool result = false;
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    // A carried value is on the device if the initial or the next one is.
    auto loop = dyn_cast<scf::ForOp>(argument.getOwner()->getParentOp());
    if (loop && argument.getArgNumber() > 0) {
      unsigned number = argument.getArgNumber() - 1;
      result = isOfDevice(loop.getInitArgs()[number], known) ||
               isOfDevice(loop.getYieldedValues()[number], known);
    }
  } else {
    Operation *op = value.getDefiningOp();
    if (isa<memref::LoadOp>(op)) {
      result = true;
    } else if (auto loop = dyn_cast<scf::ForOp>(op)) {
      unsigned number = cast<OpResult>(value).getResultNumber();
      result = isOfDevice(loop.getInitArgs()[number], known) ||
               isOfDevice(loop.getYieldedValues()[number], known);
    } else if (auto choice = dyn_cast<scf::IfOp>(op)) {
      result = isOfDevice(choice.getCondition(), known);
      unsigned number = cast<OpResult>(value).getResultNumber();
      for (Region *region : {&choice.getThenRegion(), &choice.getElseRegion()})
        if (!region->empty())
          result |= isOfDevice(
              region->front().getTerminator()->getOperand(number), known);
    } else if (isPure(op) && !op->getNumRegions() && !isa<memref::DimOp>(op)) {
      result = llvm::any_of(op->getOperands(), [&](Value operand) {
        return isOfDevice(operand, known);
      });
    }
  }
  return known[value] = result;
}

bool DeviceValues::contains(Value value) {
  DenseMap<Value, bool> known;
  return isOfDevice(value, known);
}

bool DeviceValues::dependsOn(Value value, ArrayRef<scf::ForOp> loops) {
  if (auto argument = dyn_cast<BlockArgument>(value))
    return llvm::any_of(loops, [&](scf::ForOp loop) {
      return argument.getOwner()->getParentOp() == loop;
    });
  Operation *op = value.getDefiningOp();
  bool inside = llvm::any_of(
      loops, [&](scf::ForOp loop) { return loop->isProperAncestor(op); });
  return inside && llvm::any_of(op->getOperands(), [&](Value operand) {
           return dependsOn(operand, loops);
         });
}

bool DeviceValues::canCompute(Value value, ArrayRef<scf::ForOp> loops) {
  if (!contains(value) && !dependsOn(value, loops))
    return true;
  Operation *op = value.getDefiningOp();
  if (!op)
    return dependsOn(value, loops);
  if (!isa<memref::LoadOp>(op) && (!isPure(op) || op->getNumRegions()))
    return false;
  return llvm::all_of(op->getOperands(), [&](Value operand) {
    return canCompute(operand, loops);
  });
}

Value mlir::diffattn::linalggpu::rootOf(Value memref) {
  while (Operation *op = memref.getDefiningOp()) {
    auto view = dyn_cast<ViewLikeOpInterface>(op);
    if (!view)
      break;
    memref = view.getViewSource();
  }
  return memref;
}

memref::GetGlobalOp mlir::diffattn::linalggpu::constantOf(Value memref) {
  auto get = rootOf(memref).getDefiningOp<memref::GetGlobalOp>();
  if (!get)
    return nullptr;
  auto global = SymbolTable::lookupNearestSymbolFrom<memref::GlobalOp>(
      get, get.getNameAttr());
  return global && global.getConstant() &&
                 isa_and_nonnull<DenseElementsAttr>(
                     global.getInitialValue().value_or(nullptr))
             ? get
             : memref::GetGlobalOp();
}

namespace {
/// The buffers that a memref may be one of, seen through views, choices and
/// loops that carry it.
class Roots {
public:
  explicit Roots(Value memref) { add(memref); }
  ArrayRef<Value> get() const { return roots.getArrayRef(); }

private:
  void add(Value memref) {
    Value root = rootOf(memref);
    if (!visited.insert(root).second)
      return;
    auto argument = dyn_cast<BlockArgument>(root);
    Operation *op =
        argument ? argument.getOwner()->getParentOp() : root.getDefiningOp();
    auto loop = dyn_cast<scf::ForOp>(op);
    auto open = dyn_cast<scf::WhileOp>(op);
    if (argument && loop)
      return addCarried(loop, argument.getArgNumber() - 1);
    if (argument && open) {
      const unsigned number = argument.getArgNumber();
      if (argument.getOwner() != open.getBeforeBody())
        return add(open.getConditionOp().getArgs()[number]);
      add(open.getInits()[number]);
      return add(open.getYieldOp().getOperand(number));
    }
    if (argument) {
      roots.insert(root);
      return;
    }
    const unsigned number = cast<OpResult>(root).getResultNumber();
    if (loop)
      return addCarried(loop, number);
    if (open)
      return add(open.getConditionOp().getArgs()[number]);
    if (auto choice = dyn_cast<arith::SelectOp>(op)) {
      add(choice.getTrueValue());
      return add(choice.getFalseValue());
    }
    if (auto branch = dyn_cast<scf::IfOp>(op)) {
      add(branch.thenYield().getOperand(number));
      return add(branch.elseYield().getOperand(number));
    }
    roots.insert(root);
  }
  void addCarried(scf::ForOp loop, unsigned number) {
    add(loop.getInitArgs()[number]);
    add(loop.getYieldedValues()[number]);
  }

  llvm::SmallDenseSet<Value> visited;
  llvm::SmallSetVector<Value, 4> roots;
};
} // namespace

/// Whether two buffers may be one, given by what they begin as.
static bool mayBeOne(Value a, Value b) {
  if (a == b)
    return true;
  auto typeOf = [](Value root) {
    return cast<BaseMemRefType>(root.getType()).getElementType();
  };
  if (typeOf(a) != typeOf(b))
    return false;
  auto isOwn = [](Value root) {
    return isa_and_nonnull<memref::AllocOp, memref::AllocaOp,
                           memref::GetGlobalOp, WeightOp>(root.getDefiningOp());
  };
  auto isArgument = [](Value root) {
    auto argument = dyn_cast<BlockArgument>(root);
    return argument && argument.getOwner()->isEntryBlock() &&
           isa<func::FuncOp>(argument.getOwner()->getParentOp());
  };
  // Anything else, as what a call gives, may be any of them.
  if (isOwn(a))
    return !isOwn(b) && !isArgument(b);
  return !isOwn(b) || !isArgument(a);
}

bool mlir::diffattn::linalggpu::mayAlias(Value a, Value b) {
  Roots ofA(a), ofB(b);
  return llvm::any_of(ofA.get(), [&](Value rootA) {
    return llvm::any_of(ofB.get(),
                        [&](Value rootB) { return mayBeOne(rootA, rootB); });
  });
}

static bool areSeparate(Value a, Value b,
                        DenseSet<std::pair<Value, Value>> &seen) {
  auto first = dyn_cast<BlockArgument>(rootOf(a)),
       second = dyn_cast<BlockArgument>(rootOf(b));
  if (!first || !second || first == second ||
      first.getOwner() != second.getOwner())
    return false;
  auto function = dyn_cast<func::FuncOp>(first.getOwner()->getParentOp());
  if (!function)
    return false;
  // Where calls lead back here, what is passed was looked at.
  if (function.isPublic() || !seen.insert({first, second}).second)
    return true;
  std::optional<SymbolTable::UseRange> uses =
      SymbolTable::getSymbolUses(function, function->getParentOp());
  return uses && llvm::all_of(*uses, [&](SymbolTable::SymbolUse use) {
           auto call = dyn_cast<func::CallOp>(use.getUser());
           if (!call)
             return false;
           Value x = call.getOperand(first.getArgNumber()),
                 y = call.getOperand(second.getArgNumber());
           return !mayAlias(x, y) || areSeparate(x, y, seen);
         });
}

bool mlir::diffattn::linalggpu::areSeparateArguments(Value a, Value b) {
  DenseSet<std::pair<Value, Value>> seen;
  return areSeparate(a, b, seen);
}
