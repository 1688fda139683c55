//===- GpuTargetTest.cpp - names, facts and occupancy of GPUs -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/GpuTarget.h"

#include "llvm/ADT/ArrayRef.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

GpuTarget get(StringRef chip) {
  std::string error;
  std::optional<GpuTarget> target = getGpuTarget(chip, error);
  EXPECT_TRUE(target) << error;
  EXPECT_TRUE(error.empty()) << error;
  return target.value_or(GpuTarget());
}

TEST(GpuTarget, ChipsOfTheTables) {
  for (StringRef chip : getGpuChipNames()) {
    GpuTarget target = get(chip);
    EXPECT_EQ(target.chip, chip);
    EXPECT_TRUE(target.tuned);
    EXPECT_LT(target.sharedBytesPerBlock, target.sharedBytesPerSM);
    EXPECT_EQ(target.threadsPerSM % GpuTarget::kWarpSize, 0);
    EXPECT_GT(target.blocksPerSM, 0);
    EXPECT_GT(target.mmaCycles, 0);
    EXPECT_GT(target.fp32Cycles, 0);
  }
  // The letter adds features that Hopper alone has.
  EXPECT_TRUE(get("sm_90a").hasWgmma);
  EXPECT_FALSE(get("sm_90").hasWgmma);
}

TEST(GpuTarget, NewerChipsGetTheCodeOfTheOldest) {
  for (StringRef chip :
       {"sm_87", "sm_88", "sm_100", "sm_100a", "sm_120", "sm_120f"}) {
    GpuTarget target = get(chip);
    EXPECT_EQ(target.chip, "sm_80") << chip.str();
    EXPECT_FALSE(target.tuned) << chip.str();
  }
}

TEST(GpuTarget, AGpuGetsTheFeaturesThatItsChipHasAlone) {
  EXPECT_EQ(getNativeGpuChip("sm_90"), "sm_90a");
  for (StringRef chip : {"sm_80", "sm_86", "sm_89", "sm_9", "sm_100", "sm_120"})
    EXPECT_EQ(getNativeGpuChip(chip), chip);
}

TEST(GpuTarget, CodeThatRunsWhereWgmmaIs) {
  for (auto [chip, runs] : {std::pair<StringRef, bool>{"sm_90", true},
                            {"sm_90a", true},
                            {"sm_80", false},
                            {"sm_89", false},
                            {"sm_100", false}}) {
    std::string error;
    EXPECT_EQ(runsOnWgmmaChip(*getGpuTarget(chip, error)), runs) << chip.str();
  }
}

TEST(GpuTarget, OtherNamesAreRefusedWithTheChipsThatAreKnown) {
  for (StringRef chip :
       {"", "sm_", "sm_a", "sm_75", "sm_79", "SM_80", "80", "sm_80b", "sm_8 0",
        "sm_-80", "sm_080x", "sm_99999999999999999999", "compute_80",
        // No chips, or letters that a chip does not have.
        "sm_81", "sm_85", "sm_91", "sm_99", "sm_102", "sm_999", "sm_80a",
        "sm_90f", "sm_100b", "sm_100af"}) {
    std::string error;
    EXPECT_FALSE(getGpuTarget(chip, error)) << chip.str();
    EXPECT_EQ(
        error,
        "expected a chip of sm_80, sm_86, sm_87, sm_88, sm_89, sm_90, "
        "sm_90a, sm_100, sm_101, sm_103, sm_110, sm_120, sm_121, but got \"" +
            chip.str() + "\"");
  }
}

TEST(GpuTarget, OccupancyByEachLimit) {
  GpuTarget target = get("sm_80");
  // 16 warps of 128 threads: limited by threads, then by other resources.
  EXPECT_EQ(getGpuOccupancy(target, 128, 32, 0), 16);
  EXPECT_EQ(getGpuOccupancy(target, 1024, 32, 0), 2);
  EXPECT_EQ(getGpuOccupancy(target, 32, 32, 0), target.blocksPerSM);
  // 255 registers are given as 256: 64 Ki / (256 * 128) blocks.
  EXPECT_EQ(getGpuOccupancy(target, 128, 255, 0), 2);
  EXPECT_EQ(getGpuOccupancy(target, 128, 168, 0), 3);
  // Each block also takes the shared memory that the driver reserves.
  EXPECT_EQ(getGpuOccupancy(target, 128, 32, 81 << 10), 2);
  EXPECT_EQ(getGpuOccupancy(target, 128, 32, (81 << 10) + 1), 1);
  EXPECT_EQ(getGpuOccupancy(target, 128, 32, target.sharedBytesPerBlock), 1);
  EXPECT_EQ(getGpuOccupancy(target, 128, 32, target.sharedBytesPerBlock + 1),
            0);
}

TEST(GpuTarget, APartOfAWarpIsAWarp) {
  GpuTarget target = get("sm_86");
  for (int64_t threads : {1, 31, 33, 63, 100})
    EXPECT_EQ(getGpuOccupancy(target, threads, 64, 1024),
              getGpuOccupancy(target, (threads + 31) / 32 * 32, 64, 1024))
        << threads;
}

TEST(GpuTarget, OccupancyFallsWithWhatABlockNeeds) {
  for (StringRef chip : getGpuChipNames()) {
    GpuTarget target = get(chip);
    int64_t before = target.blocksPerSM;
    for (int64_t registers = 16; registers <= 255; ++registers) {
      int64_t now = getGpuOccupancy(target, 128, registers, 1024);
      EXPECT_LE(now, before);
      before = now;
    }
    before = target.blocksPerSM;
    for (int64_t bytes = 0; bytes <= target.sharedBytesPerBlock + 2048;
         bytes += 512) {
      int64_t now = getGpuOccupancy(target, 128, 64, bytes);
      EXPECT_LE(now, before);
      before = now;
    }
    EXPECT_EQ(before, 0);
  }
}

} // namespace
