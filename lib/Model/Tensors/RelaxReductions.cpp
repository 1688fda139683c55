//===- RelaxReductions.cpp - sums and products in any order -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"

#include "mlir/Dialect/Linalg/IR/LinalgInterfaces.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_RELAXREDUCTIONSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
struct RelaxReductionsPass final
    : diffattn::impl::RelaxReductionsPassBase<RelaxReductionsPass> {
  void runOnOperation() override {
    getOperation()->walk([](linalg::LinalgOp op) {
      if (!op.getNumReductionLoops())
        return;
      for (BlockArgument out : op.getRegionOutputArgs())
        for (Operation *user : out.getUsers())
          llvm::TypeSwitch<Operation *>(user)
              .Case<arith::AddFOp, arith::MulFOp>([](auto joins) {
                joins.setFastmath(joins.getFastmath() |
                                  arith::FastMathFlags::reassoc);
              });
    });
  }
};
} // namespace
