//===- SeparateResults.cpp - a buffer for each result -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_SEPARATERESULTSPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

/// What `value` is a view of, or itself.
static Value getRoot(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<tensor::CastOp, tensor::CollapseShapeOp, tensor::ExpandShapeOp,
             tensor::ExtractSliceOp, tensor::ReshapeOp>(op))
      break;
    value = op->getOperand(0);
  }
  return value;
}

namespace {
struct SeparateResultsPass final
    : diffattn::impl::SeparateResultsPassBase<SeparateResultsPass> {
  void runOnOperation() override {
    SymbolTableCollection symbols;
    SymbolUserMap users(symbols, getOperation());
    getOperation()->walk([&](Operation *op) {
      Operation *parent = op->getParentOp();
      const bool yields =
          isa<scf::YieldOp>(op) && isa<scf::ForOp, scf::IndexSwitchOp>(parent);
      if (yields ||
          (isa<func::ReturnOp>(op) && !users.getUsers(parent).empty()))
        separate(op);
    });
  }

private:
  void separate(Operation *terminator) {
    OpBuilder builder(terminator);
    llvm::SmallDenseSet<Value> roots;
    for (OpOperand &operand : terminator->getOpOperands()) {
      auto type = dyn_cast<RankedTensorType>(operand.get().getType());
      if (!type || roots.insert(getRoot(operand.get())).second)
        continue;
      operand.set(bufferization::AllocTensorOp::create(
          builder, terminator->getLoc(), type, /*dynamicSizes=*/ValueRange(),
          /*copy=*/operand.get()));
    }
  }
};
} // namespace
