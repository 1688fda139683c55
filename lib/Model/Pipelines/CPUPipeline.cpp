//===- CPUPipeline.cpp - from tensors to the LLVM dialect -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Pipelines/CPUPipeline.h"

#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Pipelines/NVVMPipeline.h"
#include "DiffAttn/Schedule/Passes.h"
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/Passes.h"
#include "mlir/Dialect/MemRef/Transforms/Passes.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace mlir::diffattn;

void mlir::diffattn::buildSchedulePasses(OpPassManager &pm,
                                         const CPUPipelineOptions &options) {
  if (!options.gpuChip.empty()) {
    buildGpuSchedulePasses(pm, options.gpuChip);
    return;
  }
  // A schedule is one sequence's own.
  pm.addPass(createUnpackSequencesPass());
  SelectSchedulePassOptions select;
  select.isa = options.isa;
  select.prefetchBytes = options.prefetchBytes;
  pm.addPass(createSelectSchedulePass(select));
  buildTensorPasses(pm, /*device=*/false);
  FuseGatedGemmsPassOptions gates;
  gates.isa = options.isa;
  gates.batchInvariant =
      stringifyBatchInvariance(options.batchInvariance).str();
  pm.addNestedPass<func::FuncOp>(createFuseGatedGemmsPass(gates));
}

void mlir::diffattn::buildLoopPasses(OpPassManager &pm,
                                     const CPUPipelineOptions &options) {
  const bool device = !options.gpuChip.empty();
  if (!device) {
    // Clones first: they become copies, which may be strided.
    pm.addPass(createConvertBufferizationToMemRefPass());
    pm.addNestedPass<func::FuncOp>(createReuseBuffersPass());
  }
  if (device) {
    pm.addPass(createConvertGpuLaunchToRuntimePass());
    pm.addPass(createConvertConstantToWeightPass());
  }
  ConvertDiffAttnToVectorPassOptions kernels;
  kernels.threads = options.threads;
  pm.addPass(createConvertDiffAttnToVectorPass(kernels));
  EmulateAmxPassOptions tiles;
  tiles.missingOnly = true;
  pm.addPass(createEmulateAmxPass(tiles));
  ConvertGemmToRuntimePassOptions products;
  products.threads = options.threads;
  products.isa = options.isa;
  products.prefetchBytes = options.prefetchBytes;
  products.device = device;
  products.batchInvariant =
      stringifyBatchInvariance(options.batchInvariance).str();
  pm.addPass(createConvertGemmToRuntimePass(products));
  pm.addNestedPass<func::FuncOp>(createConvertCopyToLoopsPass());
  ScopeArenaPassOptions scopes;
  scopes.device = device;
  pm.addPass(createScopeArenaPass(scopes));
  OpPassManager &functions = pm.nest<func::FuncOp>();
  functions.addPass(createConvertLinalgToRegisterLoopsPass());
  functions.addPass(createExpandMathPass());
  functions.addPass(createCanonicalizerPass());
  functions.addPass(createCSEPass());
}

void mlir::diffattn::buildLLVMPasses(OpPassManager &pm,
                                     const CPUPipelineOptions &options) {
  pm.addPass(createConvertBufferizationToMemRefPass());
  {
    OpPassManager &functions = pm.nest<func::FuncOp>();
    functions.addPass(createConvertSubviewToStridedPass());
    functions.addPass(memref::createFoldMemRefAliasOpsPass());
    functions.addPass(createConvertReshapeToStridedPass());
    functions.addPass(memref::createExpandStridedMetadataPass());
    functions.addPass(createLowerAffinePass());
    functions.addPass(createCanonicalizerPass());
    functions.addPass(createCSEPass());
    functions.addPass(createSCFToControlFlowPass());
  }
  // The work items of attention are functions of the LLVM dialect.
  pm.addPass(createSCFToControlFlowPass());
  pm.addPass(createConvertAssertToRuntimePass());
  pm.addPass(createExportFunctionsPass());
  pm.addPass(createConvertWeightToRuntimePass());
  ConvertAllocToRuntimePassOptions buffers;
  buffers.device = !options.gpuChip.empty();
  pm.addPass(createConvertAllocToRuntimePass(buffers));
  pm.addPass(createConvertMathToLLVMPass());
  pm.addPass(createConvertMathToLibmPass());
  pm.addPass(createConvertVectorToLLVMPass());
  pm.addPass(createFinalizeMemRefToLLVMConversionPass());
  pm.addPass(createConvertFuncToLLVMPass());
  pm.addPass(createConvertIndexToLLVMPass());
  pm.addPass(createConvertAmxToLLVMPass());
  pm.addPass(createConvertControlFlowToLLVMPass());
  pm.addPass(createArithToLLVMConversionPass());
  pm.addPass(createUBToLLVMConversionPass());
  pm.addPass(createConvertBitsToBytesPass());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
  pm.addPass(createVerifyLLVMPass());
}

void mlir::diffattn::buildCPUPipelineBetween(OpPassManager &pm,
                                             const CPUPipelineOptions &options,
                                             Stage from, Stage to) {
  auto isNext = [&](Stage stage) { return stage > from && stage <= to; };
  if (isNext(Stage::Raised))
    buildRaisePasses(pm, options, /*device=*/!options.gpuChip.empty());
  if (isNext(Stage::Scheduled))
    buildSchedulePasses(pm, options);
  if (isNext(Stage::Bufferized))
    buildBufferizePasses(pm, options, /*device=*/!options.gpuChip.empty());
  if (isNext(Stage::GPU) && !options.gpuChip.empty())
    buildGpuPasses(pm, options.gpuChip);
  if (isNext(Stage::Loops))
    buildLoopPasses(pm, options);
  if (isNext(Stage::LLVM))
    buildLLVMPasses(pm, options);
}

void mlir::diffattn::buildCPUPipelineUntil(OpPassManager &pm,
                                           const CPUPipelineOptions &options,
                                           Stage stage) {
  buildCPUPipelineBetween(pm, options, Stage::Input, stage);
}

void mlir::diffattn::buildCPUPipeline(OpPassManager &pm,
                                      const CPUPipelineOptions &options) {
  buildCPUPipelineUntil(pm, options, options.until);
}

void mlir::diffattn::registerCPUPipeline() {
  PassPipelineRegistration<CPUPipelineOptions>(
      "diffattn-cpu-pipeline",
      "Compile a module of tensor IR to the LLVM dialect for the CPU",
      buildCPUPipeline);
}
