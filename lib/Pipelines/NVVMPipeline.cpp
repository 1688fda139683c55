//===- GpuPipeline.cpp - from tensors to PTX ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Pipelines/GpuPipeline.h"

#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/Pipelines/CpuPipeline.h"

#include "mlir/Pass/PassOptions.h"
#include "mlir/Pass/PassRegistry.h"

using namespace mlir;
using namespace mlir::diffattn;

void mlir::diffattn::buildGpuPipeline(OpPassManager &pm,
                                      const GpuPipelineOptions &options) {
  CpuPipelineOptions host;
  host.raise = options.raise;
  host.unchecked = options.unchecked;
  host.gpuChip = options.chip;
  buildCpuPipelineUntil(pm, host, Stage::GPU);
  GpuToPtxPassOptions ptx;
  ptx.chip = options.chip;
  ptx.assemble = options.assemble;
  ptx.file = options.file;
  pm.addPass(createGpuToPtxPass(ptx));
}

namespace {
struct PipelineFlags : PassPipelineOptions<PipelineFlags> {
  Option<std::string> chip{
      *this, "chip", llvm::cl::init("sm_80"),
      llvm::cl::desc("Chip: sm_80, sm_86, sm_89, sm_90 or newer")};
  Option<bool> assemble{*this, "assemble", llvm::cl::init(true),
                        llvm::cl::desc("Run ptxas")};
  Option<bool> raise{
      *this, "raise", llvm::cl::init(true),
      llvm::cl::desc("Look for differential attention in unfused graphs")};
  Option<std::string> file{*this, "file", llvm::cl::init(""),
                           llvm::cl::desc("Write files with this stem")};
  Option<bool> unchecked{
      *this, "unchecked", llvm::cl::init(false),
      llvm::cl::desc("Do not check indices and slices that are data")};
};
} // namespace

void mlir::diffattn::registerGpuPipeline() {
  PassPipelineRegistration<PipelineFlags>(
      "diffattn-gpu-pipeline",
      "From a module of tensor IR to GPU kernels in PTX and cubin, and host "
      "functions that launch them",
      [](OpPassManager &pm, const PipelineFlags &flags) {
        buildGpuPipeline(pm, {flags.chip, flags.raise, flags.assemble,
                              flags.file, flags.unchecked});
      });
}
