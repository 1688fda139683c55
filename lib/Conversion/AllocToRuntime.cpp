//===- AllocToRuntime.cpp - buffers from the runtime's arena -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Conversion/Passes.h"

#include "mlir/Conversion/LLVMCommon/Pattern.h"
#include "mlir/Dialect/LLVMIR/FunctionCallUtils.h"
#include "mlir/Transforms/DialectConversion.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTALLOCTORUNTIMEPASS
#include "DiffAttn/Conversion/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
struct AllocToArena final : ConvertOpToLLVMPattern<memref::AllocOp> {
  AllocToArena(const LLVMTypeConverter &converter, LLVM::LLVMFuncOp alloc)
      : ConvertOpToLLVMPattern(converter), alloc(alloc) {}
  LogicalResult
  matchAndRewrite(memref::AllocOp op, OpAdaptor adaptor,
                  ConversionPatternRewriter &rewriter) const override {
    MemRefType type = op.getType();
    if (!type.getLayout().isIdentity())
      return rewriter.notifyMatchFailure(op, "expected the identity layout");
    if (op.getAlignment().value_or(1) > 64)
      return op.emitOpError()
             << "expected an alignment of at most 64 bytes, but got "
             << *op.getAlignment();
    Location loc = op.getLoc();
    SmallVector<Value> sizes, strides;
    Value bytes;
    getMemRefDescriptorSizes(loc, type, adaptor.getDynamicSizes(), rewriter,
                             sizes, strides, bytes, /*sizeInBytes=*/true);
    Value pointer =
        LLVM::CallOp::create(rewriter, loc, alloc, bytes).getResult();
    rewriter.replaceOp(op,
                       Value(createMemRefDescriptor(loc, type, pointer, pointer,
                                                    sizes, strides, rewriter)));
    return success();
  }

  mutable LLVM::LLVMFuncOp alloc;
};

struct DropDealloc final : ConvertOpToLLVMPattern<memref::DeallocOp> {
  using ConvertOpToLLVMPattern::ConvertOpToLLVMPattern;
  LogicalResult
  matchAndRewrite(memref::DeallocOp op, OpAdaptor adaptor,
                  ConversionPatternRewriter &rewriter) const override {
    rewriter.eraseOp(op);
    return success();
  }
};

struct ConvertAllocToRuntimePass final
    : diffattn::impl::ConvertAllocToRuntimePassBase<ConvertAllocToRuntimePass> {
  using ConvertAllocToRuntimePassBase::ConvertAllocToRuntimePassBase;
  void runOnOperation() override {
    if (!getOperation()
             .walk([](memref::AllocOp) { return WalkResult::interrupt(); })
             .wasInterrupted() &&
        !getOperation()
             .walk([](memref::DeallocOp) { return WalkResult::interrupt(); })
             .wasInterrupted())
      return;
    OpBuilder builder(&getContext());
    auto pointer = LLVM::LLVMPointerType::get(&getContext());
    FailureOr<LLVM::LLVMFuncOp> alloc = LLVM::lookupOrCreateFn(
        builder, getOperation(),
        device ? "diffattn_rt_device_alloc" : "diffattn_rt_alloc",
        {builder.getI64Type()}, pointer);
    if (failed(alloc))
      return signalPassFailure();
    // Fresh memory: lets LLVM tell buffers of one function apart.
    alloc->setResultAttr(0, LLVM::LLVMDialect::getNoAliasAttrName(),
                         builder.getUnitAttr());

    LLVMTypeConverter converter(&getContext());
    ConversionTarget target(getContext());
    target.markUnknownOpDynamicallyLegal([](Operation *) { return true; });
    target.addIllegalOp<memref::AllocOp, memref::DeallocOp>();
    RewritePatternSet patterns(&getContext());
    patterns.add<AllocToArena>(converter, *alloc);
    patterns.add<DropDealloc>(converter);
    if (failed(applyPartialConversion(getOperation(), target,
                                      std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace
