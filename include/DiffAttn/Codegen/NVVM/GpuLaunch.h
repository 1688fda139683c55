//===- GpuLaunch.h - the numbers of kernels ---------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_NVVM_GPULAUNCH_H
#define DIFFATTN_CODEGEN_NVVM_GPULAUNCH_H

#include "mlir/IR/BuiltinOps.h"

namespace mlir::diffattn {

/// Puts the kernels of the `gpu.module`s in `module` on it as
/// `diffattn.kernels` and returns that list; one that is there already stays.
/// An entry has `name`, `parameters` and, if it is so, `starts_early`, which
/// are those of diffattn_kernel in include/DiffAttn/Runtime/ABI/Device.h.
/// Launches name kernels by their places in it. Fails with a diagnostic at a
/// kernel whose parameters the runtime cannot pass.
FailureOr<ArrayAttr> listGpuKernels(ModuleOp module);

} // namespace mlir::diffattn

#endif // DIFFATTN_CODEGEN_NVVM_GPULAUNCH_H
