//===- AllocToRuntime.cpp - buffers from the runtime's arena -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Patterns.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Conversion/LLVMCommon/Pattern.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Transforms/DialectConversion.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTALLOCTORUNTIMEPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

/// The buffers that public functions of `module` return, or views of them.
static DenseSet<Operation *> getReturned(ModuleOp module) {
  DenseSet<Operation *> returned;
  for (func::FuncOp function : module.getOps<func::FuncOp>())
    if (function.isPublic())
      function.walk([&](func::ReturnOp end) {
        for (Value value : end.getOperands()) {
          while (auto view = value.getDefiningOp<ViewLikeOpInterface>())
            value = view.getViewSource();
          if (auto buffer = value.getDefiningOp<memref::AllocOp>())
            returned.insert(buffer);
        }
      });
  return returned;
}

namespace {
struct AllocToArena final : ConvertOpToLLVMPattern<memref::AllocOp> {
  AllocToArena(const LLVMTypeConverter &converter, LLVM::LLVMFuncOp alloc,
               LLVM::LLVMFuncOp allocResult, DenseSet<Operation *> returned)
      : ConvertOpToLLVMPattern(converter), alloc(alloc),
        allocResult(allocResult), returned(std::move(returned)) {}
  LogicalResult
  matchAndRewrite(memref::AllocOp op, OpAdaptor adaptor,
                  ConversionPatternRewriter &rewriter) const override {
    MemRefType type = op.getType();
    auto refuse = [&](const Twine &expected) {
      return op.emitOpError()
             << "expected " << expected << ", but got " << type;
    };
    if (!type.getLayout().isIdentity())
      return refuse("the identity layout");
    FailureOr<unsigned> space = getTypeConverter()->getMemRefAddressSpace(type);
    if (failed(space) || *space != 0)
      return refuse("memory space 0, which the runtime has");
    if (!getTypeConverter()->convertType(type))
      return refuse("elements of a type that LLVM has");
    if (op.getAlignment().value_or(1) > 64)
      return op.emitOpError()
             << "expected an alignment of at most 64 bytes, but got "
             << *op.getAlignment();
    Location loc = op.getLoc();
    SmallVector<Value> sizes, strides;
    Value bytes;
    getMemRefDescriptorSizes(loc, type, adaptor.getDynamicSizes(), rewriter,
                             sizes, strides, bytes, /*sizeInBytes=*/true);
    if (!adaptor.getDynamicSizes().empty())
      bytes = failIfUnreal(rewriter, loc, type, sizes, bytes);
    Value pointer =
        LLVM::CallOp::create(rewriter, loc,
                             returned.contains(op) ? allocResult : alloc, bytes)
            .getResult();
    rewriter.replaceOp(op,
                       Value(createMemRefDescriptor(loc, type, pointer, pointer,
                                                    sizes, strides, rewriter)));
    return success();
  }

private:
  /// `bytes`, or -1, which no workspace holds, if a size is negative or their
  /// product with the bytes of an element does not fit into 63 bits.
  static Value failIfUnreal(OpBuilder &b, Location loc, MemRefType type,
                            ArrayRef<Value> sizes, Value bytes) {
    Type i64 = b.getI64Type();
    auto constant = [&](int64_t number) -> Value {
      return LLVM::ConstantOp::create(b, loc, i64, b.getIndexAttr(number));
    };
    auto result =
        LLVM::LLVMStructType::getLiteral(b.getContext(), {i64, b.getI1Type()});
    // Nothing is larger than 16 bytes.
    Value product = constant(16), zero = constant(0), wrong;
    auto also = [&](Value condition) {
      wrong = wrong ? LLVM::OrOp::create(b, loc, wrong, condition).getResult()
                    : condition;
    };
    for (Value size : sizes) {
      also(LLVM::ICmpOp::create(b, loc, LLVM::ICmpPredicate::slt, size, zero));
      // An axis without elements does not make the others small.
      Value factor = LLVM::UMaxOp::create(b, loc, size, constant(1));
      Value pair =
          LLVM::SMulWithOverflowOp::create(b, loc, result, product, factor);
      product = LLVM::ExtractValueOp::create(b, loc, pair, 0);
      also(LLVM::ExtractValueOp::create(b, loc, pair, 1));
    }
    return LLVM::SelectOp::create(b, loc, wrong, constant(-1), bytes);
  }

  mutable LLVM::LLVMFuncOp alloc, allocResult;
  DenseSet<Operation *> returned;
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
    LLVMTypeConverter converter(&getContext());
    ConversionTarget target(getContext());
    target.markUnknownOpDynamicallyLegal([](Operation *) { return true; });
    target.addIllegalOp<memref::AllocOp, memref::DeallocOp>();
    RewritePatternSet patterns(&getContext());
    if (failed(populateAllocToRuntimePatterns(converter, patterns,
                                              getOperation(), device)) ||
        failed(applyPartialConversion(getOperation(), target,
                                      std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

/// The declaration of a function that gives fresh memory; null after an error.
static LLVM::LLVMFuncOp declareAlloc(ModuleOp module,
                                     RuntimeFunction function) {
  OpBuilder builder(module.getContext());
  FailureOr<LLVM::LLVMFuncOp> alloc =
      getOrDeclareRuntimeFunction(builder, module, function);
  if (failed(alloc))
    return nullptr;
  // With noalias LLVM sees that buffers of one function are distinct.
  alloc->setResultAttr(0, LLVM::LLVMDialect::getNoAliasAttrName(),
                       builder.getUnitAttr());
  return *alloc;
}

LogicalResult mlir::diffattn::populateAllocToRuntimePatterns(
    const LLVMTypeConverter &converter, RewritePatternSet &patterns,
    ModuleOp module, bool device) {
  // The host takes results from a device by a copy.
  DenseSet<Operation *> returned =
      device ? DenseSet<Operation *>() : getReturned(module);
  LLVM::LLVMFuncOp alloc = declareAlloc(
      module, device ? RuntimeFunction::device_alloc : RuntimeFunction::alloc);
  LLVM::LLVMFuncOp allocResult =
      returned.empty() ? alloc
                       : declareAlloc(module, RuntimeFunction::alloc_result);
  if (!alloc || !allocResult)
    return failure();
  patterns.add<AllocToArena>(converter, alloc, allocResult,
                             std::move(returned));
  patterns.add<DropDealloc>(converter);
  return success();
}
