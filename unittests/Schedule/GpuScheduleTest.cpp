//===- GpuScheduleTest.cpp - how a GPU kernel is cut ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/GpuSchedule.h"

#include "gtest/gtest.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

class GpuScheduleTest : public ::testing::Test {
protected:
  GpuScheduleTest() : b(&context) { context.loadDialect<DiffAttnDialect>(); }

  GpuTarget target(StringRef chip) {
    std::string error;
    return *getGpuTarget(chip, error);
  }
  GpuAttentionShape shape(int64_t headDim, int64_t valueDim) {
    GpuAttentionShape result;
    result.elementType = b.getBF16Type();
    result.headDim = headDim;
    result.valueDim = valueDim;
    return result;
  }
  GpuScheduleAttr select(const GpuAttentionShape &shape, StringRef chip) {
    std::string reason;
    GpuScheduleAttr attr =
        selectGpuSchedule(&context, shape, target(chip), reason);
    EXPECT_EQ(static_cast<bool>(attr), reason.empty()) << reason;
    return attr;
  }
  /// The widths of `row` with every feature that has registers of its own.
  SmallVector<GpuAttentionShape> shapes(const GpuScheduleRow &row) {
    SmallVector<GpuAttentionShape> result(5, shape(row.headDim, row.valueDim));
    result[1].softcap = result[2].bias = result[3].mask =
        result[4].elementwise = true;
    return result;
  }
  static GpuScheduleRow toRow(GpuScheduleAttr attr,
                              const GpuAttentionShape &shape) {
    return {
        shape.headDim,    shape.valueDim,         attr.getPlacement(),
        attr.getWarps(),  attr.getRowTiles(),     attr.getKeys(),
        attr.getStages(), attr.getQInRegisters(), {255, 255, 255, 255, 255}};
  }

  MLIRContext context;
  Builder b;
};

TEST_F(GpuScheduleTest, EveryRowOfTheTableRunsWhereMostSharedMemoryIs) {
  for (const GpuScheduleRow &row : getGpuScheduleTable())
    for (bool sharedKeys : {false, true}) {
      int64_t bytes = getGpuSharedBytes(row, sharedKeys);
      EXPECT_GT(bytes, 0);
      for (GpuAttentionShape s : shapes(row)) {
        s.sharedKeys = sharedKeys;
        int64_t registers = row.registers.of(s);
        EXPECT_GE(registers, 0);
        EXPECT_LE(registers, GpuTarget::kRegistersPerThread);
        EXPECT_EQ(std::isfinite(estimateGpuCycles(row, target("sm_90"), s)),
                  registers > 0)
            << row.headDim << ", " << row.valueDim << ": " << bytes << " bytes";
      }
    }
}

TEST_F(GpuScheduleTest, SharedKeysTakeNoMoreMemory) {
  for (const GpuScheduleRow &row : getGpuScheduleTable())
    EXPECT_LE(getGpuSharedBytes(row, true), getGpuSharedBytes(row, false));
}

TEST_F(GpuScheduleTest, MoreOfAnythingTakesMoreSharedMemory) {
  for (const GpuScheduleRow &row : getGpuScheduleTable()) {
    int64_t bytes = getGpuSharedBytes(row, false);
    GpuScheduleRow more = row;
    more.stages += 1;
    EXPECT_GE(getGpuSharedBytes(more, false), bytes);
    more = row;
    more.keys *= 2;
    EXPECT_GE(getGpuSharedBytes(more, false), bytes);
    more = row;
    more.qInRegisters = false;
    EXPECT_GE(getGpuSharedBytes(more, false), bytes);
  }
}

TEST_F(GpuScheduleTest, ABlockThatDoesNotFitCostsInfinitelyMuch) {
  GpuScheduleRow row = getGpuScheduleTable().front();
  row.stages = 1000;
  EXPECT_TRUE(std::isinf(estimateGpuCycles(row, target("sm_80"),
                                           shape(row.headDim, row.valueDim))));
}

