//===- QuantizedGemmSchedule.h - narrow weights -----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_SCHEDULE_QUANTIZEDGEMMSCHEDULE_H
#define DIFFATTN_MODEL_SCHEDULE_QUANTIZEDGEMMSCHEDULE_H

#include "DiffAttn/Target/CpuTarget.h"

#include <cstdint>

namespace mlir::diffattn {

/// The most rows of A for which widening B in registers, again for each few of
/// them, beats the library on a B that is widened in memory. More rows go to
/// tiles where there are any.
constexpr int64_t kQuantizedGemmRows = 64;

struct QuantizedGemmSchedule {
  /// f32 of a vector; vectors lie within a group of the weight.
  int64_t lanes;
  /// Rows of A and rows of B that a tile of sums has.
  int64_t rows, columns;
  /// Rows of A up to which rows of B are read one after the other instead, so
  /// that addresses ascend.
  int64_t fewRows;
  /// Vectors of a group that are multiplied between two jumps.
  int64_t unroll;
  /// Bytes of B that one work item reads.
  int64_t itemBytes;
  /// How far ahead of what is read B is fetched, at least.
  int64_t prefetchBytes;
  /// Rows of A that meet an item at once, so that they stay in a cache.
  int64_t passRows;
  /// Bytes of B in the type of A, where it is widened for the library.
  int64_t wideBytes;
};

/// The schedule for integers of `bits`, of which `group` share a scale.
QuantizedGemmSchedule selectQuantizedGemmSchedule(const CpuTarget &target,
                                                  int64_t bits, int64_t group);

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_SCHEDULE_QUANTIZEDGEMMSCHEDULE_H
