//===- SmallGemmSchedule.h - products with few rows -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_SCHEDULE_SMALLGEMMSCHEDULE_H
#define DIFFATTN_MODEL_SCHEDULE_SMALLGEMMSCHEDULE_H

#include "DiffAttn/Target/CpuTarget.h"

#include <cstdint>

namespace mlir::diffattn {

/// The most rows of A that the emitted kernels take; a caller tests M at run
/// time and gives larger products to the library.
constexpr int64_t kSmallGemmRows = 8;

struct SmallGemmSchedule {
  /// Rows of A that meet a row of B at once, each with two vectors of sums.
  int64_t rows;
  /// Bytes of B that one work item reads.
  int64_t itemBytes;
};

SmallGemmSchedule selectSmallGemmSchedule(const CpuTarget &target);

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_SCHEDULE_SMALLGEMMSCHEDULE_H