/// The choice of the table is the cheapest row that the shape may have.
TEST_F(GpuScheduleTest, TheCheapestRowIsChosen) {
  for (StringRef chip : getGpuChipNames())
    for (const GpuScheduleRow &row : getGpuScheduleTable())
      for (GpuAttentionShape s : shapes(row))
        for (bool sharedKeys : {false, true}) {
          s.sharedKeys = sharedKeys;
          double cycles = estimateGpuCycles(row, target(chip), s);
          GpuScheduleAttr attr = select(s, chip);
          ASSERT_TRUE(attr);
          bool listed = false;
          for (const GpuScheduleRow &other : getGpuScheduleTable())
            if (GpuScheduleRow chosen = toRow(attr, s);
                other.headDim == row.headDim &&
                other.valueDim == row.valueDim &&
                other.placement == chosen.placement &&
                other.warps == chosen.warps && other.keys == chosen.keys &&
                other.rowTiles == chosen.rowTiles &&
                other.qInRegisters == chosen.qInRegisters) {
              double others = estimateGpuCycles(other, target(chip), s);
              listed |= std::isfinite(others);
              if (std::isfinite(cycles))
                EXPECT_LE(others, cycles);
            }
          if (std::isfinite(cycles))
            EXPECT_TRUE(listed)
                << chip.str() << " " << row.headDim << ", " << row.valueDim;
        }
}

/// A row that nothing chooses is a row that nobody tests in use.
TEST_F(GpuScheduleTest, EveryRowIsChosenForSomething) {
  for (const GpuScheduleRow &row : getGpuScheduleTable()) {
    bool chosen = false;
    for (StringRef chip : getGpuChipNames())
      for (GpuAttentionShape s : shapes(row))
        for (bool sharedKeys : {false, true}) {
          s.sharedKeys = sharedKeys;
          GpuScheduleAttr attr = select(s, chip);
          chosen |= attr.getPlacement() == row.placement &&
                    attr.getWarps() == row.warps &&
                    attr.getRowTiles() == row.rowTiles &&
                    attr.getKeys() == row.keys &&
                    attr.getQInRegisters() == row.qInRegisters;
        }
    EXPECT_TRUE(chosen) << row.headDim << ", " << row.valueDim << " "
                        << stringifyGpuPlacement(row.placement).str() << " "
                        << row.warps << "x" << row.rowTiles << " keys "
                        << row.keys;
  }
}

/// Any width that is taken gets a block that fits.
TEST_F(GpuScheduleTest, EveryWidthFits) {
  for (StringRef chip : getGpuChipNames())
    for (int64_t d : {1, 8, 16, 33, 64, 80, 96, 128, 160, 192, 256})
      for (int64_t dv : {1, 8, 16, 33, 64, 80, 96, 128, 160, 192, 256})
        for (int64_t queries : {ShapedType::kDynamic, int64_t{1}}) {
          GpuAttentionShape s = shape(d, dv);
          s.queries = queries;
          GpuScheduleAttr attr = select(s, chip);
          ASSERT_TRUE(attr) << d << ", " << dv;
          EXPECT_LE(GpuSharedLayout(GpuTiles::of(attr), d, dv, false).total,
                    target(chip).sharedBytesPerBlock)
              << chip.str() << " " << d << ", " << dv;
        }
}

TEST_F(GpuScheduleTest, FewRowsSplitTheKeys) {
  GpuAttentionShape s = shape(64, 128);
  for (auto [queries, group, split] :
       {std::tuple<int64_t, int64_t, bool>{1, 1, true},
        {1, 8, true},
        {2, 4, true},
        {8, 1, true},
        {9, 1, false},
        {1, 9, false},
        {ShapedType::kDynamic, 1, false}}) {
    s.queries = queries;
    s.group = group;
    EXPECT_EQ(select(s, "sm_80").getSplitKeys() > 0, split)
        << queries << " x " << group;
  }
}

TEST_F(GpuScheduleTest, F32IsPlainAndTooWideIsRefusedWithAReason) {
  GpuAttentionShape s = shape(64, 128);
  s.elementType = b.getF32Type();
  EXPECT_EQ(select(s, "sm_80").getPlacement(), GpuPlacement::Plain);
  for (auto [d, dv] : {std::pair<int64_t, int64_t>{257, 64}, {64, 264}}) {
    std::string reason;
    EXPECT_FALSE(
        selectGpuSchedule(&context, shape(d, dv), target("sm_80"), reason));
    EXPECT_EQ(reason, "expected widths of heads up to 256, but got " +
                          std::to_string(d) + " and " + std::to_string(dv));
  }
}

} // namespace
