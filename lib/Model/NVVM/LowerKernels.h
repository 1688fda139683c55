//===- LowerKernels.h - generated kernels in the LLVM dialect -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_NVVM_LOWERKERNELS_H
#define DIFFATTN_LIB_MODEL_NVVM_LOWERKERNELS_H

#include "mlir/Pass/PassManager.h"

namespace mlir::diffattn::linalggpu {

/// Adds to `pm`, a pipeline of a `gpu.module`, what brings the kernels to the
/// `llvm` and `nvvm` dialects. A function that would be a call of a library is
/// an error.
void buildKernelLowering(OpPassManager &pm);

} // namespace mlir::diffattn::linalggpu

#endif // DIFFATTN_LIB_MODEL_NVVM_LOWERKERNELS_H
