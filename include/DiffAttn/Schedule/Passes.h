//===- Passes.h - passes of the layer Schedule ------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_SCHEDULE_PASSES_H
#define DIFFATTN_SCHEDULE_PASSES_H

#include "mlir/Pass/Pass.h"

namespace mlir::diffattn {
#define GEN_PASS_DECL
#include "DiffAttn/Schedule/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "DiffAttn/Schedule/Passes.h.inc"
} // namespace mlir::diffattn

#endif // DIFFATTN_SCHEDULE_PASSES_H
