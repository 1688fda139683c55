//===- RuntimeMatrix.h - operands of the runtime's products -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_PRODUCTS_RUNTIMEMATRIX_H
#define DIFFATTN_LIB_MODEL_PRODUCTS_RUNTIMEMATRIX_H

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Model/Schedule/BatchInvariance.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn {

/// How products are compiled.
struct GemmChoices {
  int64_t threads = 0;
  BatchInvariance batchInvariance = BatchInvariance::Auto;
  /// Null for products on a device.
  const CpuTarget *target = nullptr;
};

/// One operand as the runtime takes it.
struct RuntimeMatrix {
  Value address;                   // i64
  Value leading;                   // i64, in elements
  SmallVector<Value> batchStrides; // index, in elements; empty: one for all
  Type element;
  bool transposed = false;
};

/// Describes buffers to the runtime, before an op.
class MatrixBuilder : public ImplicitLocOpBuilder {
public:
  explicit MatrixBuilder(Operation *op)
      : ImplicitLocOpBuilder(op->getLoc(), op) {}

  /// A matrix whose rows, or with `mayTranspose` columns, are contiguous; a
  /// buffer with neither is copied.
  RuntimeMatrix describe(Value buffer, bool mayTranspose);
  /// A contiguous buffer of the same shape; with `fill` also the same numbers.
  Value copyOf(Value buffer, bool fill);
  /// Moves `matrix` to `index` of the batch axis `batch`.
  Value advance(RuntimeMatrix &matrix, Value index, int64_t batch);
  /// True if the elements of a row lie side by side.
  static bool hasRows(MemRefType type);

  /// The slot of the weight or constant that `buffer` is, whole; null if it is
  /// neither: what may change cannot be packed once.
  Value weightSlot(Value buffer);

  Value i32(int32_t value);
  Value i64(int64_t value);
  Value toI64(Value index);
  Value dim(Value buffer, int64_t i);
  Value pointer(Value address);

private:
  Value offsetBy(Value address, Value elements, Type element);
};

/// The diffattn_gemm_flags for the tiles of `target`; 0: it has none.
int32_t getTileFlags(const CpuTarget &target);

/// Writes `op`, on buffers, as a call of the runtime, and erases it.
LogicalResult convertGatedGemm(GatedGemmOp op, const GemmChoices &choices);

/// Writes `op`, on buffers, as calls of kernels that are emitted for the
/// choices' target, and of the runtime, and erases it.
LogicalResult convertQuantizedGemm(QuantizedGemmOp op,
                                   const GemmChoices &choices);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_PRODUCTS_RUNTIMEMATRIX_H
