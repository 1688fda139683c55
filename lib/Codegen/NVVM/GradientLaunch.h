//===- GradientLaunch.h - launches of kernels for gradients -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTLAUNCH_H
#define DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTLAUNCH_H

#include "LaunchBuilder.h"

namespace mlir::diffattn {

/// The kernel of rows of `op`: from the gradient of the output to dX, D1 and
/// D2. Without `elementwise` widths are multiples of 8, and rows of d_out, x,
/// o2, gate and d_gate aligned to 16 bytes, with neighbours side by side.
GpuKernelSpec getGradientRowsSpec(AttentionBackwardOp op, bool elementwise);

/// Results of the kernel of rows that later kernels read, contiguous memrefs of
/// the device: dX, [B,Hs,Tq,dv] of the operands' type, D1 and, with two maps,
/// D2, [B,Hs,Tq] of f32.
struct GradientRows {
  Value dX, d1, d2;
};

/// Launches the kernel of rows of `op`, on memrefs, and those that add up the
/// gradients of norm weight and lambda, if the op has these. lse1 and x must be
/// given, and with two maps lse2 and o2. The caller deallocates the returned
/// buffers, behind the kernels that read them; `host` has its arguments
/// afterwards.
GradientRows launchGradientRows(LaunchBuilder &host, AttentionBackwardOp op);

/// How a kernel of products reads its operands: by tensor maps, which those by
/// warpgroups do, by 16 bytes, or element by element.
enum class GradientCopies { Maps, Chunks, Elements };

/// The kernel of `kind`, GradientKeys or GradientQueries, of `op`, whose
/// schedule is gpu_backward; none where no gradient that it stores is wanted,
/// or where the schedule has no kernel with such copies.
std::optional<GpuKernelSpec> getGradientSpec(AttentionBackwardOp op,
                                             GpuKernelKind kind,
                                             GradientCopies copies);

/// Replaces `op`, on memrefs, by launches of kernels in `module`. Gradients are
/// zeros where there is no query.
void replaceByLaunch(RewriterBase &rewriter, AttentionBackwardOp op,
                     gpu::GPUModuleOp module);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTLAUNCH_H
