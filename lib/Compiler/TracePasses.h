//===- TracePasses.h - spans of compile passes ------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_TRACEPASSES_H
#define DIFFATTN_LIB_COMPILER_TRACEPASSES_H

#include "mlir/Pass/PassManager.h"

namespace mlir::diffattn {

/// Makes the passes of `manager` spans of the thread that runs them, where
/// spans are recorded.
void tracePasses(PassManager &manager);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_TRACEPASSES_H
