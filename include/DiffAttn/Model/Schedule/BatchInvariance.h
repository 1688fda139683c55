//===- BatchInvariance.h - which products sum in one order ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_SCHEDULE_BATCHINVARIANCE_H
#define DIFFATTN_MODEL_SCHEDULE_BATCHINVARIANCE_H

#include "DiffAttn/Model/PassEnums.h"
#include "DiffAttn/Target/CpuTarget.h"

#include "mlir/IR/Types.h"

namespace mlir::diffattn {

/// Whether products with weights of `type` sum in one order unless a user
/// chooses: a table, docs/numerics.md has what it was made from.
bool isInvariantByDefault(Type type, const CpuTarget &target);

/// Whether a product with a B of type `type` sums in one order. `isWeight`: B
/// is a weight or a constant, which can be packed once.
bool sumsInOrder(BatchInvariance choice, Type type, bool isWeight,
                 const CpuTarget &target);

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_SCHEDULE_BATCHINVARIANCE_H
