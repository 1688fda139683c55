//===- SizeRelations.h - relations between dynamic sizes --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_SIZERELATIONS_H
#define DIFFATTN_IR_SIZERELATIONS_H

#include "mlir/IR/Operation.h"

namespace mlir::diffattn {

/// The size of one axis of an operand.
struct OperandAxis {
  Value operand;
  int64_t axis;
};

/// A rule of an op's verifier about sizes of which some are dynamic.
struct SizeRelation {
  enum class Kind {
    AtLeast, ///< `subject` is at least `number`
    AtMost,  ///< `subject` is at most `number`
    Equal,   ///< `subject` is one of `others`, or 1 if `orOne`
    Divides, ///< `subject` divides `others[0]`
    Covers,  ///< `subject` times `number` is at least `others[0]`
  };
  Kind kind;
  OperandAxis subject;
  SmallVector<OperandAxis, 2> others;
  bool orOne = false;
  int64_t number = 1;
};

/// The rules about sizes of `op`, an op of ours, that its verifier could not
/// decide. They come from the verifier itself, in its order: a size that must
/// divide another one is known to be positive before. Empty for other ops.
SmallVector<SizeRelation> getDynamicSizeRelations(Operation *op);

} // namespace mlir::diffattn

#endif // DIFFATTN_IR_SIZERELATIONS_H
