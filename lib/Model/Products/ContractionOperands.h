//===- ContractionOperands.h - values that a contraction reads --*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_PRODUCTS_CONTRACTIONOPERANDS_H
#define DIFFATTN_LIB_MODEL_PRODUCTS_CONTRACTIONOPERANDS_H

#include "mlir/Dialect/Linalg/IR/LinalgInterfaces.h"

namespace mlir::diffattn {

/// Whether the library multiplies matrices of these.
bool isGemmFloat(Type type);

/// The two factors of `yield out + x * y`, as arguments of the body, one for
/// each input.
FailureOr<std::pair<BlockArgument, BlockArgument>>
matchMultiplyAdd(linalg::LinalgOp op);

/// A value and, for each of its axes, the loop of a contraction that runs along
/// it.
struct ContractionOperand {
  Value value;
  SmallVector<unsigned> loops;

  /// Whether two of its axes have one loop, which reads a diagonal.
  bool hasLoopTwice() const {
    llvm::SmallDenseSet<unsigned> different(loops.begin(), loops.end());
    return different.size() < loops.size();
  }
};

/// Values from which `operand` can be read, itself first: transpositions,
/// broadcasts, widenings and unit axes in between need not be computed. Empty
/// if its map is not one loop for each axis.
SmallVector<ContractionOperand> findSources(linalg::LinalgOp op,
                                            OpOperand *operand);

/// A contraction as one product of matrices: which loops are its batches, rows,
/// columns and inner dimension, each from the outermost in. `rows` or `columns`
/// may be empty, then there is one.
struct MatrixRoles {
  SmallVector<unsigned> batches, rows, columns, inner;
  /// A is the second operand, and B the first.
  bool swapped = false;
  /// B is [columns, inner].
  bool transposeB = false;
  /// One A for all batches.
  bool sharedA = false;

  size_t getNumLoops() const {
    return batches.size() + rows.size() + columns.size() + inner.size();
  }
};

/// The roles by which c = a * b is a product whose rows lie as rows.
std::optional<MatrixRoles> matchMatrixRoles(const ContractionOperand &a,
                                            const ContractionOperand &b,
                                            const ContractionOperand &c);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_PRODUCTS_CONTRACTIONOPERANDS_H
