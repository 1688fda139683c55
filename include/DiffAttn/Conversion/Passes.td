//===- Passes.td - passes into other dialects --------------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CONVERSION_PASSES_TD
#define DIFFATTN_CONVERSION_PASSES_TD

include "mlir/Pass/PassBase.td"

#endif // DIFFATTN_CONVERSION_PASSES_TD
