//===- GpuScheduleTest.cpp - choice of GPU schedules ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/GpuSchedule.h"

#include "gmock/gmock.h"
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
  ScheduleAttrInterface select(const GpuAttentionShape &shape, StringRef chip) {
    std::string reason;
    ScheduleAttrInterface attr =
        selectGpuKernel(&context, shape, target(chip), reason);
    EXPECT_EQ(static_cast<bool>(attr), reason.empty()) << reason;
    return attr;
  }
  /// The widths of `row` with every feature that has registers of its own.
  SmallVector<GpuAttentionShape> shapes(const GpuScheduleRow &row) {
    GpuAttentionShape plain = shape(row.headDim, row.valueDim);
    plain.maps = row.maps;
    SmallVector<GpuAttentionShape> result(9, plain);
    result[1].softcap = result[2].bias = result[3].mask = result[4].segments =
        result[5].elementwise = true;
    result[6].elementwise = result[6].bias = true;
    result[7].elementwise = result[7].segments = true;
    result[8].mask = result[8].segments = true;
    return result;
  }
  static GpuScheduleRow toRow(ScheduleAttrInterface attr,
                              const GpuAttentionShape &shape) {
    GpuTiles tiles = GpuTiles::of(attr);
    return {
        shape.headDim, shape.valueDim,     tiles.placement,
        tiles.warps,   tiles.rowTiles,     tiles.keys,
        tiles.stages,  tiles.qInRegisters, {255, 255, 255, 255, 255, 255, 255},
        true,          shape.maps};
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
          ScheduleAttrInterface attr = select(s, chip);
          ASSERT_TRUE(attr);
          bool listed = false;
          for (const GpuScheduleRow &other : getGpuScheduleTable())
            if (GpuScheduleRow chosen = toRow(attr, s);
                other.headDim == row.headDim &&
                other.valueDim == row.valueDim && other.maps == row.maps &&
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

/// Every row is chosen for some shape, so that other tests run it.
TEST_F(GpuScheduleTest, EveryRowIsChosenForSomething) {
  for (const GpuScheduleRow &row : getGpuScheduleTable()) {
    bool chosen = false;
    for (StringRef chip : getGpuChipNames())
      for (GpuAttentionShape s : shapes(row))
        for (bool sharedKeys : {false, true}) {
          s.sharedKeys = sharedKeys;
          GpuTiles tiles = GpuTiles::of(select(s, chip));
          chosen |= tiles.placement == row.placement &&
                    tiles.warps == row.warps &&
                    tiles.rowTiles == row.rowTiles && tiles.keys == row.keys &&
                    tiles.qInRegisters == row.qInRegisters;
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
        for (int64_t queries : {ShapedType::kDynamic, int64_t{1}})
          for (int64_t maps : {1, 2}) {
            GpuAttentionShape s = shape(d, dv);
            s.queries = queries;
            s.maps = maps;
            ScheduleAttrInterface attr = select(s, chip);
            ASSERT_TRUE(attr) << d << ", " << dv;
            EXPECT_LE(
                GpuSharedLayout(GpuTiles::of(attr, maps), d, dv, false).total,
                target(chip).sharedBytesPerBlock)
                << chip.str() << " " << d << ", " << dv << ", " << maps;
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
    EXPECT_EQ(isa<GpuSplitKVAttr>(select(s, "sm_80")), split)
        << queries << " x " << group;
  }
}

TEST_F(GpuScheduleTest, F32IsPlainAndTooWideIsRefusedWithAReason) {
  GpuAttentionShape s = shape(64, 128);
  s.elementType = b.getF32Type();
  EXPECT_TRUE(isa<GpuPlainAttr>(select(s, "sm_80")));
  for (auto [d, dv] : {std::pair<int64_t, int64_t>{257, 64}, {64, 264}}) {
    std::string reason;
    EXPECT_FALSE(
        selectGpuKernel(&context, shape(d, dv), target("sm_80"), reason));
    EXPECT_EQ(reason, "expected widths of heads up to 256, but got " +
                          std::to_string(d) + " and " + std::to_string(dv));
  }
}

/// The least row that holds the widths, and a block of it fits.
TEST_F(GpuScheduleTest, WarpgroupsTakeTheLeastRowThatHoldsTheWidths) {
  const GpuTarget hopper = target("sm_90a");
  auto choose = [&](const GpuAttentionShape &s) {
    std::string reason;
    SmallVector<GpuWgmmaAttr> schedules;
    for (WhenAttr when : selectGpuWgmma(&context, s, hopper, reason)) {
      schedules.push_back(cast<GpuWgmmaAttr>(when.getSchedule()));
      EXPECT_LE(GpuSharedLayout(schedules.back(), s.headDim, s.valueDim,
                                s.sharedKeys, s.maps)
                    .total,
                hopper.sharedBytesPerBlock);
    }
    EXPECT_EQ(schedules.empty(), !reason.empty()) << reason;
    return schedules;
  };
  for (const GpuWgmmaRow &row : getGpuWgmmaTable()) {
    GpuAttentionShape s = shape(row.headDim, row.valueDim);
    s.maps = row.maps;
    s.sharedKeys = row.sharedKeys;
    const GpuWgmmaAttr schedule = row.getSchedule(&context);
    EXPECT_EQ(llvm::is_contained(choose(s), schedule), !row.byName);
    s.even = true;
    EXPECT_EQ(
        llvm::is_contained(choose(s), row.getSchedule(&context, /*even=*/true)),
        !row.byName);
    EXPECT_LE(
        GpuSharedLayout(schedule, s.headDim, s.valueDim, s.sharedKeys, s.maps)
            .total,
        hopper.sharedBytesPerBlock);
  }
  for (int64_t d : {8, 64, 72, 128, 136, 192, 200})
    for (int64_t dv : {8, 128, 136, 256, 264})
      for (bool sharedKeys : {false, true}) {
        GpuAttentionShape s = shape(d, dv);
        s.sharedKeys = sharedKeys;
        EXPECT_EQ(!choose(s).empty(),
                  (d <= 128 && dv <= 256) || (d <= 192 && dv <= 128));
        s.sharedKeys = false;
        s.maps = 1;
        EXPECT_EQ(!choose(s).empty(), d <= 256 && dv <= 256);
      }
}

/// A dynamic number of keys is a condition of the call; with packed sequences,
/// it is the sum of all of them.
TEST_F(GpuScheduleTest, WarpgroupsForManyKeysAndForFew) {
  const GpuTarget hopper = target("sm_90a");
  std::string reason;
  auto choose = [&](const GpuAttentionShape &s) {
    SmallVector<std::pair<int64_t, int64_t>> choices;
    for (WhenAttr when : selectGpuWgmma(&context, s, hopper, reason)) {
      EXPECT_TRUE(when.getTensorMaps());
      choices.emplace_back(
          when.getMinKeys(),
          cast<GpuWgmmaAttr>(when.getSchedule()).getKvBlockSize());
    }
    return choices;
  };
  GpuAttentionShape s = shape(64, 128);
  using ::testing::ElementsAre;
  using ::testing::Pair;
  EXPECT_THAT(choose(s), ElementsAre(Pair(8192, 192), Pair(0, 64)));
  s.keys = 8192;
  EXPECT_THAT(choose(s), ElementsAre(Pair(0, 192)));
  s.keys = 8191;
  EXPECT_THAT(choose(s), ElementsAre(Pair(0, 64)));
  s.keys = ShapedType::kDynamic;
  s.packed = true;
  EXPECT_THAT(choose(s), ElementsAre(Pair(0, 64)));
}

TEST_F(GpuScheduleTest, WhatWarpgroupsDoNotDo) {
  auto reasonOf = [&](const GpuAttentionShape &s, StringRef chip = "sm_90a") {
    std::string reason;
    EXPECT_TRUE(selectGpuWgmma(&context, s, target(chip), reason).empty());
    return reason;
  };
  GpuAttentionShape s = shape(64, 128);
  EXPECT_EQ(reasonOf(s, "sm_90"),
            "expected chip sm_90a, which has wgmma, but got sm_90");
  GpuAttentionShape other = s;
  other.bias = true;
  EXPECT_EQ(reasonOf(other), "expected no additive bias, but got one");
  other = s;
  other.mask = true;
  EXPECT_EQ(reasonOf(other), "expected no mask in memory, but got one");
  other = s;
  other.segments = true;
  EXPECT_EQ(reasonOf(other),
            "expected no segments, but got q_segments and kv_segments");
  other = s;
  other.softcap = true;
  EXPECT_EQ(reasonOf(other), "expected no softcap, but got one");
  other = s;
  other.elementType = b.getF32Type();
  EXPECT_EQ(reasonOf(other),
            "expected q1, k1, q2, k2 and v of f16 or bf16, but got f32");
  EXPECT_EQ(reasonOf(shape(60, 128)),
            "expected widths that are multiples of 8, but got 60 and 128");
  EXPECT_EQ(reasonOf(shape(200, 128)),
            "expected widths of at most 128 and 256, or 192 and 128, but got "
            "200 and 128");
  // The reason has all of them.
  other = shape(60, 128);
  other.elementType = b.getF32Type();
  other.softcap = true;
  EXPECT_EQ(reasonOf(other),
            "expected q1, k1, q2, k2 and v of f16 or bf16, but got f32; "
            "expected widths that are multiples of 8, but got 60 and 128; "
            "expected no softcap, but got one");
}

/// Conditions of run time: few queries where their number is not known, and
/// operands that cannot be copied by 16 bytes where those get another cut.
TEST_F(GpuScheduleTest, ConditionsStandBeforeWhatTakesEveryCall) {
  GpuAttentionShape s = shape(128, 256);
  auto list = [&] {
    std::string reason;
    return selectGpuSchedules(&context, s, target("sm_80"), reason);
  };
  SmallVector<Attribute> all = list();
  const size_t splits = getGpuSplitTable().size();
  ASSERT_EQ(all.size(), splits + 2);
  auto few = dyn_cast<WhenAttr>(all[0]),
       unaligned = dyn_cast<WhenAttr>(all[splits]);
  ASSERT_TRUE(few && unaligned);
  EXPECT_EQ(few.getMaxQueries(), kGpuDecodeRows);
  EXPECT_FALSE(few.getUnaligned());
  EXPECT_TRUE(isa<GpuSplitKVAttr>(few.getSchedule()));
  EXPECT_TRUE(unaligned.getUnaligned());
  EXPECT_NE(unaligned.getSchedule(), all.back());
  EXPECT_EQ(all.back(), select(s, "sm_80"));
  // Other widths have one cut for both.
  s = shape(32, 64);
  s.mask = true;
  EXPECT_EQ(list().size(), splits + 1);
  s.queries = 100;
  EXPECT_EQ(list().size(), 1u);
  s.queries = 1;
  all = list();
  ASSERT_EQ(all.size(), splits);
  EXPECT_TRUE(isa<GpuSplitKVAttr>(all.back()));
}

/// Where the chip has tensor maps, decode by them stands before decode by other
/// copies, for every number of keys and with as many warps; two blocks fit on
/// an SM where two stages of them do.
TEST_F(GpuScheduleTest, DecodeByTensorMaps) {
  const GpuTarget hopper = target("sm_90a");
  std::string reason;
  for (auto [d, dv] :
       {std::pair<int64_t, int64_t>{64, 128}, {128, 256}, {96, 192}, {8, 8}}) {
    GpuAttentionShape s = shape(d, dv);
    SmallVector<Attribute> all =
        selectGpuSchedules(&context, s, hopper, reason);
    const size_t splits = getGpuSplitTable().size();
    ASSERT_GE(all.size(), 2 * splits);
    for (size_t i = 0; i < 2 * splits; ++i) {
      auto when = cast<WhenAttr>(all[i]);
      auto split = cast<GpuSplitKVAttr>(when.getSchedule());
      EXPECT_EQ(when.getTensorMaps(), i < splits);
      EXPECT_EQ(split.getBulkCopies(), i < splits);
      EXPECT_EQ(when.getMinKeys(), getGpuSplitTable()[i % splits].minKeys);
      EXPECT_EQ(split.getWarps(),
                cast<GpuSplitKVAttr>(cast<WhenAttr>(all[splits]).getSchedule())
                    .getWarps());
      if (d == 96)
        continue;
      EXPECT_LE(2 * (GpuSharedLayout(GpuTiles::of(split), d, dv, false).total +
                     GpuTarget::kReservedSharedBytes),
                hopper.sharedBytesPerSM);
    }
  }
}

/// Wide values beside a bias or a mask take more registers than two blocks of
/// five warps have. On the same chip, decode by other copies has as many warps.
TEST_F(GpuScheduleTest, DecodeOfWideValuesWithABiasHasFewerWarps) {
  std::string reason;
  auto warpsOf = [&](GpuAttentionShape s, StringRef chip) {
    s.sharedKeys = true;
    s.queries = 1;
    int64_t warps = 0;
    for (Attribute entry :
         selectGpuSchedules(&context, s, target(chip), reason)) {
      auto when = dyn_cast<WhenAttr>(entry);
      auto split = cast<GpuSplitKVAttr>(when ? when.getSchedule() : entry);
      EXPECT_TRUE(!warps || warps == split.getWarps());
      warps = split.getWarps();
      // Fewer warps leave shared memory for more stages.
      if (split.getBulkCopies() && s.valueDim == 256)
        EXPECT_EQ(split.getStages(), warps == 2 ? 4 : 2);
    }
    return warps;
  };
  GpuAttentionShape plain = shape(128, 256), bias = plain, mask = plain,
                    narrow = shape(192, 128);
  bias.bias = mask.mask = narrow.bias = true;
  EXPECT_EQ(warpsOf(plain, "sm_90a"), 4);
  EXPECT_EQ(warpsOf(bias, "sm_90a"), 2);
  EXPECT_EQ(warpsOf(mask, "sm_90a"), 2);
  EXPECT_EQ(warpsOf(narrow, "sm_90a"), 4);
  EXPECT_EQ(warpsOf(bias, "sm_90"), 4);
}

/// (128,128): two tiles of rows a warp leave no registers for segments.
TEST_F(GpuScheduleTest, SegmentsTakeOneTileOfRowsAWarp) {
  for (StringRef chip : getGpuChipNames())
    for (bool sharedKeys : {false, true}) {
      GpuAttentionShape s = shape(128, 128);
      s.sharedKeys = sharedKeys;
      s.segments = true;
      GpuTiles tiles = GpuTiles::of(select(s, chip));
      EXPECT_EQ(tiles.rowTiles, 1);
      EXPECT_EQ(tiles.placement, GpuPlacement::Pair);
      EXPECT_EQ(tiles.keys, 32);
    }
}

TEST_F(GpuScheduleTest, WhatDecodeByTensorMapsDoesNotDo) {
  auto reasonOf = [&](const GpuAttentionShape &s, StringRef chip = "sm_90a") {
    std::string reason;
    auto split = GpuSplitKVAttr::get(&context, 4, 2, true, false, 128);
    EXPECT_FALSE(selectGpuBulkCopies(split, s, target(chip), reason));
    return reason;
  };
  EXPECT_EQ(reasonOf(shape(64, 128), "sm_90"), "sm_90 has no tensor maps");
  GpuAttentionShape packed = shape(64, 128);
  packed.segments = true;
  EXPECT_EQ(reasonOf(packed),
            "expected none for decode by tensor maps, but got segments");
  EXPECT_EQ(reasonOf(shape(60, 128)),
            "expected widths that are multiples of 8 for decode by tensor "
            "maps, but got 60 and 128");
}

/// The keys of a block follow from the keys that there is room for, and from
/// nothing else: with these known there is one schedule, else one for each row.
TEST_F(GpuScheduleTest, RoomForKeysDecidesHowTheyAreSplit) {
  std::string reason;
  GpuAttentionShape s = shape(64, 128);
  auto sizeOf = [](Attribute schedule) {
    return cast<GpuSplitKVAttr>(schedule).getKvSplitSize();
  };
  for (StringRef chip : {"sm_80", "sm_90"})
    for (int64_t dv : {64, 128, 256})
      for (int64_t queries : {int64_t(1), ShapedType::kDynamic}) {
        s.valueDim = dv;
        s.queries = queries;
        for (auto [keys, size] : {std::pair<int64_t, int64_t>{1, 128},
                                  {2048, 128},
                                  {2049, 512},
                                  {16384, 512},
                                  {16385, 2048},
                                  {1 << 20, 2048}}) {
          s.keys = keys;
          Attribute first =
              selectGpuSchedules(&context, s, target(chip), reason).front();
          auto when = dyn_cast<WhenAttr>(first);
          EXPECT_EQ(bool(when), queries != 1);
          if (when)
            EXPECT_EQ(when.getMinKeys(), 0);
          EXPECT_EQ(sizeOf(when ? when.getSchedule() : first), size);
        }
        s.keys = ShapedType::kDynamic;
        SmallVector<Attribute> all =
            selectGpuSchedules(&context, s, target(chip), reason);
        ASSERT_GE(all.size(), getGpuSplitTable().size());
        for (auto [row, entry] : llvm::zip(getGpuSplitTable(), all)) {
          auto when = dyn_cast<WhenAttr>(entry);
          EXPECT_EQ(when ? when.getMinKeys() : 0, row.minKeys);
          EXPECT_EQ(when ? when.getMaxQueries() : 0,
                    queries == 1 ? 0 : kGpuDecodeRows);
          EXPECT_EQ(sizeOf(when ? when.getSchedule() : entry), row.splitKeys);
        }
      }
}

} // namespace
