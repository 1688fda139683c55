//===- LinalgGpuSchedule.h - schedules of other GPU kernels -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_SCHEDULE_LINALGGPUSCHEDULE_H
#define DIFFATTN_MODEL_SCHEDULE_LINALGGPUSCHEDULE_H

#include <cstdint>
#include <optional>

namespace mlir::diffattn {

/// The cut of a kernel that is neither attention nor a product.
struct LinalgGpuSchedule {
  /// Threads of a block.
  int64_t threads;
  /// Threads that share a row: one, a warp, or the block.
  int64_t threadsPerRow;
  /// The most blocks of a launch; beyond it blocks take several turns.
  int64_t maxBlocks;
};

/// The schedule of one thread to each (vector of) output elements.
LinalgGpuSchedule selectElementwiseGpuSchedule();

/// The most elements of which one block alone may compute element-wise ops.
constexpr int64_t kMaxElementsOfOneGpuBlock = 4096;

/// Rows that a kernel reduces. `columns`: elements of each, if known at compile
/// time. `hasColumns` is false where a row is one number, computed by itself.
struct GpuRows {
  std::optional<int64_t> columns;
  bool hasColumns = true;
  /// Whether there is one row alone, so that a block is as large as a row
  /// needs.
  bool isOnlyRow = false;
};

/// Which elements of a row a thread adds up depends on this choice alone, so a
/// row's result does not depend on the number of rows.
LinalgGpuSchedule selectRowReductionGpuSchedule(const GpuRows &rows);

/// Elements that a thread reads and writes at a time: a power of two for which
/// the smallest element type, of `bytes` bytes, is accessed by at most 16
/// bytes, and that divides `extent` where it is known.
int64_t selectGpuVectorWidth(int64_t bytes, std::optional<int64_t> extent);

/// A product with more rows than this is a library's.
constexpr int64_t kMaxRowsOfGpuSmallGemm = 4;

/// The cut of a product of few rows with a matrix whose rows are columns of the
/// result: warps that share a column read its row of `k` elements, each thread
/// `elements` at a time, at most `vectors` such loads under way.
struct GpuSmallGemmSchedule {
  int64_t threads, warpsPerColumn, elements, vectors;
};

/// The schedule for rows of `k` elements of `bytes` bytes; none where 16 bytes
/// do not divide a row. The order of a sum depends on this choice alone, so a
/// row's result does not depend on the number of rows.
std::optional<GpuSmallGemmSchedule> selectGpuSmallGemmSchedule(int64_t k,
                                                               int64_t bytes);

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_SCHEDULE_LINALGGPUSCHEDULE_H
