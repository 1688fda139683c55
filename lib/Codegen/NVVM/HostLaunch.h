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

/// The kernel of `op` under `schedule`, which is not gpu_split_kv.
GpuKernelSpec getGpuKernelSpec(AttentionOp op, ScheduleAttrInterface schedule,
                               bool elementwise);
/// The kernel of `op`, which has a schedule.
GpuKernelSpec getGpuKernelSpec(OnlineAttentionOp op, bool elementwise);
/// The kernel of `op` and of the merges that feed it.
GpuKernelSpec getGpuKernelSpec(FinalizeOp op);

/// The part of a kernel's description that all kernels of the maps of `op`
/// share: scores, types and widths.
GpuKernelSpec getMapsSpec(DifferentialMapsOpInterface op,
                          ScheduleAttrInterface schedule, bool elementwise);

/// Whether the kernel's widths and types allow copies of 16 bytes.
bool mayCopyChunks(const GpuKernelSpec &spec);

/// Replaces attention under `root` that has a schedule gpu_split_kv, for the
/// calls that take it, by ops on states. Fails, with an error, on tensors.
LogicalResult splitKeys(RewriterBase &rewriter, Operation *root);

/// Replaces `op`, on memrefs, by launches of kernels in `module`: none if there
/// is no query, else the first of `cases` that holds. Conditions that the types
/// do not decide are checked at run time, also whether pointers and strides
/// allow copies of 16 bytes; if not, kernels that copy elements are launched.
void replaceByLaunch(RewriterBase &rewriter, AttentionOp op,
                     gpu::GPUModuleOp module, ArrayRef<ScheduleCase> cases);

/// Replaces `op`, on memrefs, by a launch of the decode kernel: a block for
/// each range of keys, group of heads and batch. The op has rows and a
/// schedule.
void replaceByLaunch(RewriterBase &rewriter, OnlineAttentionOp op,
                     gpu::GPUModuleOp module);

/// The merges of the maps over ranges, whose results nothing else reads, and
/// the finalize behind them. With one map, `merge2` is null.
struct MergedEnd {
  MergeOp merge1, merge2;
  FinalizeOp finalize;
};
/// The merges that feed `op`; fails, with an error, where there are none.
FailureOr<MergedEnd> findMerges(FinalizeOp op);
/// Replaces them by one launch; the buffers between them go as well.
void replaceByLaunch(RewriterBase &rewriter, const MergedEnd &ops,
                     gpu::GPUModuleOp module);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_NVVM_HOSTLAUNCH_H
