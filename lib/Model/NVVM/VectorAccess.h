//===- VectorAccess.h - 16 bytes at a time -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_NVVM_VECTORACCESS_H
#define DIFFATTN_LIB_MODEL_NVVM_VECTORACCESS_H

#include "HostMemRef.h"
#include "Phase.h"

namespace mlir::diffattn::linalggpu {

/// How a phase accesses an operand along the loop that is cut in vectors.
enum class AccessKind { Vector, Broadcast, Element };

/// How one or several phases go along their last loops.
struct VectorPlan {
  /// Consecutive iterations that a thread computes; 1: no vectors.
  int64_t width = 1;
  /// Access of each operand of each phase.
  SmallVector<SmallVector<AccessKind>> kinds;
  /// An i1 of the host that allows it, or null if it is always allowed.
  Value condition;

  /// This plan with a width of 1. With `sameShares` a thread has the same
  /// elements as before, so that sums come out the same.
  VectorPlan byElements(bool sameShares = false) const;
};

/// The plan for `phases`, whose last loops have size `extent`. Every output
/// must be contiguous along that loop for there to be vectors; inputs that are
/// not are read by elements.
VectorPlan planVectors(ArrayRef<Phase> phases, OpFoldResult extent,
                       ImplicitLocOpBuilder &host);

} // namespace mlir::diffattn::linalggpu

#endif // DIFFATTN_LIB_MODEL_NVVM_VECTORACCESS_H
