//===- NVVMPipeline.cpp - from tensors to PTX -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Pipelines/NVVMPipeline.h"

#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Schedule/Passes.h"
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace mlir::diffattn;

void mlir::diffattn::buildGpuSchedulePasses(OpPassManager &pm, StringRef chip) {
  // What has a kernel must not be decomposed; what has none is.
  SelectGpuSchedulePassOptions select;
  select.chip = chip.str();
  pm.addPass(createSelectGpuSchedulePass(select));
  buildTensorPasses(pm, /*device=*/true);
}

void mlir::diffattn::buildGpuPasses(OpPassManager &pm, StringRef chip) {
  // First, while buffers of attention are operands that can be seen.
  ConvertLinalgToGpuPassOptions others;
  others.chip = chip.str();
  pm.addPass(createConvertLinalgToGpuPass(others));
  ConvertDiffAttnToGpuPassOptions kernels;
  kernels.chip = chip.str();
  pm.addPass(createConvertDiffAttnToGpuPass(kernels));
  pm.addNestedPass<func::FuncOp>(createCanonicalizerPass());
  pm.addNestedPass<func::FuncOp>(createCSEPass());
}

void mlir::diffattn::buildNVVMPipeline(OpPassManager &pm,
                                       const NVVMPipelineOptions &options) {
  buildRaisePasses(pm, options, /*device=*/true);
  buildGpuSchedulePasses(pm, options.chip);
  buildBufferizePasses(pm, options, /*device=*/true);
  buildGpuPasses(pm, options.chip);
  GpuToPtxPassOptions ptx;
  ptx.chip = options.chip;
  ptx.assemble = options.assemble;
  ptx.file = options.file;
  pm.addPass(createGpuToPtxPass(ptx));
}

void mlir::diffattn::registerNVVMPipeline() {
  PassPipelineRegistration<NVVMPipelineOptions>(
      "diffattn-gpu-pipeline",
      "From a module of tensor IR to GPU kernels in PTX and cubin, and host "
      "functions that launch them",
      buildNVVMPipeline);
}
