//===- GpuPipeline.cpp - from memrefs to PTX ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Pipelines/GpuPipeline.h"

#include "DiffAttn/Conversion/Passes.h"

#include "mlir/Pass/PassOptions.h"
#include "mlir/Pass/PassRegistry.h"

using namespace mlir;
using namespace mlir::diffattn;

void mlir::diffattn::buildGpuPipeline(OpPassManager &pm,
                                      const GpuPipelineOptions &options) {
  SelectGpuSchedulePassOptions select;
  select.chip = options.chip;
  pm.addPass(createSelectGpuSchedulePass(select));
  ConvertDiffAttnToGpuPassOptions convert;
  convert.chip = options.chip;
  pm.addPass(createConvertDiffAttnToGpuPass(convert));
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
  Option<std::string> file{*this, "file", llvm::cl::init(""),
                           llvm::cl::desc("Write files with this stem")};
};
} // namespace

void mlir::diffattn::registerGpuPipeline() {
  PassPipelineRegistration<PipelineFlags>(
      "diffattn-gpu-pipeline",
      "From attention ops on memrefs to GPU kernels in PTX and cubin",
      [](OpPassManager &pm, const PipelineFlags &flags) {
        buildGpuPipeline(pm, {flags.chip, flags.assemble, flags.file});
      });
}
