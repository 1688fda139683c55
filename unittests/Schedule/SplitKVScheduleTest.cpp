//===- SplitKVScheduleTest.cpp - tiles for few queries and few rows -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/CpuSchedule.h"
#include "DiffAttn/Schedule/LinalgGpuSchedule.h"
#include "DiffAttn/Schedule/SmallGemmSchedule.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

class SplitKVSchedule : public ::testing::Test {
protected:
  SplitKVSchedule() { context.loadDialect<DiffAttnDialect>(); }

  CpuSplitKVAttr select(const CpuTarget &target, Type type, int64_t valueDim) {
    AttentionShape shape;
    shape.elementType = type;
    shape.valueDim = valueDim;
    return selectCpuSplitKV(shape, target);
  }

  MLIRContext context;
  Type f16 = Float16Type::get(&context), bf16 = BFloat16Type::get(&context),
       f32 = Float32Type::get(&context);
};

TEST_F(SplitKVSchedule, TilesFitTheRegisters) {
  for (const CpuTarget &target : getCpuTargets())
    for (Type type : {f16, bf16, f32})
      for (int64_t dv :
           {ShapedType::kDynamic, int64_t{8}, int64_t{128}, int64_t{1024}}) {
        CpuSplitKVAttr tiles = select(target, type, dv);
        // Queries, sums of each row, and the key.
        EXPECT_LE(tiles.getQVectors() + tiles.getQkRows() + 1,
                  target.vectorRegisters);
        // Sums, a weight of each row and the value, but for one row that is
        // read to its end.
        if (tiles.getOVectors() > target.vectorRegisters / 2)
          EXPECT_EQ(tiles.getPvRows(), 1);
        else
          EXPECT_LE(tiles.getOVectors() + tiles.getPvRows() + 1,
                    target.vectorRegisters);
        EXPECT_EQ(tiles.getLanes() * 4, target.vectorBytes);
        EXPECT_EQ(tiles.getIsa(), target.name);
      }
}

TEST_F(SplitKVSchedule, WideRowsAreReadToTheirEnds) {
  for (const CpuTarget &target : getCpuTargets()) {
    constexpr int64_t unknown = ShapedType::kDynamic;
    CpuSplitKVAttr any = select(target, f16, unknown);
    const int64_t usual = any.getORowVectors() * any.getLanes();
    // A width that is not known takes what most have.
    EXPECT_EQ(select(target, f16, usual), any);
    for (int64_t columns : {usual + 1, 2 * usual, 4 * usual}) {
      CpuSplitKVAttr wide = select(target, f16, columns);
      EXPECT_GE(wide.getORowVectors() * any.getLanes(), columns);
      EXPECT_GE(wide.getOVectors(), wide.getORowVectors());
      EXPECT_EQ(wide.getPvKeys(), any.getPvKeys());
    }
    // Beyond that in passes, over few keys.
    CpuSplitKVAttr widest = select(target, f16, 4 * usual + 1);
    EXPECT_EQ(widest.getORowVectors(), any.getORowVectors());
    EXPECT_LT(widest.getPvKeys(), any.getPvKeys());
    // As many bytes of values for every type, whatever multiplies them.
    EXPECT_EQ(select(target, bf16, unknown).getPvKeys(), any.getPvKeys());
    EXPECT_EQ(select(target, f32, unknown).getPvKeys(), any.getPvKeys() / 2);
  }
}

/// Whole rows, unless heads that share values had to widen them once each.
TEST_F(SplitKVSchedule, WideRowsOfHeadsThatShareValues) {
  for (const CpuTarget &target : getCpuTargets())
    for (Type type : {f16, bf16, f32}) {
      AttentionShape shape;
      shape.elementType = type;
      shape.group = 4;
      shape.valueDim = 16 * target.vectorBytes / 4;
      CpuSplitKVAttr tiles = selectCpuSplitKV(shape, target);
      const bool isWhole =
          type.isF32() || tiles.getProduct() == CpuProduct::Bf16Pairs;
      EXPECT_EQ(tiles.getORowVectors(), isWhole ? 16 : 8) << target.name.str();
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
