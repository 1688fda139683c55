//===- CommonStages.cpp - passes that stages of targets share -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CommonStages.h"

#include "DiffAttn/Pipelines/AttentionPipeline.h"
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Bufferization/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MemRef/Transforms/Passes.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace mlir::diffattn;

static void addSimplification(OpPassManager &pm) {
  // cse first: canonicalization before it leaves copies of a buffer to itself.
  pm.addPass(createCSEPass());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
}

void mlir::diffattn::addImport(OpPassManager &pm, const PipelineOptions &) {
  // Errors number the arguments as the importer did, weights among them.
  pm.addNestedPass<func::FuncOp>(createImportSizesPass());
  pm.addPass(createImportWeightsPass());
  pm.addPass(createImportBuiltinsPass());
}

void mlir::diffattn::addRaising(OpPassManager &pm,
                                const PipelineOptions &options,
                                const CheckSizesPassOptions &sizes) {
  pm.addPass(createInlineResourcesPass());
  // Raised ops state less about sizes than the ops that they replace.
  pm.addNestedPass<func::FuncOp>(createCheckSizesPass(sizes));
  if (options.raise)
    pm.addNestedPass<func::FuncOp>(createFuseDifferentialPass());
}

void mlir::diffattn::addTensorCleanup(OpPassManager &functions) {
  functions.addPass(createDecomposeTensorOpsPass());
  functions.addPass(createCanonicalizerPass());
  functions.addPass(createCSEPass());
}

void mlir::diffattn::addProducts(
    OpPassManager &functions, const ConvertLinalgToGemmPassOptions &products) {
  // Before fusion, which would pull reshapes through products.
  functions.addPass(createConvertLinalgToGemmPass(products));
  functions.addPass(createWidenReductionsPass());
  functions.addPass(createFuseElementwisePass());
  functions.addPass(createRelaxReductionsPass());
  functions.addPass(createCanonicalizerPass());
}

void mlir::diffattn::addBufferization(OpPassManager &pm,
                                      const PipelineOptions &options) {
  pm.addPass(createMarkReadOnlyArgumentsPass());
  {
    OpPassManager &functions = pm.nest<func::FuncOp>();
    functions.addPass(memref::createResolveShapedTypeResultDimsPass());
    functions.addPass(createCanonicalizerPass());
  }
  pm.addPass(createSeparateResultsPass());
  OpPassManager &functions = pm.nest<func::FuncOp>();
  functions.addPass(createSplitDestinationsPass());
  functions.addPass(bufferization::createEmptyTensorEliminationPass());
  functions.addPass(bufferization::createEmptyTensorToAllocTensorPass());
  bufferization::OneShotBufferizePassOptions bufferize;
  bufferize.bufferizeFunctionBoundaries = true;
  bufferize.functionBoundaryTypeConversion =
      bufferization::LayoutMapOption::IdentityLayoutMap;
  bufferize.bufferAlignment = 64;
  bufferize.allowReturnAllocsFromLoops = true;
  pm.addPass(bufferization::createOneShotBufferizePass(bufferize));
  // Loops that yield their own arguments go first, then results that are
  // arguments of the function can be seen.
  addSimplification(pm);
  pm.addPass(bufferization::createDropEquivalentBufferResultsPass());
  addSimplification(pm);
  if (options.unchecked)
    return;
  OpPassManager &checked = pm.nest<func::FuncOp>();
  checked.addPass(createCheckAccessesPass());
  checked.addPass(createCanonicalizerPass());
  checked.addPass(createCSEPass());
}

void mlir::diffattn::addKernelsAndLoops(
    OpPassManager &pm, const PipelineOptions &options,
    ConvertGemmToRuntimePassOptions products,
    const ScopeArenaPassOptions &scopes) {
  addCPUKernels(pm, options.threads);
  products.threads = options.threads;
  products.isa = options.target.isa;
  products.prefetchBytes = options.prefetchBytes;
  pm.addPass(createConvertGemmToRuntimePass(products));
  pm.addNestedPass<func::FuncOp>(createConvertCopyToLoopsPass());
  pm.addPass(createScopeArenaPass(scopes));
  OpPassManager &functions = pm.nest<func::FuncOp>();
  functions.addPass(createConvertLinalgToRegisterLoopsPass());
  functions.addPass(createExpandMathPass());
  functions.addPass(createCanonicalizerPass());
  functions.addPass(createCSEPass());
}

void mlir::diffattn::addLLVM(OpPassManager &pm,
                             const ConvertAllocToRuntimePassOptions &buffers) {
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
  pm.addPass(createConvertAllocToRuntimePass(buffers));
  addLLVMConversions(pm);
  pm.addPass(createConvertBitsToBytesPass());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
  pm.addPass(createVerifyLLVMPass());
}
