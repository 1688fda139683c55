//===- NVVMPipeline.h - from tensors to PTX ---------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_PIPELINES_NVVMPIPELINE_H
#define DIFFATTN_MODEL_PIPELINES_NVVMPIPELINE_H

#include "DiffAttn/Model/Pipelines/CommonPipeline.h"

#include <string>

namespace mlir::diffattn {

/// What a user can choose about the pipeline for GPUs.
struct NVVMPipelineOptions : public PassPipelineOptions<NVVMPipelineOptions>,
                             public CommonPipelineOptions {
  Option<std::string> chip{
      *this, "chip", llvm::cl::init("sm_80"),
      llvm::cl::desc("chip: sm_80, sm_86, sm_89, sm_90, sm_90a or newer")};
  Option<bool> assemble{
      *this, "assemble", llvm::cl::init(true),
      llvm::cl::desc("run ptxas; else the pipeline ends with PTX")};
  Option<std::string> file{
      *this, "file", llvm::cl::init(""),
      llvm::cl::desc("write files with this stem; empty: keep text and binary "
                     "as attributes")};
};

/// From `raised` to `scheduled`: chooses kernels for `chip`.
void buildGpuSchedulePasses(OpPassManager &pm, StringRef chip);
/// From `bufferized` to `gpu`: emits the kernels.
void buildGpuPasses(OpPassManager &pm, StringRef chip);

/// Appends the passes that take a module of tensor IR, or of functions on
/// memrefs, to the stage `gpu`, and translate its kernels. Host functions
/// launch them and hold products; nothing of them computes. `pm` must run on
/// `builtin.module`.
void buildNVVMPipeline(OpPassManager &pm, const NVVMPipelineOptions &options);

/// Registers `diffattn-gpu-pipeline`.
void registerNVVMPipeline();

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_PIPELINES_NVVMPIPELINE_H
