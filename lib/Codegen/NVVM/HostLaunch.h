//===- HostLaunch.h - launches of kernels -----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_HOSTLAUNCH_H
#define DIFFATTN_LIB_CODEGEN_NVVM_HOSTLAUNCH_H

#include "DiffAttn/Codegen/NVVM/GpuKernel.h"
#include "DiffAttn/IR/ScheduleCases.h"
#include "DiffAttn/Schedule/GpuSchedule.h"

namespace mlir::diffattn {

/// The kernel of `op` under `schedule`.
GpuKernelSpec getGpuKernelSpec(AttentionOp op, ScheduleAttrInterface schedule,
                               bool elementwise);

/// Replaces `op`, on memrefs, by launches of kernels in `module`: where there
/// is no query, nothing is launched, else the first of `cases` that holds. What
/// the types do not tell is asked at run time, also whether pointers and
/// strides allow copies of 16 bytes: where they do not, kernels that copy
/// elements are launched.
void replaceByLaunch(RewriterBase &rewriter, AttentionOp op,
                     gpu::GPUModuleOp module, ArrayRef<ScheduleCase> cases);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_NVVM_HOSTLAUNCH_H
