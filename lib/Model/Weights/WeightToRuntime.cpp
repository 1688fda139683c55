//===- WeightToRuntime.cpp - weights from the table of the loader -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "WeightTable.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Patterns.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Conversion/LLVMCommon/MemRefBuilder.h"
#include "mlir/Conversion/LLVMCommon/Pattern.h"
#include "mlir/Transforms/DialectConversion.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTWEIGHTTORUNTIMEPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

int64_t mlir::diffattn::getNumWeightSlots(ModuleOp module) {
  int64_t slots = 0;
  for (WeightAttr weight : getWeights(module))
    slots += weight.getNumSlots();
  return slots;
}

LLVM::GlobalOp mlir::diffattn::getOrDeclareWeightTable(ModuleOp module) {
  if (auto table = module.lookupSymbol<LLVM::GlobalOp>(DIFFATTN_WEIGHTS_SYMBOL))
    return table;
  int64_t slots = getNumWeightSlots(module);
  if (auto constants = module->getAttrOfType<ArrayAttr>("diffattn.constants"))
    slots += constants.size();
  OpBuilder builder = OpBuilder::atBlockBegin(module.getBody());
  auto type =
      LLVM::LLVMArrayType::get(getWeightSlotType(module.getContext()), slots);
  return LLVM::GlobalOp::create(builder, module.getLoc(), type,
                                /*isConstant=*/false, LLVM::Linkage::External,
                                DIFFATTN_WEIGHTS_SYMBOL, /*value=*/Attribute());
}

Value mlir::diffattn::emitWeightSlot(OpBuilder &builder, Location loc,
                                     LLVM::GlobalOp table, Value slot) {
  Value base = LLVM::AddressOfOp::create(builder, loc, table);
  Value index =
      arith::IndexCastOp::create(builder, loc, builder.getI64Type(), slot);
  return LLVM::GEPOp::create(builder, loc, base.getType(),
                             getWeightSlotType(builder.getContext()), base,
                             ArrayRef<LLVM::GEPArg>{index});
}

/// The function that frees the slots of constants; its body ends with a return.
static LLVM::LLVMFuncOp getOrMakeReleaseFunction(ModuleOp module) {
  StringRef name = DIFFATTN_RELEASE_SYMBOL;
  if (auto function = module.lookupSymbol<LLVM::LLVMFuncOp>(name))
    return function;
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  auto type = LLVM::LLVMFunctionType::get(
      LLVM::LLVMVoidType::get(module.getContext()), {});
  auto function =
      LLVM::LLVMFuncOp::create(builder, module.getLoc(), name, type);
  builder.setInsertionPointToStart(function.addEntryBlock(builder));
  LLVM::ReturnOp::create(builder, module.getLoc(), ValueRange());
  return function;
}

Value mlir::diffattn::emitConstantSlot(OpBuilder &builder, ModuleOp module,
                                       StringRef name) {
  Location loc = module.getLoc();
  MLIRContext *context = module.getContext();
  std::string symbol = ("diffattn_slot_of_" + name).str();
  auto slot = module.lookupSymbol<LLVM::GlobalOp>(symbol);
  if (!slot) {
    OpBuilder top = OpBuilder::atBlockBegin(module.getBody());
    slot = LLVM::GlobalOp::create(top, loc, getWeightSlotType(context),
                                  /*isConstant=*/false, LLVM::Linkage::Internal,
                                  symbol, /*value=*/Attribute());
    top.createBlock(&slot.getInitializerRegion());
    LLVM::ReturnOp::create(
        top, loc,
        LLVM::ZeroOp::create(top, loc, getWeightSlotType(context)).getRes());
    LLVM::LLVMFuncOp release = getOrMakeReleaseFunction(module);
    auto free = getOrDeclareRuntimeFunction(top, module,
                                            RuntimeFunction::weight_release);
    top.setInsertionPoint(release.getBody().front().getTerminator());
    LLVM::CallOp::create(top, loc, *free,
                         LLVM::AddressOfOp::create(top, loc, slot).getRes());
  }
  return LLVM::AddressOfOp::create(builder, builder.getUnknownLoc(), slot);
}

namespace {
struct WeightToDescriptor final : ConvertOpToLLVMPattern<WeightOp> {
  WeightToDescriptor(const LLVMTypeConverter &converter, LLVM::GlobalOp table)
      : ConvertOpToLLVMPattern(converter), table(table) {}

  LogicalResult
  matchAndRewrite(WeightOp op, OpAdaptor adaptor,
                  ConversionPatternRewriter &rewriter) const override {
    Location loc = op.getLoc();
    Value slot = emitWeightSlot(rewriter, loc, table, op.getSlot());
    Value data = LLVM::LoadOp::create(rewriter, loc, slot.getType(), slot);
    rewriter.replaceOp(
        op, Value(MemRefDescriptor::fromStaticShape(
                rewriter, loc, *getTypeConverter(), op.getType(), data)));
    return success();
  }

  mutable LLVM::GlobalOp table;
};

struct ConvertWeightToRuntimePass final
    : diffattn::impl::ConvertWeightToRuntimePassBase<
          ConvertWeightToRuntimePass> {
  void runOnOperation() override {
    if (!getOperation()
             .walk([](WeightOp) { return WalkResult::interrupt(); })
             .wasInterrupted())
      return;
    LLVMTypeConverter converter(&getContext());
    ConversionTarget target(getContext());
    target.markUnknownOpDynamicallyLegal([](Operation *) { return true; });
    target.addIllegalOp<WeightOp>();
    RewritePatternSet patterns(&getContext());
    populateWeightToRuntimePatterns(converter, patterns, getOperation());
    if (failed(applyPartialConversion(getOperation(), target,
                                      std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

void mlir::diffattn::populateWeightToRuntimePatterns(
    const LLVMTypeConverter &converter, RewritePatternSet &patterns,
    ModuleOp module) {
  patterns.add<WeightToDescriptor>(converter, getOrDeclareWeightTable(module));
}
