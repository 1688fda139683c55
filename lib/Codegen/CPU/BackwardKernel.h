//===- BackwardKernel.h - gradients of attention on CPUs --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_BACKWARDKERNEL_H
#define DIFFATTN_LIB_CODEGEN_CPU_BACKWARDKERNEL_H

#include "KernelCaller.h"

#include "DiffAttn/IR/DiffAttn.h"

namespace mlir::diffattn {

/// Emits the kernels of `op`, which is on memrefs, under names that begin with
/// `name`, and where `caller` inserts their calls. The op stays.
LogicalResult callBackwardKernel(KernelCaller &caller, AttentionBackwardOp op,
                                 CpuBackwardAttr schedule, StringRef name);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_BACKWARDKERNEL_H
