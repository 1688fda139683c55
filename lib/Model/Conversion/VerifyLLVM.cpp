//===- VerifyLLVM.cpp - nothing is left that is not lowered ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/BuiltinOps.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_VERIFYLLVMPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
struct VerifyLLVMPass final
    : diffattn::impl::VerifyLLVMPassBase<VerifyLLVMPass> {
  void runOnOperation() override {
    // An op is a better subject of the error than a cast, which is left beside
    // it.
    Operation *op = nullptr, *cast = nullptr;
    getOperation()->walk<WalkOrder::PreOrder>([&](Operation *inner) {
      if (inner == getOperation())
        return WalkResult::advance();
      // GPU code is translated by itself, and other nested modules are not.
      if (isa<gpu::GPUModuleOp, gpu::BinaryOp, ModuleOp>(inner))
        return WalkResult::skip();
      if (isa_and_nonnull<LLVM::LLVMDialect>(inner->getDialect()))
        return WalkResult::advance();
      if (isa<UnrealizedConversionCastOp>(inner)) {
        cast = cast ? cast : inner;
        return WalkResult::advance();
      }
      op = inner;
      return WalkResult::interrupt();
    });
    if (!op && !cast)
      return;
    (op ? op : cast)
        ->emitOpError(
            "expected an op that lowers to the LLVM dialect, but got one that "
            "does not");
    signalPassFailure();
  }
};
} // namespace
