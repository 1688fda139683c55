//===- SchedulesTest.cpp - tiles of products and of other loops -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Schedule/LinalgGpuSchedule.h"
#include "DiffAttn/Model/Schedule/SmallGemmSchedule.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

TEST(SmallGemmSchedule, RowsDivideTheMost) {
  for (const CpuTarget &target : getCpuTargets()) {
    SmallGemmSchedule schedule = selectSmallGemmSchedule(target);
    EXPECT_EQ(kSmallGemmRows % schedule.rows, 0);
    // Two sums and a vector of each row, and the weights.
    EXPECT_LE(3 * schedule.rows + 1, target.vectorRegisters);
    EXPECT_GT(schedule.itemBytes, 0);
  }
}

TEST(LinalgGpuSchedule, RowsGetTheThreadsThatTheyNeed) {
  GpuRows rows;
  EXPECT_EQ(selectRowReductionGpuSchedule(rows).threadsPerRow,
            256); // not known
  auto choose = [&](int64_t columns) {
    rows.columns = columns;
    LinalgGpuSchedule schedule = selectRowReductionGpuSchedule(rows);
    return std::pair<int, int>(schedule.threadsPerRow, schedule.threads);
  };
  EXPECT_EQ(choose(0), std::pair(32, 128));
  EXPECT_EQ(choose(256), std::pair(32, 128));
  EXPECT_EQ(choose(257), std::pair(128, 128));
  EXPECT_EQ(choose(1024), std::pair(128, 128));
  EXPECT_EQ(choose(1025), std::pair(256, 256));
  EXPECT_EQ(choose(2880), std::pair(512, 512));
  EXPECT_EQ(choose(1 << 20), std::pair(512, 512));
  rows.hasColumns = false;
  EXPECT_EQ(selectRowReductionGpuSchedule(rows).threadsPerRow, 1);
  for (bool hasColumns : {false, true}) {
    rows.hasColumns = hasColumns;
    rows.isOnlyRow = true;
    LinalgGpuSchedule schedule = selectRowReductionGpuSchedule(rows);
    EXPECT_EQ(schedule.threads, schedule.threadsPerRow);
  }
}

TEST(LinalgGpuSchedule, RowsOfAWeightGetTheWarpsThatAskForThemAtOnce) {
  auto choose = [](int64_t k, int64_t bytes) {
    auto schedule = selectGpuSmallGemmSchedule(k, bytes);
    return schedule ? std::pair<int, int>(schedule->warpsPerColumn,
                                          schedule->elements)
                    : std::pair(0, 0);
  };
  EXPECT_EQ(choose(8, 2), std::pair(1, 8));
  EXPECT_EQ(choose(1024, 2), std::pair(1, 8));
  EXPECT_EQ(choose(1032, 2), std::pair(2, 8));
  EXPECT_EQ(choose(2944, 2), std::pair(4, 8));
  EXPECT_EQ(choose(512, 4), std::pair(1, 4));
  EXPECT_EQ(choose(4096, 4), std::pair(8, 4));
  EXPECT_EQ(choose(1 << 20, 2), std::pair(8, 8)); // in several turns
  // 16 bytes do not divide a row, or there is none.
  EXPECT_EQ(choose(1028, 2), std::pair(0, 0));
  EXPECT_EQ(choose(0, 2), std::pair(0, 0));
}

} // namespace
