//===- CpuPipeline.h - from tensors to the LLVM dialect -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_PIPELINES_CPUPIPELINE_H
#define DIFFATTN_PIPELINES_CPUPIPELINE_H

#include "DiffAttn/Schedule/BatchInvariance.h"

#include "mlir/Pass/PassManager.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <string>

namespace mlir::diffattn {

/// What a user can choose about the CPU pipeline. Whatever stands here changes
/// the code, so it belongs to the key of a cache of compiled code.
struct CpuPipelineOptions {
  /// Instruction set of the fused nests: native, avx512bf16, avx512, avx2 or
  /// generic.
  std::string isa = "native";
  /// Threads that the nests and products may use; 0 leaves it to the runtime.
  int64_t threads = 0;
  /// Whether to look for differential attention in unfused graphs.
  bool raise = true;
  /// Whether a row of a product must not depend on the other rows.
  BatchInvariance batchInvariance = BatchInvariance::Auto;
  /// Whether it is left out to check that indices and slices that are data lie
  /// inside of their buffers.
  bool unchecked = false;
  /// GPU chip for which everything but products becomes kernels, for example
  /// sm_80. Empty: none.
  std::string gpuChip;
};

/// Points at which the pipeline can be left, in its order.
enum class Stage { Input, Raised, Scheduled, Bufferized, GPU, Loops, LLVM };

/// The stage called `name` (input, raised, scheduled, bufferized, gpu, loops,
/// llvm). Without a GPU chip, `gpu` is `bufferized`.
std::optional<Stage> parseStage(StringRef name);
StringRef stringifyStage(Stage stage);

/// Appends the passes that take a module of tensor IR, or of functions on
/// memrefs, to the LLVM dialect. `pm` must run on `builtin.module`.
void buildCpuPipeline(OpPassManager &pm, const CpuPipelineOptions &options);

/// Appends the passes up to and with those that reach `stage`.
void buildCpuPipelineUntil(OpPassManager &pm, const CpuPipelineOptions &options,
                           Stage stage);

/// Appends the passes that lead from stage `from` to stage `to`.
void buildCpuPipelineBetween(OpPassManager &pm,
                             const CpuPipelineOptions &options, Stage from,
                             Stage to);

/// The steps between two stages, for pipelines of one's own.
void buildRaisePasses(OpPassManager &pm, const CpuPipelineOptions &options);
void buildSchedulePasses(OpPassManager &pm, const CpuPipelineOptions &options);
void buildBufferizePasses(OpPassManager &pm, const CpuPipelineOptions &options);
void buildGpuPasses(OpPassManager &pm, const CpuPipelineOptions &options);
void buildLoopPasses(OpPassManager &pm, const CpuPipelineOptions &options);
void buildLLVMPasses(OpPassManager &pm, const CpuPipelineOptions &options);

/// Registers `diffattn-cpu-pipeline`.
void registerCpuPipeline();

} // namespace mlir::diffattn

#endif // DIFFATTN_PIPELINES_CPUPIPELINE_H
