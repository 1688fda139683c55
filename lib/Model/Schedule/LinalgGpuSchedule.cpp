//===- LinalgGpuSchedule.cpp - schedules of other GPU kernels -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Schedule/LinalgGpuSchedule.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>

using namespace mlir;

// More blocks than any chip holds at a time.
static constexpr int64_t kMaxBlocks = 16384;
// A warp reads a row of so many elements in a turn or two; of more, each thread
// of a block is to have so many. A step of a decoder has one row, of which
// every turn is a trip to memory that nothing hides.
static constexpr int64_t kWarpColumns = 256, kThreadColumns = 8;
static constexpr int64_t kMinThreads = 128, kMaxThreads = 512;
// Threads for a row whose length is not known.
static constexpr int64_t kThreads = 256;
// No thread has more than a chunk of 16 bytes of each of so many registers.
static constexpr int64_t kMaxVector = 8, kChunkBytes = 16;

diffattn::LinalgGpuSchedule diffattn::selectElementwiseGpuSchedule() {
  return {/*threads=*/128, /*threadsPerRow=*/1, kMaxBlocks};
}

diffattn::LinalgGpuSchedule
diffattn::selectRowReductionGpuSchedule(const GpuRows &rows) {
  LinalgGpuSchedule schedule{kThreads, kThreads, kMaxBlocks};
  if (!rows.hasColumns) {
    schedule = {kMinThreads, /*threadsPerRow=*/1, kMaxBlocks};
  } else if (rows.columns && *rows.columns <= kWarpColumns) {
    schedule = {kMinThreads, /*threadsPerRow=*/32, kMaxBlocks};
  } else if (rows.columns) {
    const auto threads = static_cast<int64_t>(
        llvm::PowerOf2Ceil(llvm::divideCeil(*rows.columns, kThreadColumns)));
    schedule.threads = std::clamp(threads, kMinThreads, kMaxThreads);
    schedule.threadsPerRow = schedule.threads;
  }
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

std::optional<diffattn::GpuSmallGemmSchedule>
diffattn::selectGpuSmallGemmSchedule(int64_t k, int64_t bytes) {
  constexpr int64_t kWarp = 32, kBlockWarps = 8, kVectors = 4;
  const int64_t elements = kChunkBytes / bytes;
  if (k <= 0 || k % elements)
    return std::nullopt;
  // All loads of a row are issued at once, if a block has enough threads for
  // that: such a product takes a few trips to memory, not bandwidth.
  const auto turns = static_cast<int64_t>(
      llvm::PowerOf2Ceil(llvm::divideCeil(k / elements, kWarp * kVectors)));
  return GpuSmallGemmSchedule{kBlockWarps * kWarp, std::min(turns, kBlockWarps),
                              elements, kVectors};
}
