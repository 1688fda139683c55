//===- PrepareHost.h - host code before its kernels are made -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_NVVM_PREPAREHOST_H
#define DIFFATTN_LIB_MODEL_NVVM_PREPAREHOST_H

#include "DeviceValues.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/PatternMatch.h"

namespace mlir::diffattn::linalggpu {

/// Writes every named op of linalg and every copy as a `linalg.generic`.
LogicalResult generalize(func::FuncOp function, RewriterBase &rewriter);

/// Moves `memref.dim` ops of a body before its op, so that the host computes
/// the sizes.
void hoistSizes(func::FuncOp function);

/// Products read and write rows (B also columns) whose elements are contiguous,
/// each row after the last: other operands are copied to and from a contiguous
/// buffer.
void copyOddMatrices(func::FuncOp function);

/// Moves what only sets a fresh buffer to before the buffer's next use, where
/// it can be a part of that kernel.
void sinkFills(func::FuncOp function);

/// Scalars that are read before and used after the buffer is written get a
/// buffer of their own, since kernels read where they use.
void keepOverwrittenScalars(func::FuncOp function);

/// Constants that something else than a kernel of this pass takes (attention, a
/// product, a call) are copied to memory of the device.
void copyConstants(func::FuncOp function);

} // namespace mlir::diffattn::linalggpu

#endif // DIFFATTN_LIB_MODEL_NVVM_PREPAREHOST_H
