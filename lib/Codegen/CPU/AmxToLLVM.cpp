//===- AmxToLLVM.cpp - convert-diffattn-amx-to-llvm -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/Passes.h"

#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/LLVMCommon/ConversionTarget.h"
#include "mlir/Conversion/LLVMCommon/TypeConverter.h"
#include "mlir/Dialect/AMX/AMXDialect.h"
#include "mlir/Dialect/AMX/Transforms.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTAMXTOLLVMPASS
#include "DiffAttn/Codegen/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
struct ConvertAmxToLLVMPass final
    : diffattn::impl::ConvertAmxToLLVMPassBase<ConvertAmxToLLVMPass> {
  void runOnOperation() override {
    auto isTile = [](Operation *op) {
      return isa_and_nonnull<amx::AMXDialect>(op->getDialect())
                 ? WalkResult::interrupt()
                 : WalkResult::advance();
    };
    if (!getOperation()->walk(isTile).wasInterrupted())
      return;
    LLVMTypeConverter types(&getContext());
    RewritePatternSet patterns(&getContext());
    LLVMConversionTarget target(getContext());
    target.addLegalOp<ModuleOp>();
    target.addIllegalDialect<cf::ControlFlowDialect>();
    target.markUnknownOpDynamicallyLegal([](Operation *) { return true; });
    populateAMXLegalizeForLLVMExportPatterns(types, patterns);
    configureAMXLegalizeForExportTarget(target);
    cf::populateControlFlowToLLVMConversionPatterns(types, patterns);
    if (failed(applyPartialConversion(getOperation(), target,
                                      std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace
