//===- Pipelines.cpp - pipelines of models by target ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Pipelines/Pipelines.h"

#include "CommonStages.h"

using namespace mlir;
using namespace mlir::diffattn;

static ArrayRef<StagePasses> getStages(Target::Kind target) {
  return target == Target::Kind::CUDA ? getCUDAStages() : getCPUStages();
}

std::vector<Stage> mlir::diffattn::getPipelineStages(Target::Kind target) {
  std::vector<Stage> stages = {Stage::Input};
  for (const StagePasses &passes : getStages(target))
    stages.push_back(passes.stage);
  return stages;
}

/// Whether a stage takes kernels out of the way to an object.
static bool isDeviceCode(Stage stage) {
  return stage == Stage::PTX || stage == Stage::Cubin;
}

void mlir::diffattn::buildPipeline(OpPassManager &pm,
                                   const PipelineOptions &options, Stage to,
                                   Stage from) {
  for (const StagePasses &passes : getStages(options.target.kind))
    if (passes.stage > from && passes.stage <= to &&
        (!isDeviceCode(passes.stage) || passes.stage == to))
      passes.add(pm, options);
}

static void buildStage(OpPassManager &pm, const PipelineOptions &options,
                       Stage stage) {
  for (const StagePasses &passes : getStages(options.target.kind))
    if (passes.stage == stage)
      passes.add(pm, options);
}

void mlir::diffattn::buildImportPasses(OpPassManager &pm,
                                       const PipelineOptions &options) {
  buildStage(pm, options, Stage::Imported);
}

void mlir::diffattn::buildRaisePasses(OpPassManager &pm,
                                      const PipelineOptions &options) {
  buildStage(pm, options, Stage::Raised);
}

void mlir::diffattn::buildSchedulePasses(OpPassManager &pm,
                                         const PipelineOptions &options) {
  buildStage(pm, options, Stage::Scheduled);
}

void mlir::diffattn::buildBufferizePasses(OpPassManager &pm,
                                          const PipelineOptions &options) {
  buildStage(pm, options, Stage::Bufferized);
}

void mlir::diffattn::buildGpuPasses(OpPassManager &pm,
                                    const PipelineOptions &options) {
  buildStage(pm, options, Stage::GPU);
}

void mlir::diffattn::buildLoopPasses(OpPassManager &pm,
                                     const PipelineOptions &options) {
  buildStage(pm, options, Stage::Loops);
}

void mlir::diffattn::buildLLVMPasses(OpPassManager &pm,
                                     const PipelineOptions &options) {
  buildStage(pm, options, Stage::LLVM);
}
