//===- CPUPipeline.h - from tensors to the LLVM dialect ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_PIPELINES_CPUPIPELINE_H
#define DIFFATTN_MODEL_PIPELINES_CPUPIPELINE_H

#include "DiffAttn/Model/Pipelines/CommonPipeline.h"
#include "DiffAttn/Model/Schedule/BatchInvariance.h"

#include <cstdint>
#include <string>

namespace mlir::diffattn {

/// What a user can choose about the pipeline for CPUs. Whatever stands here
/// changes the code, so it belongs to the key of a cache of compiled code.
struct CPUPipelineOptions : public PassPipelineOptions<CPUPipelineOptions>,
                            public CommonPipelineOptions {
  Option<std::string> isa{
      *this, "isa",
      llvm::cl::desc(
          "instruction set, as avx512; native: the best of this machine"),
      llvm::cl::init("native")};
  Option<int64_t> prefetchBytes{
      *this, "prefetch-bytes",
      llvm::cl::desc("how far ahead of weights, keys and values that are read "
                     "once lines are asked for; 0: not at all, -1: as the "
                     "instruction set has it"),
      llvm::cl::init(-1)};
  Option<int64_t> threads{
      *this, "threads",
      llvm::cl::desc("most threads to use; 0 leaves it to the runtime"),
      llvm::cl::init(0)};
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
  Option<std::string> gpuChip{
      *this, "gpu-chip",
      llvm::cl::desc("compile everything except matrix products to kernels for "
                     "this GPU chip, e.g. sm_80; empty: no GPU kernels"),
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
                                  "kernels and loops emitted, products called"),
                       clEnumValN(Stage::LLVM, "llvm", "the LLVM dialect"))};
};

/// Appends the passes that take a module of tensor IR, or of functions on
/// memrefs, to the stage `options.until`. `pm` must run on `builtin.module`.
void buildCPUPipeline(OpPassManager &pm, const CPUPipelineOptions &options);

/// Appends the passes up to and with those that reach `stage`.
void buildCPUPipelineUntil(OpPassManager &pm, const CPUPipelineOptions &options,
                           Stage stage);

/// Appends the passes that lead from stage `from` to stage `to`.
void buildCPUPipelineBetween(OpPassManager &pm,
                             const CPUPipelineOptions &options, Stage from,
                             Stage to);

/// The steps between two stages, for pipelines of one's own, with those of
/// CommonPipeline.h and NVVMPipeline.h.
void buildSchedulePasses(OpPassManager &pm, const CPUPipelineOptions &options);
void buildLoopPasses(OpPassManager &pm, const CPUPipelineOptions &options);
void buildLLVMPasses(OpPassManager &pm, const CPUPipelineOptions &options);

/// Registers `diffattn-cpu-pipeline`.
void registerCPUPipeline();

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_PIPELINES_CPUPIPELINE_H
