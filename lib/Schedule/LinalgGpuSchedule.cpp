//===- LinalgGpuSchedule.cpp - how a GPU computes other ops ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/LinalgGpuSchedule.h"

#include <algorithm>

using namespace mlir;

// More blocks than any chip holds at a time.
static constexpr int64_t kMaxBlocks = 16384;
// A warp reads a row of so many elements in a few turns.
static constexpr int64_t kWarpColumns = 1024;
// No thread has more than a chunk of 16 bytes of each of so many registers.
static constexpr int64_t kMaxVector = 8, kChunkBytes = 16;

diffattn::LinalgGpuSchedule diffattn::selectElementwiseGpuSchedule() {
  return {/*threads=*/128, /*threadsPerRow=*/1, kMaxBlocks};
}

diffattn::LinalgGpuSchedule
diffattn::selectRowReductionGpuSchedule(const GpuRows &rows) {
  LinalgGpuSchedule schedule{/*threads=*/256, /*threadsPerRow=*/256,
                             kMaxBlocks};
  if (!rows.hasColumns)
    schedule = {/*threads=*/128, /*threadsPerRow=*/1, kMaxBlocks};
  else if (rows.columns && *rows.columns <= kWarpColumns)
    schedule = {/*threads=*/128, /*threadsPerRow=*/32, kMaxBlocks};
  if (rows.isOnlyRow)
    schedule.threads = schedule.threadsPerRow;
  return schedule;
}

int64_t diffattn::selectGpuVectorWidth(int64_t bytes,
                                       std::optional<int64_t> extent) {
  int64_t width = std::clamp<int64_t>(kChunkBytes / bytes, 1, kMaxVector);
  while (extent && width > 1 && *extent % width)
    width /= 2;
  return width;
}
