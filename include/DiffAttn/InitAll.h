//===- InitAll.h - registration of everything -------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_INITALL_H
#define DIFFATTN_INITALL_H

#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Pipelines/CPUPipeline.h"
#include "DiffAttn/Pipelines/NVVMPipeline.h"
#include "DiffAttn/Schedule/Passes.h"
#include "DiffAttn/Transforms/Passes.h"

namespace mlir::diffattn {

/// Adds the dialect and the interfaces that its lowering needs.
inline void registerAllDialects(DialectRegistry &registry) {
  registry.insert<DiffAttnDialect>();
  registerBufferizableOpInterfaceExternalModels(registry);
  registerGpuTranslations(registry);
}

/// Registers every pass and pipeline by its name.
inline void registerAllPasses() {
  registerDiffAttnSchedulePasses();
  registerDiffAttnTransformsPasses();
  registerDiffAttnCodegenPasses();
  registerDiffAttnConversionPasses();
  registerCPUPipeline();
  registerNVVMPipeline();
}

} // namespace mlir::diffattn

#endif // DIFFATTN_INITALL_H
