//===- InitCore.h - registration of the attention core ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_INITCORE_H
#define DIFFATTN_INITCORE_H

#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Pipelines/AttentionPipeline.h"
#include "DiffAttn/Schedule/Passes.h"
#include "DiffAttn/Transforms/Passes.h"

namespace mlir::diffattn {

/// Adds the dialect and the interfaces that its lowering needs.
inline void registerAllDialects(DialectRegistry &registry) {
  registry.insert<DiffAttnDialect>();
  registerBufferizableOpInterfaceExternalModels(registry);
  registerGpuTranslations(registry);
}

/// Registers the passes of the attention core and its pipeline by their names.
/// May be called again, as it is where both plugins are loaded.
inline void registerCorePasses() {
  // Upstream takes no pipeline twice.
  [[maybe_unused]] static const bool once = [] {
    registerDiffAttnSchedulePasses();
    registerDiffAttnTransformsPasses();
    registerDiffAttnCodegenPasses();
    registerDiffAttnConversionPasses();
    registerAttentionPipeline();
    return true;
  }();
}

} // namespace mlir::diffattn

#endif // DIFFATTN_INITCORE_H
