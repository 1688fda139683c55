//===- Passes.td - passes from tensor IR to tensor IR ------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TRANSFORMS_PASSES_TD
#define DIFFATTN_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

#endif // DIFFATTN_TRANSFORMS_PASSES_TD
