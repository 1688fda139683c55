//===- SplitKVSchedule.h - tiles of split-KV decode -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_SCHEDULE_SPLITKVSCHEDULE_H
#define DIFFATTN_SCHEDULE_SPLITKVSCHEDULE_H

#include "DiffAttn/Target/CpuTarget.h"

#include <cstdint>
#include <optional>

namespace mlir::diffattn {

/// What the tiles of split-KV decode depend on. Beside the target these
/// are facts of the code that is emitted: `lanes` of f32 in a vector, bits of a
/// value in memory, whether bf16 pairs are multiplied as they are, and a width
/// that may not be known.
struct SplitKVShape {
  int64_t lanes, valueBits;
  bool bf16Pairs;
  std::optional<int64_t> valueDim;
};

/// The tiles inside an item of split-KV decode (`split_keys` of the
/// schedule are the keys of an item).
struct SplitKVTiles {
  /// Rows that meet a key as it is read, and rows that meet a value; powers of
  /// two.
  int64_t scoreRows, outputRows;
  /// Vectors of queries that stay in registers beside the sums of scores.
  int64_t queryVectors;
  /// Vectors of sums of outputs: of all rows together, and the most of one row,
  /// whose outputs are else made in several passes over the keys.
  int64_t sumVectors, passVectors;
  /// Whether a row of values is known to be too wide for one pass.
  bool takesPasses;
  /// Keys whose values are used by all rows before the next are read.
  int64_t valueKeys;
};

SplitKVTiles selectSplitKVTiles(const SplitKVShape &shape,
                                const CpuTarget &target);

} // namespace mlir::diffattn

#endif // DIFFATTN_SCHEDULE_SPLITKVSCHEDULE_H
