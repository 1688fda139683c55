//===- GpuPipeline.h - from tensors to PTX ----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_PIPELINES_GPUPIPELINE_H
#define DIFFATTN_PIPELINES_GPUPIPELINE_H

#include "mlir/Pass/PassManager.h"

#include <string>

namespace mlir::diffattn {

/// What a user can choose about the GPU pipeline.
struct GpuPipelineOptions {
  std::string chip = "sm_80";
  /// Whether to look for differential attention in unfused graphs.
  bool raise = true;
  /// Whether to run ptxas; else the pipeline ends with PTX.
  bool assemble = true;
  /// Stem of the files to write; empty to keep text and binary as attributes.
  std::string file;
  /// As in CpuPipelineOptions.
  bool unchecked = false;
};

/// Appends the passes that take a module of tensor IR, or of functions on
/// memrefs, to the stage `gpu` of CpuPipeline.h, and translate its kernels.
/// Host functions launch them and hold products; nothing of them computes.
/// `pm` must run on `builtin.module`.
void buildGpuPipeline(OpPassManager &pm, const GpuPipelineOptions &options);

/// Registers `diffattn-gpu-pipeline`.
void registerGpuPipeline();

} // namespace mlir::diffattn

#endif // DIFFATTN_PIPELINES_GPUPIPELINE_H
