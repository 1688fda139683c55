//===- AttentionPipeline.h - attention to the LLVM dialect ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The pipeline of the attention core alone: our kernels for attention, and
// upstream's conversions for all else. Models go through
// DiffAttn/Model/Pipelines/Pipelines.h, which brings products, fused loops,
// checks and weights.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_PIPELINES_ATTENTIONPIPELINE_H
#define DIFFATTN_PIPELINES_ATTENTIONPIPELINE_H

#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassOptions.h"

#include <cstdint>
#include <string>

namespace mlir::diffattn {

/// Options as text of code for the CPU.
struct CPUCodeOptions : public virtual ::mlir::detail::PassOptions {
  Option<std::string> isa{
      *this, "isa",
      llvm::cl::desc("instruction set of the code for the CPU, as avx512; "
                     "native: the best of this machine"),
      llvm::cl::init("native")};
  Option<int64_t> prefetchBytes{
      *this, "prefetch-bytes",
      llvm::cl::desc("how far ahead of keys, values and weights that are read "
                     "once lines are asked for; 0: not at all, -1: as the "
                     "instruction set has it"),
      llvm::cl::init(-1)};
  Option<int64_t> threads{
      *this, "threads",
      llvm::cl::desc("most threads to use; 0 leaves it to the runtime"),
      llvm::cl::init(0)};
};

/// Options as text of what is looked for.
struct RaisingOptions : public virtual ::mlir::detail::PassOptions {
  Option<bool> raise{
      *this, "raise",
      llvm::cl::desc("look for differential attention in unfused graphs"),
      llvm::cl::init(true)};
};

/// Options of `diffattn-attention-pipeline`, also in its textual form.
struct AttentionPipelineOptions
    : public PassPipelineOptions<AttentionPipelineOptions>,
      public CPUCodeOptions,
      public RaisingOptions {};

/// Adds the passes that take a module of tensors or buffers to the LLVM
/// dialect: opaque ops of importers, raising, schedules, `diffattn-decompose`
/// for attention without a kernel, bufferization, kernels for CPUs, and
/// upstream's conversions for what is left. Compiled code calls
/// libDiffAttnRuntime.so for threads and memory of kernels, and malloc and free
/// for other buffers. Sizes and indices are taken as they are.
void buildAttentionPipeline(OpPassManager &pm,
                            const AttentionPipelineOptions &options);

/// Adds the passes that make kernels for CPUs of scheduled attention on
/// buffers, which use at most `threads` threads; 0 leaves it to the runtime.
void addCPUKernels(OpPassManager &pm, int64_t threads);

/// Adds the conversions of a module's ops to the LLVM dialect: upstream's, and
/// that of AMX.
void addLLVMConversions(OpPassManager &pm);

/// Registers `diffattn-attention-pipeline`.
void registerAttentionPipeline();

} // namespace mlir::diffattn

#endif // DIFFATTN_PIPELINES_ATTENTIONPIPELINE_H
