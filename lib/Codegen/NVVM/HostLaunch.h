//===- HostLaunch.h - launches of kernels -----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_HOSTLAUNCH_H
#define DIFFATTN_LIB_CODEGEN_NVVM_HOSTLAUNCH_H

#include "DiffAttn/Codegen/NVVM/GpuKernel.h"
#include "DiffAttn/Schedule/GpuSchedule.h"

namespace mlir::diffattn {

/// The kernel of `op` under `schedule`.
GpuKernelSpec getGpuKernelSpec(AttentionOp op, GpuScheduleAttr schedule,
                               bool elementwise);

/// The schedules of an op. `decode` may be null: then every number of queries
/// takes the others.
struct GpuSchedules {
  GpuScheduleAttr chunks, elements, decode;
};

/// Replaces `op`, on memrefs, by launches of kernels in `module`. What the
/// types do not tell is asked at run time: where there is no query, nothing is
/// launched; up to `kGpuDecodeRows` take the schedule `decode`; and where
/// pointers and strides do not allow copies of 16 bytes, kernels that copy
/// elements are launched.
void replaceByLaunch(RewriterBase &rewriter, AttentionOp op,
                     gpu::GPUModuleOp module, const GpuSchedules &schedules);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_NVVM_HOSTLAUNCH_H
