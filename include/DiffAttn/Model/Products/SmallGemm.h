//===- SmallGemm.h - products with few rows ---------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_PRODUCTS_SMALLGEMM_H
#define DIFFATTN_MODEL_PRODUCTS_SMALLGEMM_H

#include "DiffAttn/Model/Schedule/SmallGemmSchedule.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/BuiltinOps.h"

namespace mlir::diffattn {

/// C[M,N] = A[M,K] * B[N,K]^T (+ C), f32 sums in an order that depends on K
/// alone, so that a row of C is the same for every M. Bound by reading B, which
/// is read once.
struct SmallGemmSpec {
  /// f32, f16 or bf16 each.
  Type aType, bType, cType;
  /// Adds to C instead of overwriting it.
  bool accumulate = false;
  CpuTarget target;
};

/// The private function of `module` for `spec`, emitted if it is not there yet:
///   llvm.func @name(a: ptr, lda: i64, b: ptr, ldb: i64, c: ptr, ldc: i64,
///                   m: i64, n: i64, k: i64, max_threads: i64)
/// with 1 <= m <= kSmallGemmRows; leading dimensions in elements, inner
/// stride 1. It runs parallel over rows of B by the runtime's parallel_for;
/// max_threads 0 means the runtime's default.
LLVM::LLVMFuncOp getOrEmitSmallGemm(ModuleOp module, Location loc,
                                    const SmallGemmSpec &spec);

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_PRODUCTS_SMALLGEMM_H
