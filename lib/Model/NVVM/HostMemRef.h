//===- HostMemRef.h - memrefs as arguments of kernels -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_NVVM_HOSTMEMREF_H
#define DIFFATTN_LIB_MODEL_NVVM_HOSTMEMREF_H

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn::linalggpu {

/// Bytes that one element takes in memory; i1 takes one.
int64_t bytesOf(Type element);

/// Size `axis` of `memref` on the host: a constant, an operand of a
/// `memref.subview`, or a `memref.dim`.
OpFoldResult sizeOf(ImplicitLocOpBuilder &host, Value memref, int64_t axis);
/// Stride `axis` in elements.
OpFoldResult strideOf(ImplicitLocOpBuilder &host, Value memref, int64_t axis);
/// Address of the first element, as an index.
Value addressOf(ImplicitLocOpBuilder &host, Value memref);
/// `value` as one of type index.
Value asIndex(ImplicitLocOpBuilder &host, OpFoldResult value);
/// Product of sizes, folded where all are known.
OpFoldResult productOf(ImplicitLocOpBuilder &host,
                       ArrayRef<OpFoldResult> factors);
/// `count` elements as a number of vectors of `width`, which divides it.
OpFoldResult vectorsIn(ImplicitLocOpBuilder &host, OpFoldResult count,
                       int64_t width);

/// Whether it is known when compiling that the first element of `memref` lies
/// at a multiple of `bytes`.
bool isKnownAligned(Value memref, int64_t bytes);

} // namespace mlir::diffattn::linalggpu

#endif // DIFFATTN_LIB_MODEL_NVVM_HOSTMEMREF_H
