//===- BitsToBytes.cpp - truth values in memory are bytes -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An array of i1 comes from callers, for whom any byte but 0 is true. LLVM
// reads an i1 from a byte of 0 or 1 alone, and vectorizes no loop that does.
//
#include "DiffAttn/Model/Passes.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTBITSTOBYTESPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {

struct ConvertBitsToBytesPass final
    : diffattn::impl::ConvertBitsToBytesPassBase<ConvertBitsToBytesPass> {
  void runOnOperation() override {
    getOperation().walk([](Operation *op) {
      if (auto load = dyn_cast<LLVM::LoadOp>(op))
        widen(load);
      else if (auto store = dyn_cast<LLVM::StoreOp>(op))
        widen(store);
    });
  }

private:
  static void widen(LLVM::LoadOp load) {
    Value bit = load.getResult();
    if (!bit.getType().isInteger(1))
      return;
    OpBuilder builder(load);
    builder.setInsertionPointAfter(load);
    bit.setType(builder.getI8Type());
    Value zero = LLVM::ConstantOp::create(builder, load.getLoc(),
                                          builder.getI8IntegerAttr(0));
    Value isTrue = LLVM::ICmpOp::create(builder, load.getLoc(),
                                        LLVM::ICmpPredicate::ne, bit, zero);
    bit.replaceAllUsesExcept(isTrue, isTrue.getDefiningOp());
  }

  static void widen(LLVM::StoreOp store) {
    if (!store.getValue().getType().isInteger(1))
      return;
    OpBuilder builder(store);
    store.getValueMutable().assign(LLVM::ZExtOp::create(
        builder, store.getLoc(), builder.getI8Type(), store.getValue()));
  }
};

} // namespace
