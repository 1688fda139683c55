//===- LinalgBody.h - one iteration of a linalg op --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_LOOPS_LINALGBODY_H
#define DIFFATTN_LIB_MODEL_LOOPS_LINALGBODY_H

#include "mlir/Dialect/Linalg/IR/Linalg.h"

namespace mlir::diffattn {

/// The element of `operand`, a buffer, that the iteration `ivs` of `op`
/// touches.
SmallVector<Value> getPosition(OpBuilder &b, linalg::LinalgOp op,
                               OpOperand *operand, ArrayRef<Value> ivs);

/// Clones the body of `op` for the iteration `ivs`, with what the outputs hold
/// so far; returns what they hold then.
SmallVector<Value> emitBody(OpBuilder &b, linalg::LinalgOp op,
                            ArrayRef<Value> ivs, ValueRange outputs);

/// Whether output `i` of `op` is a sum whose terms may be added up in parts,
/// also of those terms alone that a condition chooses: nothing but it reads
/// what was summed before, and a flag gives up its order.
bool isRelaxedSum(linalg::LinalgOp op, int64_t i);

/// -0.0, the neutral element that a part of such a sum begins with. Unlike 0 it
/// leaves a sum of negative zeros as it is.
Value emitNeutral(OpBuilder &b, Location loc, Type type);

/// `op` as loops over the rows of a matrix, or over several axes that are
/// summed up, with the columns inside: sums of some rows in a small buffer on
/// the stack, which is then added to the outputs. `buffers` holds those buffers
/// of the function, and gets what is missing. False if `op` is no such sum, or
/// is short.
bool emitColumnSums(RewriterBase &rewriter, linalg::LinalgOp op,
                    SmallVectorImpl<Value> &buffers);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_LOOPS_LINALGBODY_H
