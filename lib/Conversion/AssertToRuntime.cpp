//===- AssertToRuntime.cpp - failed assertions as errors of the run -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Conversion/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/FunctionCallUtils.h"
#include "llvm/ADT/MapVector.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTASSERTTORUNTIMEPASS
#include "DiffAttn/Conversion/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
struct ConvertAssertToRuntimePass final
    : diffattn::impl::ConvertAssertToRuntimePassBase<
          ConvertAssertToRuntimePass> {
  void runOnOperation() override {
    SmallVector<cf::AssertOp> asserts;
    WalkResult walked = getOperation().walk([&](cf::AssertOp op) {
      if (!isa<func::FuncOp>(op->getParentOp())) {
        op.emitOpError(
            "expected to stand in the body of a function, but it is inside ")
            << op->getParentOp()->getName();
        return WalkResult::interrupt();
      }
      asserts.push_back(op);
      return WalkResult::advance();
    });
    if (walked.wasInterrupted())
      return signalPassFailure();
    if (asserts.empty())
      return;
    OpBuilder builder(&getContext());
    auto pointer = LLVM::LLVMPointerType::get(&getContext());
    FailureOr<LLVM::LLVMFuncOp> found = LLVM::lookupOrCreateFn(
        builder, getOperation(), "diffattn_rt_fail", {pointer},
        LLVM::LLVMVoidType::get(&getContext()));
    if (failed(found))
      return signalPassFailure();
    fail = *found;
    for (cf::AssertOp op : asserts)
      lower(builder, op);
  }

private:
  /// ... assert(c); rest  ->  ... cond_br c, ^rest, ^fail
  void lower(OpBuilder &builder, cf::AssertOp op) {
    Location loc = op.getLoc();
    Block *block = op->getBlock();
    Block *rest = block->splitBlock(op->getIterator());
    Block *failure =
        builder.createBlock(rest->getParent(), rest->getParent()->end());
    Value text =
        LLVM::AddressOfOp::create(builder, loc, getMessage(op.getMsg()));
    LLVM::CallOp::create(builder, loc, fail, text);
    LLVM::UnreachableOp::create(builder, loc);
    builder.setInsertionPointToEnd(block);
    cf::CondBranchOp::create(builder, loc, op.getArg(), rest, ValueRange(),
                             failure, ValueRange());
    op.erase();
  }

  LLVM::GlobalOp getMessage(StringRef text) {
    auto [entry, isNew] = messages.try_emplace(text);
    if (isNew) {
      OpBuilder builder = OpBuilder::atBlockBegin(getOperation().getBody());
      std::string zeroEnded = (text + Twine('\0')).str();
      auto type =
          LLVM::LLVMArrayType::get(builder.getI8Type(), zeroEnded.size());
      entry->second = LLVM::GlobalOp::create(
          builder, getOperation().getLoc(), type, /*isConstant=*/true,
          LLVM::Linkage::Internal,
          "diffattn_message_" + std::to_string(messages.size() - 1),
          builder.getStringAttr(zeroEnded));
    }
    return entry->second;
  }

  LLVM::LLVMFuncOp fail;
  llvm::StringMap<LLVM::GlobalOp> messages;
};
} // namespace
