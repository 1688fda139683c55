//===- LinalgOps.h - properties of one linalg op ----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What is read off one op alone.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_ANALYSIS_TENSOREXPR_LINALGOPS_H
#define DIFFATTN_ANALYSIS_TENSOREXPR_LINALGOPS_H

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

namespace mlir::diffattn::tensorexpr {

/// True if every loop is parallel and each output position is one loop.
bool isElementwise(linalg::LinalgOp op);

/// The reduction loops of `op` that are not known to run once.
unsigned numberOfSums(linalg::LinalgOp op);

/// Values that `op` reads: its inputs, and tensors from which its body
/// extracts.
SmallVector<Value> readBy(linalg::LinalgOp op);

/// The axis that `dim` reads, if it is a constant and the operand has it.
std::optional<int64_t> knownAxis(tensor::DimOp dim);
std::optional<int64_t> knownAxis(memref::DimOp dim);

} // namespace mlir::diffattn::tensorexpr

#endif // DIFFATTN_ANALYSIS_TENSOREXPR_LINALGOPS_H
