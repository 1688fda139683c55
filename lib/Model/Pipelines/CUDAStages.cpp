//===- CUDAStages.cpp - passes for a GPU ----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CommonStages.h"

#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Schedule/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace mlir::diffattn;

static void addCUDARaising(OpPassManager &pm, const PipelineOptions &options) {
  CheckSizesPassOptions sizes;
  sizes.device = true;
  addRaising(pm, options, sizes);
}

static void addCUDASchedules(OpPassManager &pm,
                             const PipelineOptions &options) {
  // Schedules come before the decomposition, which takes ops without a kernel.
  SelectGpuSchedulePassOptions select;
  select.chip = options.target.chip;
  pm.addPass(createSelectGpuSchedulePass(select));
  DecomposePassOptions decompose;
  decompose.target = "gpu";
  pm.addPass(createDecomposePass(decompose));
  OpPassManager &functions = pm.nest<func::FuncOp>();
  addTensorCleanup(functions);
  functions.addPass(createScalarCountersPass());
  functions.addPass(createCanonicalizerPass());
  ConvertLinalgToGemmPassOptions products;
  products.convolutions = false;
  addProducts(functions, products);
}

static void addCUDABuffers(OpPassManager &pm, const PipelineOptions &options) {
  pm.addPass(createBindWeightsPass());
  pm.addPass(createMergeGemmsPass());
  addBufferization(pm, options);
}

static void addGpuKernels(OpPassManager &pm, const PipelineOptions &options) {
  // First, while buffers of attention are operands that can be seen.
  ConvertLinalgToGpuPassOptions others;
  others.chip = options.target.chip;
  pm.addPass(createConvertLinalgToGpuPass(others));
  ConvertDiffAttnToGpuPassOptions kernels;
  kernels.chip = options.target.chip;
  pm.addPass(createConvertDiffAttnToGpuPass(kernels));
  pm.addNestedPass<func::FuncOp>(createCanonicalizerPass());
  pm.addNestedPass<func::FuncOp>(createCSEPass());
}

static void addDeviceCode(OpPassManager &pm, const PipelineOptions &options,
                          bool assemble) {
  GpuToPtxPassOptions ptx;
  ptx.chip = options.target.chip;
  ptx.assemble = assemble;
  ptx.file = options.file;
  pm.addPass(createGpuToPtxPass(ptx));
}

static void addPTX(OpPassManager &pm, const PipelineOptions &options) {
  addDeviceCode(pm, options, /*assemble=*/false);
}

static void addCubin(OpPassManager &pm, const PipelineOptions &options) {
  addDeviceCode(pm, options, /*assemble=*/true);
}

static void addCUDALoops(OpPassManager &pm, const PipelineOptions &options) {
  pm.addPass(createConvertGpuLaunchToRuntimePass());
  pm.addPass(createConvertConstantToWeightPass());
  ConvertGemmToRuntimePassOptions products;
  products.batchInvariant = options.batchInvariance;
  products.device = true;
  ScopeArenaPassOptions scopes;
  scopes.device = true;
  addKernelsAndLoops(pm, options, products, scopes);
}

static void addCUDALLVM(OpPassManager &pm, const PipelineOptions &) {
  ConvertAllocToRuntimePassOptions buffers;
  buffers.device = true;
  addLLVM(pm, buffers);
}

ArrayRef<StagePasses> mlir::diffattn::getCUDAStages() {
  static constexpr StagePasses stages[] = {{Stage::Imported, addImport},
                                           {Stage::Raised, addCUDARaising},
                                           {Stage::Scheduled, addCUDASchedules},
                                           {Stage::Bufferized, addCUDABuffers},
                                           {Stage::GPU, addGpuKernels},
                                           {Stage::PTX, addPTX},
                                           {Stage::Cubin, addCubin},
                                           {Stage::Loops, addCUDALoops},
                                           {Stage::LLVM, addCUDALLVM}};
  return stages;
}
