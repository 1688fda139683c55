//===- QuantizedGemm.h - products with quantized weights --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_PRODUCTS_QUANTIZEDGEMM_H
#define DIFFATTN_MODEL_PRODUCTS_QUANTIZEDGEMM_H

#include "DiffAttn/Model/Schedule/QuantizedGemmSchedule.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/BuiltinOps.h"

namespace mlir::diffattn {

/// C[M,N] = A[M,K] * (scales * B)[N,K]^T (+ C): the op quantized_gemm.
struct QuantizedGemmSpec {
  /// f32, f16 or bf16 each.
  Type aType, cType;
  /// Bits of an integer of B (4 or 8); consecutive integers that share a scale.
  int64_t bits, group;
  /// Adds to C instead of overwriting it.
  bool accumulate = false;
  CpuTarget target;
};

/// Private functions of `module` for `spec`, emitted if they are not there yet:
///   llvm.func @name(a: ptr, lda: i64, b: ptr, scales: ptr, c: ptr, ldc: i64,
///                   m: i64, n: i64, k: i64, max_threads: i64)
/// with leading dimensions in elements and inner stride 1; B and its scales are
/// contiguous. They run parallel over rows of B by the runtime's parallel_for;
/// max_threads 0 means the runtime's default.
///
/// Widens B in registers, for any M. Sums are in f32 in an order that depends
/// on K and the group alone, so that a row of C is the same for every M.
LLVM::LLVMFuncOp getOrEmitQuantizedGemm(ModuleOp module, Location loc,
                                        const QuantizedGemmSpec &spec);

/// Widens some rows of B at a time to the type of A, in memory, and multiplies
/// with them by diffattn_rt_gemm: for many rows of A, on targets without
/// tiles.
LLVM::LLVMFuncOp getOrEmitWidenedGemm(ModuleOp module, Location loc,
                                      const QuantizedGemmSpec &spec);

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_PRODUCTS_QUANTIZEDGEMM_H
