//===- AttentionPipeline.cpp - attention to the LLVM dialect --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Pipelines/AttentionPipeline.h"

#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/Schedule/Passes.h"
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Bufferization/Pipelines/Passes.h"
#include "mlir/Dialect/Bufferization/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/Passes.h"
#include "mlir/Dialect/MemRef/Transforms/Passes.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace mlir::diffattn;

void mlir::diffattn::addLLVMConversions(OpPassManager &pm) {
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
}

static void addScheduling(OpPassManager &pm,
                          const AttentionPipelineOptions &options) {
  pm.addPass(createImportBuiltinsPass());
  if (options.raise)
    pm.addNestedPass<func::FuncOp>(createFuseDifferentialPass());
  // A schedule is one sequence's own.
  pm.addPass(createUnpackSequencesPass());
  SelectSchedulePassOptions select;
  select.isa = options.isa;
  select.prefetchBytes = options.prefetchBytes;
  pm.addPass(createSelectSchedulePass(select));
  DecomposePassOptions decompose;
  decompose.target = "cpu";
  pm.addPass(createDecomposePass(decompose));
}

static void addBufferization(OpPassManager &pm) {
  bufferization::OneShotBufferizePassOptions bufferize;
  bufferize.bufferizeFunctionBoundaries = true;
  bufferize.functionBoundaryTypeConversion =
      bufferization::LayoutMapOption::IdentityLayoutMap;
  pm.addPass(bufferization::createOneShotBufferizePass(bufferize));
  bufferization::BufferDeallocationPipelineOptions deallocate;
  bufferization::buildBufferDeallocationPipeline(pm, deallocate);
  pm.addPass(createConvertBufferizationToMemRefPass());
}

void mlir::diffattn::addCPUKernels(OpPassManager &pm, int64_t threads) {
  ConvertDiffAttnToVectorPassOptions kernels;
  kernels.threads = threads;
  pm.addPass(createConvertDiffAttnToVectorPass(kernels));
  EmulateAmxPassOptions tiles;
  tiles.missingOnly = true;
  pm.addPass(createEmulateAmxPass(tiles));
}

static void addLLVM(OpPassManager &pm) {
  OpPassManager &functions = pm.nest<func::FuncOp>();
  functions.addPass(createConvertLinalgToLoopsPass());
  functions.addPass(memref::createExpandStridedMetadataPass());
  functions.addPass(createLowerAffinePass());
  // The work items of attention are functions of the LLVM dialect.
  pm.addPass(createSCFToControlFlowPass());
  addLLVMConversions(pm);
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
}

void mlir::diffattn::buildAttentionPipeline(
    OpPassManager &pm, const AttentionPipelineOptions &options) {
  addScheduling(pm, options);
  addBufferization(pm);
  addCPUKernels(pm, options.threads);
  addLLVM(pm);
}

void mlir::diffattn::registerAttentionPipeline() {
  PassPipelineRegistration<AttentionPipelineOptions>(
      "diffattn-attention-pipeline",
      "Compile attention to kernels for the CPU, and what is around it by "
      "upstream's conversions, to the LLVM dialect",
      buildAttentionPipeline);
}
