//===- CpuPipeline.cpp - from tensors to the LLVM dialect -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Pipelines/CpuPipeline.h"

#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/Schedule/Passes.h"
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Bufferization/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/Passes.h"
#include "mlir/Dialect/MemRef/Transforms/Passes.h"
#include "mlir/Pass/PassRegistry.h"
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

StringRef mlir::diffattn::stringifyStage(Stage stage) {
  switch (stage) {
  case Stage::Input:
    return "input";
  case Stage::Raised:
    return "raised";
  case Stage::Scheduled:
    return "scheduled";
  case Stage::Bufferized:
    return "bufferized";
  case Stage::GPU:
    return "gpu";
  case Stage::Loops:
    return "loops";
  case Stage::LLVM:
    return "llvm";
  }
  llvm_unreachable("not a stage");
}

static void addSimplify(OpPassManager &pm) {
  // cse first: canonicalization before it leaves copies of a buffer to itself.
  pm.addPass(createCSEPass());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
}

void mlir::diffattn::buildRaisePasses(OpPassManager &pm,
                                      const CpuPipelineOptions &options) {
  pm.addPass(createInlineResourcesPass());
  // Raised ops state less about sizes than the ops that they replace.
  pm.addNestedPass<func::FuncOp>(createCheckSizesPass());
  if (options.raise)
    pm.addNestedPass<func::FuncOp>(createFuseDifferentialPass());
}

void mlir::diffattn::buildSchedulePasses(OpPassManager &pm,
                                         const CpuPipelineOptions &options) {
  if (!options.gpuChip.empty()) {
    // What has a kernel must not be decomposed; what has none is.
    SelectGpuSchedulePassOptions selectGpu;
    selectGpu.chip = options.gpuChip;
    pm.addPass(createSelectGpuSchedulePass(selectGpu));
  } else {
    SelectSchedulePassOptions select;
    select.isa = options.isa;
    pm.addPass(createSelectSchedulePass(select));
  }
  pm.addPass(createDecomposePass());
  OpPassManager &functions = pm.nest<func::FuncOp>();
  functions.addPass(createDecomposeTensorOpsPass());
  functions.addPass(createCanonicalizerPass());
  functions.addPass(createCSEPass());
  // Before fusion, which would pull reshapes through products.
  functions.addPass(createFormGemmPass());
  functions.addPass(createFuseElementwisePass());
  functions.addPass(createRelaxReductionsPass());
  functions.addPass(createCanonicalizerPass());
}

