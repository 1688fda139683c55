//===- CommonStages.h - passes that stages of targets share -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_PIPELINES_COMMONSTAGES_H
#define DIFFATTN_LIB_MODEL_PIPELINES_COMMONSTAGES_H

#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Pipelines/Pipelines.h"
#include "DiffAttn/Transforms/Passes.h"

namespace mlir::diffattn {

/// A stage of a target's pipeline and the function that adds its passes.
struct StagePasses {
  Stage stage;
  void (*add)(OpPassManager &pm, const PipelineOptions &options);
};

/// The stages of each target in their order.
ArrayRef<StagePasses> getCPUStages();
ArrayRef<StagePasses> getCUDAStages();

/// Passes of stage imported: facts that front doors state, their opaque ops.
void addImport(OpPassManager &pm, const PipelineOptions &options);

/// Checks of sizes, then attention found in unfused graphs.
void addRaising(OpPassManager &pm, const PipelineOptions &options,
                const CheckSizesPassOptions &sizes);

/// Ops of tensors without a lowering as linalg; of functions.
void addTensorCleanup(OpPassManager &functions);

/// Contractions as products, then the fusion of what is left; of functions.
void addProducts(OpPassManager &functions,
                 const ConvertLinalgToGemmPassOptions &products);

/// Tensors with weights in their table as buffers, with checks of accesses.
void addBufferization(OpPassManager &pm, const PipelineOptions &options);

/// Attention's kernels for the CPU, products as calls, the rest as loops.
void addKernelsAndLoops(OpPassManager &pm, const PipelineOptions &options,
                        ConvertGemmToRuntimePassOptions products,
                        const ScopeArenaPassOptions &scopes);

/// Loops and buffers as the LLVM dialect.
void addLLVM(OpPassManager &pm,
             const ConvertAllocToRuntimePassOptions &buffers);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_PIPELINES_COMMONSTAGES_H
