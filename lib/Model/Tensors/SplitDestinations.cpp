//===- SplitDestinations.cpp - one destination for each writer -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_SPLITDESTINATIONSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
struct SplitDestinationsPass final
    : diffattn::impl::SplitDestinationsPassBase<SplitDestinationsPass> {
  void runOnOperation() override {
    // Whoever reads another one comes first: the copies share what they are
    // of, which is then split.
    SmallVector<Operation *> ops;
    getOperation()->walk([&](Operation *op) {
      if (isDestination(op))
        ops.push_back(op);
    });
    for (Operation *op : llvm::reverse(ops))
      split(op);
  }

private:
  /// An empty or filled tensor, or one under another type.
  static bool isDestination(Operation *op) {
    if (isa<tensor::EmptyOp>(op))
      return true;
    if (isa<linalg::FillOp>(op))
      return op->getNumResults() == 1;
    if (!isa<tensor::CastOp, tensor::ExpandShapeOp, tensor::CollapseShapeOp>(
            op))
      return false;
    Operation *source = op->getOperand(0).getDefiningOp();
    return source && isDestination(source);
  }

  /// A part that is cut out to be written and put back, or that comes from
  /// elsewhere: all parts belong to one tensor.
  static bool isPart(OpOperand &use) {
    auto insert = dyn_cast<tensor::InsertSliceOp>(use.getOwner());
    return isa<tensor::ExtractSliceOp>(use.getOwner()) ||
           (insert && &insert.getDestMutable() == &use);
  }

  void split(Operation *op) {
    SmallVector<OpOperand *> uses;
    bool parts = false;
    for (OpOperand &use : op->getUses()) {
      if (isPart(use))
        parts = true;
      else
        uses.push_back(&use);
    }
    bool keepsFirst = !parts && !uses.empty();
    for (OpOperand *use : ArrayRef(uses).drop_front(keepsFirst ? 1 : 0)) {
      OpBuilder builder(op);
      builder.setInsertionPointAfter(op);
      use->set(builder.clone(*op)->getResult(0));
    }
  }
};
} // namespace
