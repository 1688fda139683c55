//===- SeparateResults.cpp - a buffer for each result -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_SEPARATERESULTSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
/// The values whose buffers another one may be, as far as they can be followed
/// through views, choices and calls.
class Roots {
public:
  explicit Roots(Value value, int calls = 0) : calls(calls) {
    // Functions that call themselves are refused later.
    if (calls < kMaxCalls)
      add(value);
    else
      values.insert(value);
  }
  ArrayRef<Value> get() const { return values.getArrayRef(); }

private:
  static constexpr int kMaxCalls = 32;

  void add(Value value) {
    if (!visited.insert(value).second)
      return;
    auto result = dyn_cast<OpResult>(value);
    Operation *op = value.getDefiningOp();
    if (isa_and_nonnull<tensor::CastOp, tensor::CollapseShapeOp,
                        tensor::ExpandShapeOp, tensor::ExtractSliceOp,
                        tensor::ReshapeOp>(op))
      return add(op->getOperand(0));
    if (auto select = dyn_cast_if_present<arith::SelectOp>(op)) {
      add(select.getTrueValue());
      return add(select.getFalseValue());
    }
    if (isa_and_nonnull<scf::IfOp, scf::ExecuteRegionOp, scf::ForOp,
                        scf::WhileOp>(op)) {
      for (Region &region : op->getRegions())
        for (Block &block : region)
          if (isa<scf::YieldOp, scf::ConditionOp>(block.getTerminator()))
            addGiven(block.getTerminator(), result.getResultNumber());
      if (auto loop = dyn_cast<scf::ForOp>(op))
        add(loop.getInitArgs()[result.getResultNumber()]);
      return;
    }
    if (auto call = dyn_cast_if_present<func::CallOp>(op))
      return addCalled(call, result);
    values.insert(value);
  }
  /// Adds a result of the function, in terms of the call's operands where it is
  /// one of the function's arguments.
  void addCalled(func::CallOp call, OpResult result) {
    auto callee = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
        call, call.getCalleeAttr());
    if (!callee || callee.isExternal()) {
      values.insert(result);
      return;
    }
    for (Block &block : callee.getBody()) {
      if (!isa<func::ReturnOp>(block.getTerminator()))
        continue;
      Value given = block.getTerminator()->getOperand(result.getResultNumber());
      // A variable, because what get() gives lies in it.
      const Roots roots(given, calls + 1);
      for (Value root : roots.get()) {
        auto argument = dyn_cast<BlockArgument>(root);
        if (argument && argument.getOwner()->isEntryBlock() &&
            argument.getOwner()->getParentOp() == callee)
          add(call.getOperand(argument.getArgNumber()));
        else
          values.insert(result);
      }
    }
  }
  void addGiven(Operation *terminator, unsigned number) {
    number += isa<scf::ConditionOp>(terminator);
    if (number < terminator->getNumOperands())
      add(terminator->getOperand(number));
  }

  int calls;
  llvm::SmallDenseSet<Value> visited;
  llvm::SmallSetVector<Value, 4> values;
};

struct SeparateResultsPass final
    : diffattn::impl::SeparateResultsPassBase<SeparateResultsPass> {
  void runOnOperation() override {
    SmallVector<scf::IndexSwitchOp> switches;
    getOperation()->walk([&](scf::IndexSwitchOp op) {
      if (llvm::any_of(op->getResultTypes(), llvm::IsaPred<TensorType>))
        switches.push_back(op);
    });
    for (scf::IndexSwitchOp op : switches)
      makeBranches(op);

    SymbolTableCollection symbols;
    SymbolUserMap users(symbols, getOperation());
    getOperation()->walk([&](Operation *op) {
      Operation *parent = op->getParentOp();
      if ((isa<scf::YieldOp>(op) && isa<scf::ForOp>(parent)) ||
          (isa<func::ReturnOp>(op) && !users.getUsers(parent).empty()))
        separate(op);
      else if (isa<scf::YieldOp, scf::ConditionOp>(op) &&
               isa<scf::WhileOp>(parent))
        separate(op, /*within=*/parent);
    });
  }

private:
  static void makeBranches(scf::IndexSwitchOp op) {
    OpBuilder builder(op);
    Location loc = op.getLoc();
    SmallVector<Value> results;
    for (auto [number, region] :
         llvm::zip_equal(op.getCases(), op.getCaseRegions())) {
      Value value = arith::ConstantIndexOp::create(builder, loc, number);
      Value taken = arith::CmpIOp::create(
          builder, loc, arith::CmpIPredicate::eq, op.getArg(), value);
      auto branch = scf::IfOp::create(builder, loc, op->getResultTypes(), taken,
                                      /*addThenBlock=*/false,
                                      /*addElseBlock=*/false);
      branch.getThenRegion().takeBody(region);
      if (results.empty())
        llvm::append_range(results, branch.getResults());
      else
        scf::YieldOp::create(builder, loc, branch.getResults());
      builder.createBlock(&branch.getElseRegion());
    }
    Block *rest = op.getDefaultRegion().empty()
                      ? nullptr
                      : &op.getDefaultRegion().front();
    if (results.empty()) {
      Operation *end = rest->getTerminator();
      llvm::append_range(results, end->getOperands());
      end->erase();
      op->getBlock()->getOperations().splice(op->getIterator(),
                                             rest->getOperations());
    } else {
      Block *into = builder.getInsertionBlock();
      into->getOperations().splice(into->end(), rest->getOperations());
    }
    op->replaceAllUsesWith(results);
    op->erase();
  }

  /// Operands of which none is another one's buffer, nor, if `within` is there,
  /// that of a value from outside of it.
  static void separate(Operation *terminator, Operation *within = nullptr) {
    OpBuilder builder(terminator);
    llvm::SmallDenseSet<Value> given;
    for (OpOperand &operand : terminator->getOpOperands()) {
      auto type = dyn_cast<RankedTensorType>(operand.get().getType());
      if (!type)
        continue;
      Roots roots(operand.get());
      const bool isShared = llvm::any_of(roots.get(), [&](Value root) {
        return given.contains(root) ||
               (within &&
                !within->isAncestor(root.getParentBlock()->getParentOp()));
      });
      if (isShared)
        operand.set(bufferization::AllocTensorOp::create(
            builder, terminator->getLoc(), type, /*dynamicSizes=*/ValueRange(),
            /*copy=*/operand.get()));
      else
        given.insert(roots.get().begin(), roots.get().end());
    }
  }
};
} // namespace
