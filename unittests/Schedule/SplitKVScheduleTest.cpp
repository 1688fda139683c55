//===- SplitKVScheduleTest.cpp - tiles for few queries and few rows -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/SplitKVSchedule.h"
#include "DiffAttn/Schedule/LinalgGpuSchedule.h"
#include "DiffAttn/Schedule/SmallGemmSchedule.h"

#include "llvm/Support/MathExtras.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

TEST(SplitKVSchedule, TilesFitTheRegisters) {
  for (const CpuTarget &target : getCpuTargets())
    for (int64_t bits : {16, 32})
      for (std::optional<int64_t> dv :
           {std::optional<int64_t>(), std::optional<int64_t>(8),
            std::optional<int64_t>(128), std::optional<int64_t>(1024)}) {
        SplitKVTiles tiles =
            selectSplitKVTiles({target.vectorBytes / 4, bits,
                                target.hasBf16Dot() && bits == 16, dv},
                               target);
        EXPECT_TRUE(llvm::isPowerOf2_64(tiles.scoreRows));
        EXPECT_TRUE(llvm::isPowerOf2_64(tiles.outputRows));
        // Queries, sums of each row, and the key.
        EXPECT_LE(tiles.queryVectors + tiles.scoreRows + 1,
                  target.vectorRegisters);
        // Sums, a weight of each row and the value.
        EXPECT_LE(tiles.sumVectors + tiles.outputRows + 1,
                  target.vectorRegisters);
        EXPECT_GE(tiles.sumVectors / tiles.outputRows, 1);
        EXPECT_GE(tiles.valueKeys, 2);
        EXPECT_EQ(tiles.valueKeys % 2, 0); // pairs
      }
}

TEST(SplitKVSchedule, WideRowsTakePasses) {
  for (const CpuTarget &target : getCpuTargets()) {
    int64_t lanes = target.vectorBytes / 4;
    auto select = [&](std::optional<int64_t> dv, bool pairs) {
      return selectSplitKVTiles({lanes, 16, pairs, dv}, target);
    };
    int64_t whole = select({}, false).passVectors * lanes;
    EXPECT_FALSE(select(whole, false).takesPasses);
    EXPECT_TRUE(select(whole + 1, false).takesPasses);
    // A width that is not known takes what most have.
    EXPECT_FALSE(select({}, false).takesPasses);
    EXPECT_LT(select(whole + 1, false).valueKeys,
              select(whole, false).valueKeys);
    EXPECT_EQ(select({}, true).valueKeys, 2 * select({}, false).valueKeys);
  }
}

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
  rows.columns = 1024;
  EXPECT_EQ(selectRowReductionGpuSchedule(rows).threadsPerRow, 32);
  EXPECT_EQ(selectRowReductionGpuSchedule(rows).threads, 128);
  rows.columns = 1025;
  EXPECT_EQ(selectRowReductionGpuSchedule(rows).threadsPerRow, 256);
  rows.hasColumns = false;
  EXPECT_EQ(selectRowReductionGpuSchedule(rows).threadsPerRow, 1);
  for (bool hasColumns : {false, true}) {
    rows.hasColumns = hasColumns;
    rows.isOnlyRow = true;
    LinalgGpuSchedule schedule = selectRowReductionGpuSchedule(rows);
    EXPECT_EQ(schedule.threads, schedule.threadsPerRow);
  }
}

} // namespace
