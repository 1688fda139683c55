//===- InitAll.h - registration of everything -------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_INITALL_H
#define DIFFATTN_INITALL_H

#include "DiffAttn/InitCore.h"
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Pipelines/Pipelines.h"

namespace mlir::diffattn {

/// Registers the passes and pipelines of models by their names, which use those
/// of the core.
inline void registerModelPasses() {
  registerDiffAttnModelPasses();
  registerModelPipelines();
}

/// Registers every pass and pipeline by its name.
inline void registerAllPasses() {
  registerCorePasses();
  registerModelPasses();
}

} // namespace mlir::diffattn

#endif // DIFFATTN_INITALL_H
