//===- ScopeArena.cpp - ends of the life of buffers -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_SCOPEARENAPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
bool isBuffer(Type type) { return isa<BaseMemRefType>(type); }

/// True if `region` allocates outside of the loops in it, which have their own
/// scopes.
bool allocates(Region &region) {
  return region
      .walk([&](Operation *op) {
        if (isa<memref::AllocOp>(op))
          return WalkResult::interrupt();
        return isa<scf::ForOp>(op) &&
                       llvm::none_of(op->getResultTypes(), isBuffer)
                   ? WalkResult::skip()
                   : WalkResult::advance();
      })
      .wasInterrupted();
}

struct ScopeArenaPass final
    : diffattn::impl::ScopeArenaPassBase<ScopeArenaPass> {
  using ScopeArenaPassBase::ScopeArenaPassBase;
  void runOnOperation() override {
    SmallVector<Operation *> scopes;
    for (func::FuncOp function : getOperation().getOps<func::FuncOp>()) {
      if (!function.isDeclaration() &&
          llvm::none_of(function.getResultTypes(), isBuffer) &&
          allocates(function.getBody()))
        scopes.push_back(function);
      function.walk([&](scf::ForOp loop) {
        if (llvm::none_of(loop.getResultTypes(), isBuffer) &&
            allocates(loop.getRegion()))
          scopes.push_back(loop);
      });
    }
    if (scopes.empty())
      return;
    OpBuilder builder(&getContext());
    FailureOr<LLVM::LLVMFuncOp> mark = getOrDeclareRuntimeFunction(
        builder, getOperation(),
        device ? RuntimeFunction::device_mark : RuntimeFunction::mark);
    FailureOr<LLVM::LLVMFuncOp> release = getOrDeclareRuntimeFunction(
        builder, getOperation(),
        device ? RuntimeFunction::device_release : RuntimeFunction::release);
    if (failed(mark) || failed(release))
      return signalPassFailure();
    for (Operation *scope : scopes) {
      Region &region = scope->getRegion(0);
      Location loc = scope->getLoc();
      builder.setInsertionPointToStart(&region.front());
      Value start =
          LLVM::CallOp::create(builder, loc, *mark, ValueRange()).getResult();
      for (Block &block : region) {
        Operation *end = block.getTerminator();
        if (!isa<func::ReturnOp, scf::YieldOp>(end))
          continue;
        builder.setInsertionPoint(end);
        LLVM::CallOp::create(builder, loc, *release, start);
      }
    }
  }
};
} // namespace
