//===- CommonPipeline.cpp - steps that all pipelines share ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Pipelines/CommonPipeline.h"

#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Schedule/Passes.h"
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Dialect/Bufferization/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MemRef/Transforms/Passes.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace mlir::diffattn;

std::optional<Stage> mlir::diffattn::parseStage(StringRef name) {
  return llvm::StringSwitch<std::optional<Stage>>(name)
      .Case("input", Stage::Input)
      .Case("raised", Stage::Raised)
      .Case("scheduled", Stage::Scheduled)
      .Case("bufferized", Stage::Bufferized)
      .Case("gpu", Stage::GPU)
      .Case("loops", Stage::Loops)
      .Case("llvm", Stage::LLVM)
      .Default(std::nullopt);
}

static void addSimplify(OpPassManager &pm) {
  // cse first: canonicalization before it leaves copies of a buffer to itself.
  pm.addPass(createCSEPass());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
}

void mlir::diffattn::buildRaisePasses(OpPassManager &pm,
                                      const CommonPipelineOptions &options,
                                      bool device) {
  pm.addPass(createInlineResourcesPass());
  // Raised ops state less about sizes than the ops that they replace.
  CheckSizesPassOptions sizes;
  sizes.device = device;
  pm.addNestedPass<func::FuncOp>(createCheckSizesPass(sizes));
  if (options.raise)
    pm.addNestedPass<func::FuncOp>(createFuseDifferentialPass());
}

void mlir::diffattn::buildTensorPasses(OpPassManager &pm, bool device) {
  DecomposePassOptions decompose;
  decompose.target = device ? "gpu" : "cpu";
  pm.addPass(createDecomposePass(decompose));
  OpPassManager &functions = pm.nest<func::FuncOp>();
  functions.addPass(createDecomposeTensorOpsPass());
  functions.addPass(createCanonicalizerPass());
  functions.addPass(createCSEPass());
  if (device) {
    functions.addPass(createScalarCountersPass());
    functions.addPass(createCanonicalizerPass());
  }
  // Before fusion, which would pull reshapes through products.
  ConvertLinalgToGemmPassOptions products;
  products.convolutions = !device;
  functions.addPass(createConvertLinalgToGemmPass(products));
  functions.addPass(createWidenReductionsPass());
  functions.addPass(createFuseElementwisePass());
  functions.addPass(createRelaxReductionsPass());
  functions.addPass(createCanonicalizerPass());
}

void mlir::diffattn::buildBufferizePasses(OpPassManager &pm,
                                          const CommonPipelineOptions &options,
                                          bool device) {
  pm.addPass(createBindWeightsPass());
  if (device)
    pm.addPass(createMergeGemmsPass());
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
  addSimplify(pm);
  pm.addPass(bufferization::createDropEquivalentBufferResultsPass());
  addSimplify(pm);
  if (options.unchecked)
    return;
  OpPassManager &checked = pm.nest<func::FuncOp>();
  checked.addPass(createCheckAccessesPass());
  checked.addPass(createCanonicalizerPass());
  checked.addPass(createCSEPass());
}
