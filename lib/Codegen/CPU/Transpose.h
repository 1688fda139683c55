//===- Transpose.h - rows of memory as columns, in registers ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_TRANSPOSE_H
#define DIFFATTN_LIB_CODEGEN_CPU_TRANSPOSE_H

#include "ProductAtom.h"

namespace mlir::diffattn {

/// The columns of a square matrix: as many rows as a vector has lanes, a power
/// of two.
SmallVector<Value> emitTranspose(KernelBuilder &b, ArrayRef<Value> rows);

/// The columns of a matrix of 16 rows, which lie one after the other in
/// `vectors`; a row has as many numbers as there are vectors, a power of two.
SmallVector<Value> emitTransposeRows(KernelBuilder &b, ArrayRef<Value> vectors);

/// A kernel that packs one vector of queries as `packQuery` packs each, with
/// `stride` packs between columns: the first `columns`, a multiple of a vector
/// of packs, of rows that are `rowStride` apart and have contiguous columns.
/// Lanes above `last` repeat row `last`.
///   (from: ptr, rowStride, last, columns, factor: f32, to: ptr)
LLVM::LLVMFuncOp getPackQueriesKernel(KernelBuilder &b, ModuleOp module,
                                      Type element, int64_t stride,
                                      const ProductAtom &atom);

/// A kernel that packs one vector of rows of a bias, whose columns are keys:
/// to[key][lane], widened to f32. Rows are as for `getPackQueriesKernel`. In an
/// i1 (a byte), false becomes -inf and true 0. `keys` is a multiple of a
/// vector.
///   (from: ptr, rowStride, last, keys, to: ptr)
LLVM::LLVMFuncOp getPackBiasKernel(KernelBuilder &b, ModuleOp module,
                                   Type element, int64_t stride);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_TRANSPOSE_H
