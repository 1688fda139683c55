//===- LowerKernels.cpp - generated kernels in the LLVM dialect -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "LowerKernels.h"

#include "DiffAttn/Model/Passes.h"

#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/IndexToLLVM/IndexToLLVM.h"
#include "mlir/Conversion/LLVMCommon/ConversionTarget.h"
#include "mlir/Conversion/LLVMCommon/TypeConverter.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/Passes.h"
#include "mlir/Conversion/UBToLLVM/UBToLLVM.h"
#include "mlir/Dialect/Arith/Transforms/Passes.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Functions for which NVPTX has instructions.
bool hasInstructions(Operation *op) {
  return isa<math::AbsFOp, math::AbsIOp, math::CeilOp, math::CopySignOp,
             math::CountLeadingZerosOp, math::CountTrailingZerosOp,
             math::CtPopOp, math::FloorOp, math::FmaOp, math::RoundEvenOp,
             math::SqrtOp, math::TruncOp>(op);
}

struct CheckLibraryFreePass final
    : PassWrapper<CheckLibraryFreePass, OperationPass<LLVM::LLVMFuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(CheckLibraryFreePass)
  StringRef getArgument() const override { return "check-library-free"; }
  void runOnOperation() override {
    getOperation()->walk([&](Operation *op) {
      if (!isa_and_nonnull<math::MathDialect>(op->getDialect()) ||
          hasInstructions(op))
        return;
      op->emitError("expected a function that a kernel can compute without a "
                    "library, but got ")
          << op->getName() << " on " << op->getOperand(0).getType();
      signalPassFailure();
    });
  }
};

/// The passes that convert one dialect each take modules of the host.
struct ConvertKernelsPass final
    : PassWrapper<ConvertKernelsPass, OperationPass<gpu::GPUModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ConvertKernelsPass)
  StringRef getArgument() const override { return "convert-kernels-to-llvm"; }
  void runOnOperation() override {
    LLVMTypeConverter converter(&getContext());
    LLVMConversionTarget target(getContext());
    RewritePatternSet patterns(&getContext());
    arith::populateCeilFloorDivExpandOpsPatterns(patterns);
    arith::populateArithToLLVMConversionPatterns(converter, patterns);
    cf::populateControlFlowToLLVMConversionPatterns(converter, patterns);
    index::populateIndexToLLVMConversionPatterns(converter, patterns);
    populateMathToLLVMConversionPatterns(converter, patterns);
    ub::populateUBToLLVMConversionPatterns(converter, patterns);
    target.addLegalOp<gpu::GPUModuleOp>();
    target.addLegalDialect<NVVM::NVVMDialect>();
    if (failed(
            applyFullConversion(getOperation(), target, std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

void linalggpu::buildKernelLowering(OpPassManager &pm) {
  {
    OpPassManager &kernels = pm.nest<LLVM::LLVMFuncOp>();
    ExpandMathPassOptions all;
    all.all = true;
    kernels.addPass(createExpandMathPass(all));
    arith::ArithEmulateUnsupportedFloatsOptions halves;
    halves.sourceTypeStrs = {"bf16", "f16"};
    halves.targetTypeStr = "f32";
    kernels.addPass(arith::createArithEmulateUnsupportedFloats(halves));
    kernels.addPass(std::make_unique<CheckLibraryFreePass>());
    kernels.addPass(createCanonicalizerPass());
    kernels.addPass(createCSEPass());
    kernels.addPass(createSCFToControlFlowPass());
  }
  pm.addPass(std::make_unique<ConvertKernelsPass>());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
}
