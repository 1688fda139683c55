//===- GpuKernelModule.h - the module of kernels ----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_NVVM_GPUKERNELMODULE_H
#define DIFFATTN_CODEGEN_NVVM_GPUKERNELMODULE_H

#include "DiffAttn/Target/GpuTarget.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/IR/BuiltinOps.h"

namespace mlir::diffattn {

/// The `gpu.module` `diffattn_kernels` of `module`, made for `target` if it is
/// not there yet.
gpu::GPUModuleOp getOrCreateKernelModule(ModuleOp module,
                                         const GpuTarget &target);

/// Whether the chip of `module` lets kernels start while the one ahead runs.
bool hasDependentLaunch(gpu::GPUModuleOp module);

} // namespace mlir::diffattn

#endif // DIFFATTN_CODEGEN_NVVM_GPUKERNELMODULE_H
