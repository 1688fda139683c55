//===- CPUStages.cpp - passes for a CPU -----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CommonStages.h"

#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Schedule/Passes.h"
#include "DiffAttn/Transforms/Passes.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace mlir::diffattn;

static void addCPURaising(OpPassManager &pm, const PipelineOptions &options) {
  addRaising(pm, options, CheckSizesPassOptions());
}

static void addCPUSchedules(OpPassManager &pm, const PipelineOptions &options) {
  // A schedule is one sequence's own.
  pm.addPass(createUnpackSequencesPass());
  SelectSchedulePassOptions select;
  select.isa = options.target.isa;
  select.prefetchBytes = options.prefetchBytes;
  pm.addPass(createSelectSchedulePass(select));
  DecomposePassOptions decompose;
  decompose.target = "cpu";
  pm.addPass(createDecomposePass(decompose));
  OpPassManager &functions = pm.nest<func::FuncOp>();
  addTensorCleanup(functions);
  addProducts(functions, ConvertLinalgToGemmPassOptions());
  FuseGatedGemmsPassOptions gates;
  gates.isa = options.target.isa;
  gates.batchInvariant = options.batchInvariance;
  pm.addNestedPass<func::FuncOp>(createFuseGatedGemmsPass(gates));
}

static void addCPUBuffers(OpPassManager &pm, const PipelineOptions &options) {
  pm.addPass(createBindWeightsPass());
  addBufferization(pm, options);
}

static void addCPULoops(OpPassManager &pm, const PipelineOptions &options) {
  // Clones first: they become copies, which may be strided.
  pm.addPass(createConvertBufferizationToMemRefPass());
  pm.addNestedPass<func::FuncOp>(createReuseBuffersPass());
  if (options.trace)
    pm.addPass(createTraceOpsPass());
  ConvertGemmToRuntimePassOptions products;
  products.batchInvariant = options.batchInvariance;
  addKernelsAndLoops(pm, options, products, ScopeArenaPassOptions());
}

static void addCPULLVM(OpPassManager &pm, const PipelineOptions &) {
  addLLVM(pm, ConvertAllocToRuntimePassOptions());
}

ArrayRef<StagePasses> mlir::diffattn::getCPUStages() {
  static constexpr StagePasses stages[] = {
      {Stage::Imported, addImport},        {Stage::Raised, addCPURaising},
      {Stage::Scheduled, addCPUSchedules}, {Stage::Bufferized, addCPUBuffers},
      {Stage::Loops, addCPULoops},         {Stage::LLVM, addCPULLVM}};
  return stages;
}