void mlir::diffattn::buildBufferizePasses(OpPassManager &pm,
                                          const CpuPipelineOptions &options) {
  pm.addPass(createBindWeightsPass());
  pm.addPass(createProtectArgumentsPass());
  OpPassManager &functions = pm.nest<func::FuncOp>();
  functions.addPass(memref::createResolveShapedTypeResultDimsPass());
  functions.addPass(createCanonicalizerPass());
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

void mlir::diffattn::buildGpuPasses(OpPassManager &pm,
                                    const CpuPipelineOptions &options) {
  if (options.gpuChip.empty())
    return;
  // First, while buffers of attention are operands that can be seen.
  ConvertLinalgToGpuPassOptions others;
  others.chip = options.gpuChip;
  pm.addPass(createConvertLinalgToGpuPass(others));
  ConvertDiffAttnToGpuPassOptions kernels;
  kernels.chip = options.gpuChip;
  pm.addPass(createConvertDiffAttnToGpuPass(kernels));
  pm.addNestedPass<func::FuncOp>(createCanonicalizerPass());
  pm.addNestedPass<func::FuncOp>(createCSEPass());
}

void mlir::diffattn::buildLoopPasses(OpPassManager &pm,
                                     const CpuPipelineOptions &options) {
  const bool device = !options.gpuChip.empty();
  if (device) {
    pm.addPass(createConvertGpuLaunchToRuntimePass());
    pm.addPass(createConvertConstantToWeightPass());
  }
  ConvertDiffAttnToVectorPassOptions nests;
  nests.threads = options.threads;
  pm.addPass(createConvertDiffAttnToVectorPass(nests));
  ConvertGemmToRuntimePassOptions products;
  products.threads = options.threads;
  products.isa = options.isa;
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
                                     const CpuPipelineOptions &options) {
  {
    OpPassManager &functions = pm.nest<func::FuncOp>();
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
  pm.addPass(createConvertControlFlowToLLVMPass());
  pm.addPass(createArithToLLVMConversionPass());
  pm.addPass(createUBToLLVMConversionPass());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
}

void mlir::diffattn::buildCpuPipelineBetween(OpPassManager &pm,
                                             const CpuPipelineOptions &options,
                                             Stage from, Stage to) {
  using Build = void (*)(OpPassManager &, const CpuPipelineOptions &);
  static constexpr std::pair<Stage, Build> steps[] = {
      {Stage::Raised, buildRaisePasses},
      {Stage::Scheduled, buildSchedulePasses},
      {Stage::Bufferized, buildBufferizePasses},
      {Stage::GPU, buildGpuPasses},
      {Stage::Loops, buildLoopPasses},
      {Stage::LLVM, buildLLVMPasses}};
  for (auto [stage, build] : steps)
    if (stage > from && stage <= to)
      build(pm, options);
}

void mlir::diffattn::buildCpuPipelineUntil(OpPassManager &pm,
                                           const CpuPipelineOptions &options,
                                           Stage stage) {
  buildCpuPipelineBetween(pm, options, Stage::Input, stage);
}

void mlir::diffattn::buildCpuPipeline(OpPassManager &pm,
                                      const CpuPipelineOptions &options) {
  buildCpuPipelineUntil(pm, options, Stage::LLVM);
}

namespace {
/// The textual form of CpuPipelineOptions.
struct PipelineOptions : PassPipelineOptions<PipelineOptions> {
  Option<std::string> isa{
      *this, "isa",
      llvm::cl::desc(
          "instruction set: native, avx512bf16, avx512, avx2 or generic"),
      llvm::cl::init("native")};
  Option<int64_t> threads{
      *this, "threads",
      llvm::cl::desc("most threads to use; 0 leaves it to the runtime"),
      llvm::cl::init(0)};
  Option<bool> raise{
      *this, "raise",
      llvm::cl::desc("look for differential attention in unfused graphs"),
      llvm::cl::init(true)};
  Option<BatchInvariance> batchInvariance{
      *this, "batch-invariant",
      llvm::cl::desc(
          "whether a row of a product must not depend on the others"),
      llvm::cl::init(BatchInvariance::Auto),
      llvm::cl::values(
          clEnumValN(BatchInvariance::Auto, "auto",
                     "products with weights, where it is as fast"),
          clEnumValN(BatchInvariance::Always, "true", "all products"),
          clEnumValN(BatchInvariance::Never, "false", "no product"))};
  Option<bool> unchecked{
      *this, "unchecked",
      llvm::cl::desc("do not check indices and slices that are data"),
      llvm::cl::init(false)};
  Option<std::string> gpuChip{
      *this, "gpu-chip",
      llvm::cl::desc(
          "GPU chip for whose kernels all but products is; empty: none"),
      llvm::cl::init("")};
  Option<Stage> until{
      *this, "until", llvm::cl::desc("stop after this stage"),
      llvm::cl::init(Stage::LLVM),
      llvm::cl::values(clEnumValN(Stage::Input, "input", "what came in"),
                       clEnumValN(Stage::Raised, "raised",
                                  "attention found in unfused graphs"),
                       clEnumValN(Stage::Scheduled, "scheduled",
                                  "schedules chosen, element-wise ops fused"),
                       clEnumValN(Stage::Bufferized, "bufferized",
                                  "tensors turned into buffers"),
                       clEnumValN(Stage::GPU, "gpu", "GPU kernels emitted"),
                       clEnumValN(Stage::Loops, "loops",
                                  "nests and loops emitted, products called"),
                       clEnumValN(Stage::LLVM, "llvm", "the LLVM dialect"))};
};
} // namespace

void mlir::diffattn::registerCpuPipeline() {
  PassPipelineRegistration<PipelineOptions>(
      "diffattn-cpu-pipeline",
      "Compile a module of tensor IR to the LLVM dialect for the CPU",
      [](OpPassManager &pm, const PipelineOptions &parsed) {
        CpuPipelineOptions options;
        options.isa = parsed.isa;
        options.threads = parsed.threads;
        options.raise = parsed.raise;
        options.batchInvariance = parsed.batchInvariance;
        options.unchecked = parsed.unchecked;
        options.gpuChip = parsed.gpuChip;
        buildCpuPipelineUntil(pm, options, parsed.until);
      });
}
