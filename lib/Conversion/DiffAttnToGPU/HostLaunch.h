//===- HostLaunch.h - launches of kernels -----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CONVERSION_DIFFATTNTOGPU_HOSTLAUNCH_H
#define DIFFATTN_LIB_CONVERSION_DIFFATTNTOGPU_HOSTLAUNCH_H

#include "DiffAttn/Conversion/GpuKernel.h"
#include "DiffAttn/Schedule/GpuSchedule.h"

namespace mlir::diffattn {

/// What the choice of a kernel may depend on in `op`.
GpuAttentionShape getGpuAttentionShape(AttentionOp op);

/// The kernel of `op` under `schedule`.
GpuKernelSpec getGpuKernelSpec(AttentionOp op, GpuScheduleAttr schedule,
                               bool elementwise);

/// Replaces `op`, on memrefs, by launches of kernels in `module`: of the kernel
/// that copies 16 bytes at a time if pointers and strides allow it, which is
/// asked at run time, else of the one that copies elements. `elementSchedule`
/// is that one's schedule.
void replaceByLaunch(RewriterBase &rewriter, AttentionOp op,
                     gpu::GPUModuleOp module, GpuScheduleAttr schedule,
                     GpuScheduleAttr elementSchedule);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CONVERSION_DIFFATTNTOGPU_HOSTLAUNCH_H
