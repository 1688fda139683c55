//===- Grouping.h - which ops become one kernel ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_NVVM_GROUPING_H
#define DIFFATTN_LIB_MODEL_NVVM_GROUPING_H

#include "KernelKinds.h"

namespace mlir::diffattn::linalggpu {

/// Whether the iterations of `loop` may run at the same time: it holds copies
/// and element-wise ops alone, and each iteration writes a part of its own.
bool isIndependent(scf::ForOp loop);

/// Whether `phase` can be one of a row kernel by itself.
bool isRowReduction(const Phase &phase);

/// Groups `phases`, which stand one after another with nothing between them
/// that touches memory: the row kernels, in order, and phases alone.
SmallVector<RowGroup> groupPhases(ArrayRef<Phase> phases);

} // namespace mlir::diffattn::linalggpu

#endif // DIFFATTN_LIB_MODEL_NVVM_GROUPING_H
