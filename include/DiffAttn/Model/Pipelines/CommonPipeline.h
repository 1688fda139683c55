//===- CommonPipeline.h - steps that all pipelines share --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_PIPELINES_COMMONPIPELINE_H
#define DIFFATTN_MODEL_PIPELINES_COMMONPIPELINE_H

#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassOptions.h"

#include <optional>

namespace mlir::diffattn {

/// What can be chosen about every pipeline. The structs of options are also
/// their textual form: a member stands for the option of that name.
struct CommonPipelineOptions : public virtual ::mlir::detail::PassOptions {
  Option<bool> raise{
      *this, "raise",
      llvm::cl::desc("look for differential attention in unfused graphs"),
      llvm::cl::init(true)};
  Option<bool> unchecked{
      *this, "unchecked",
      llvm::cl::desc("do not check indices and slices that are data"),
      llvm::cl::init(false)};
};

/// Points at which a pipeline can be left, in its order.
enum class Stage { Input, Raised, Scheduled, Bufferized, GPU, Loops, LLVM };

/// The stage called `name` (input, raised, scheduled, bufferized, gpu, loops,
/// llvm). Without a GPU chip, `gpu` is `bufferized`.
std::optional<Stage> parseStage(StringRef name);

/// To `raised`: sizes are checked, attention is found in unfused graphs.
/// `device`: tensors lie in a device's memory.
void buildRaisePasses(OpPassManager &pm, const CommonPipelineOptions &options,
                      bool device = false);
/// The rest of `scheduled`, after a pass that chose schedules: what has none
/// becomes linalg, products are formed, element-wise ops fused. `device` as
/// above: schedules for GPUs count, else those for CPUs.
void buildTensorPasses(OpPassManager &pm, bool device = false);
/// From `scheduled` to `bufferized`. `device` as above: products that read the
/// same rows become one.
void buildBufferizePasses(OpPassManager &pm,
                          const CommonPipelineOptions &options,
                          bool device = false);

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_PIPELINES_COMMONPIPELINE_H
