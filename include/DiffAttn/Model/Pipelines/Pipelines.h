//===- Pipelines.h - models from tensors to machine code --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two pipelines over common stages, one for each kind of target:
// `diffattn-cpu-pipeline` and `diffattn-cuda-pipeline`. docs/pipelines.md says
// what each stage is made of and what holds after it.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_PIPELINES_PIPELINES_H
#define DIFFATTN_MODEL_PIPELINES_PIPELINES_H

#include "DiffAttn/Model/PassEnums.h"

#include "mlir/Pass/PassManager.h"

#include <cstdint>
#include <string>

namespace mlir::diffattn {

/// The machine that a module is compiled for: a CPU alone, or a GPU of NVIDIA
/// and the CPU that drives it.
struct Target {
  enum class Kind { CPU, CUDA };

  static Target cpu(std::string isa = "native") {
    return {Kind::CPU, std::move(isa), /*chip=*/""};
  }
  static Target cuda(std::string chip, std::string isa = "native") {
    return {Kind::CUDA, std::move(isa), std::move(chip)};
  }
  bool isCUDA() const { return kind == Kind::CUDA; }

  Kind kind = Kind::CPU;
  /// Instruction set of the code for the CPU, as avx512; native: the best of
  /// this machine.
  std::string isa = "native";
  /// Chip of a GPU's kernels, as sm_90a; of no meaning to a CPU alone.
  std::string chip;
};

/// The choices that a user has about a pipeline. Each of them changes the code,
/// so all belong to the key of a cache of compiled code.
struct PipelineOptions {
  Target target;
  /// Whether to look for differential attention in unfused graphs.
  bool raise = true;
  /// Whether to leave out checks of indices and slices that are data.
  bool unchecked = false;
  /// Whether code for a CPU reports the begin and end of its products and
  /// attentions to a trace.
  bool trace = false;
  /// Prefetch distance in bytes for weights, keys and values that are read
  /// once; 0: none, -1: the instruction set's.
  int64_t prefetchBytes = -1;
  /// The most threads to use; 0 leaves it to the runtime.
  int64_t threads = 0;
  /// Which products sum in one order, on a CPU.
  BatchInvariance batchInvariance = BatchInvariance::Auto;
  /// Files with this stem get what stages ptx and cubin make; empty: attributes
  /// of the `gpu.module`.
  std::string file;
};

/// The stages that the pipeline of a target has, in their order.
std::vector<Stage> getPipelineStages(Target::Kind target);

/// Adds the passes of the stages after `from` up to `to`. Stages ptx and cubin
/// end a pipeline: no other one is reached through them. Stages that the
/// target's pipeline does not have add nothing.
void buildPipeline(OpPassManager &pm, const PipelineOptions &options,
                   Stage to = Stage::LLVM, Stage from = Stage::Input);

/// Adds the passes of one stage, for pipelines of one's own.
void buildImportPasses(OpPassManager &pm, const PipelineOptions &options);
void buildRaisePasses(OpPassManager &pm, const PipelineOptions &options);
void buildSchedulePasses(OpPassManager &pm, const PipelineOptions &options);
void buildBufferizePasses(OpPassManager &pm, const PipelineOptions &options);
void buildGpuPasses(OpPassManager &pm, const PipelineOptions &options);
void buildLoopPasses(OpPassManager &pm, const PipelineOptions &options);
void buildLLVMPasses(OpPassManager &pm, const PipelineOptions &options);

/// Registers both pipelines by their names, and `diffattn-gpu-pipeline`, the
/// former name of the way to PTX and cubin.
void registerModelPipelines();

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_PIPELINES_PIPELINES_H
