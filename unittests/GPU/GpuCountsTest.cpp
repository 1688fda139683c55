//===- GpuCountsTest.cpp - bytes and products of one block ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GpuCase.h"

#include "DiffAttn/Schedule/GpuSchedule.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"
#include <gtest/gtest.h>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

/// The order in which GpuCase makes buffers.
enum Buffer : size_t { Q1, K1, Q2, K2, V, O, Lambda, Weight };

const sim::BufferStats &buffer(const sim::LaunchStats &stats, Buffer which) {
  const sim::BufferStats *match = stats.findBuffer(std::to_string(which));
  EXPECT_TRUE(match) << which;
  static const sim::BufferStats none;
  return match ? *match : none;
}

uint64_t moved(const sim::BufferStats &stats) {
  return stats.loadedBytes + stats.storedBytes + stats.copiedBytes;
}

Signature unmasked(int64_t d, int64_t dv) {
  Signature s;
  s.d = d;
  s.dv = dv;
  s.rms = true;
  s.weight = "bf16";
  return s;
}

std::string body(const GpuScheduleRow &row) {
  std::string text;
  llvm::raw_string_ostream(text)
      << "placement = " << stringifyGpuPlacement(row.placement)
      << ", warps = " << row.warps << ", row_tiles = " << row.rowTiles
      << ", kv_block_size = " << row.keys << ", stages = " << row.stages
      << ", q_in_registers = " << (row.qInRegisters ? "true" : "false");
  return text;
}

Signature ofRow(const GpuScheduleRow &row) {
  Signature s = unmasked(row.headDim, row.valueDim);
  s.maps = row.maps;
  s.schedule = body(row);
  return s;
}

/// Rows 32 bytes apart from each other's sectors.
Shape aligned(int64_t queries, int64_t keys) {
  Shape shape{1, queries, keys};
  shape.gap = 8;
  return shape;
}

void expectNoConflicts(const sim::LaunchStats &stats) {
  EXPECT_EQ(stats.ldmatrixConflicts, 0u);
  EXPECT_EQ(stats.copyConflicts, 0u);
  // Also of data that a pair of warps exchanges.
  EXPECT_EQ(stats.bankConflicts, 0u);
  for (const sim::SiteStats &site : stats.sites)
    EXPECT_EQ(site.bankConflicts, 0u) << site.where.op;
}

class EverySchedule : public ::testing::TestWithParam<GpuScheduleRow> {};

/// A whole block without a mask: every byte of Q, K and V is copied once, O is
/// stored once, in whole sectors, and the products are 6 units of d = dv / 2,
/// of one map half of them.
TEST_P(EverySchedule, MovesEachTileOnceWithoutConflicts) {
  const GpuScheduleRow &row = GetParam();
  Signature s = ofRow(row);
  int64_t groups =
      row.placement == GpuPlacement::Both ? row.warps : row.warps / 2;
  int64_t rows = 16 * row.rowTiles * groups, keys = 3 * row.keys;
  CompiledCase compiled(s);
  Outcome outcome = compiled.run(aligned(rows, keys), 3);
  ASSERT_TRUE(outcome.report.clean()) << outcome.report.str();
  EXPECT_LE(outcome.worst(), 1.0);
  ASSERT_EQ(outcome.stats.size(), 1u);
  const sim::LaunchStats &stats = outcome.stats[0];
  EXPECT_EQ(stats.blocks, 1u);
  uint64_t scores = rows * keys;
  const bool isOne = row.maps == 1;
  EXPECT_EQ(stats.mmaFlops, 2 * scores * row.maps * (s.d + s.dv));
  const std::pair<Buffer, uint64_t> bytes[] = {{Q1, 2 * rows * s.d},
                                               {Q2, isOne ? 0 : 2 * rows * s.d},
                                               {K1, 2 * keys * s.d},
                                               {K2, isOne ? 0 : 2 * keys * s.d},
                                               {V, 2 * keys * s.dv}};
  for (auto [which, expected] : bytes) {
    EXPECT_EQ(buffer(stats, which).copiedBytes, expected) << which;
    EXPECT_EQ(moved(buffer(stats, which)), expected) << which;
    EXPECT_EQ(buffer(stats, which).sectors, expected / 32) << which;
  }
  EXPECT_EQ(buffer(stats, O).storedBytes, uint64_t(2 * rows * s.dv));
  EXPECT_EQ(moved(buffer(stats, O)), uint64_t(2 * rows * s.dv));
  EXPECT_EQ(buffer(stats, O).sectors, uint64_t(2 * rows * s.dv / 32));
  // Each lane reads lambda for its rows and the weights of its columns.
  EXPECT_EQ(
      moved(buffer(stats, Lambda)),
      isOne ? 0 : uint64_t(2 * row.rowTiles * 32 * row.warps * sizeof(float)));
  EXPECT_EQ(moved(buffer(stats, Lambda)), buffer(stats, Lambda).loadedBytes);
  EXPECT_EQ(moved(buffer(stats, Weight)), buffer(stats, Weight).loadedBytes);
  expectNoConflicts(stats);
}

/// A result in f32 is stored once, in whole sectors too.
TEST_P(EverySchedule, StoresF32InWholeSectors) {
  const GpuScheduleRow &row = GetParam();
  Signature s = ofRow(row);
  s.result = "f32";
  int64_t groups =
      row.placement == GpuPlacement::Both ? row.warps : row.warps / 2;
  int64_t rows = 16 * row.rowTiles * groups;
  Outcome outcome = CompiledCase(s).run(aligned(rows, row.keys), 3);
  ASSERT_TRUE(outcome.report.clean()) << outcome.report.str();
  EXPECT_LE(outcome.worst(), 1.0);
  const sim::BufferStats &stored = buffer(outcome.stats[0], O);
  EXPECT_EQ(stored.storedBytes, uint64_t(4 * rows * s.dv));
  EXPECT_EQ(moved(stored), stored.storedBytes);
  EXPECT_EQ(stored.sectors, uint64_t(4 * rows * s.dv / 32));
}

/// A causal kernel at ends of tiles, under several orders of threads.
TEST_P(EverySchedule, IsRightInAnyOrderOfThreads) {
  const GpuScheduleRow &row = GetParam();
  Signature s = ofRow(row);
  s.causal = true;
  CompiledCase compiled(s);
  for (uint64_t seed : {1, 2, 3}) {
    sim::SimOptions options;
    options.seed = seed;
    options.copies = seed == 2 ? sim::CopyTiming::Early : sim::CopyTiming::Late;
    options.perturb = seed == 3;
    Outcome outcome = compiled.run(
        {1, 17, 2 * row.keys + 1 + static_cast<int64_t>(seed)}, seed, options);
    EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_LE(outcome.worst(), 1.0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, EverySchedule, ::testing::ValuesIn(getGpuScheduleTable().vec()),
    [](const ::testing::TestParamInfo<GpuScheduleRow> &info) {
      const GpuScheduleRow &row = info.param;
      return std::to_string(row.headDim) + "x" + std::to_string(row.valueDim) +
             "_" + stringifyGpuPlacement(row.placement).str() +
             std::to_string(row.warps) + "x" + std::to_string(row.rowTiles) +
             "_k" + std::to_string(row.keys) + (row.qInRegisters ? "q" : "") +
             (row.maps == 1 ? "_onemap" : "");
    });

/// The general schedule pads widths in the tile, never in memory.
TEST(GpuCounts, GeneralWidths) {
  Signature s = unmasked(40, 200);
  CompiledCase compiled(s);
  Outcome outcome = compiled.run({1, 64, 96}, 3);
  ASSERT_TRUE(outcome.report.clean()) << outcome.report.str();
  ASSERT_EQ(outcome.stats.size(), 1u);
  const sim::LaunchStats &stats = outcome.stats[0];
  EXPECT_EQ(stats.mmaFlops, uint64_t(2 * 64 * 96 * 2 * (64 + 224)));
  EXPECT_EQ(moved(buffer(stats, K1)), uint64_t(2 * 96 * 40));
  EXPECT_EQ(moved(buffer(stats, V)), uint64_t(2 * 96 * 200));
  EXPECT_EQ(moved(buffer(stats, O)), uint64_t(2 * 64 * 200));
  expectNoConflicts(stats);
}

/// One K for both maps is copied once.
TEST(GpuCounts, SharedKeys) {
  Signature s = unmasked(128, 128);
  s.sharedKeys = true;
  CompiledCase compiled(s);
  Outcome outcome = compiled.run({1, 64, 96}, 3);
  ASSERT_TRUE(outcome.report.clean()) << outcome.report.str();
  const sim::LaunchStats &stats = outcome.stats.at(0);
  EXPECT_EQ(moved(buffer(stats, K1)), uint64_t(2 * 96 * 128));
  EXPECT_EQ(moved(buffer(stats, K2)), 0u);
  expectNoConflicts(stats);
}

/// And where one warp has both maps, read once for them.
TEST(GpuCounts, SharedKeysAreReadOnce) {
  Signature s = unmasked(64, 64);
  s.schedule = "placement = both, warps = 4, kv_block_size = 32, stages = 2, "
               "q_in_registers = true";
  auto countReads = [&](bool shared, int64_t tiles) {
    s.sharedKeys = shared;
    Outcome outcome = CompiledCase(s).run({1, 64, 32 * tiles}, 3);
    EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_LE(outcome.worst(), 1.0);
    uint64_t reads = 0;
    for (const sim::SiteStats &site : outcome.stats.at(0).sites)
      if (llvm::StringRef(site.where.op).contains("ldmatrix"))
        reads += site.warpAccesses;
    return reads;
  };
  // Each warp reads of a tile, as 16 x 16 elements: K of both maps or of one,
  // and V.
  const uint64_t keys = 2 * 4, values = 2 * 4;
  EXPECT_EQ(countReads(false, 3) - countReads(false, 2),
            4 * (2 * keys + values));
  EXPECT_EQ(countReads(true, 3) - countReads(true, 2), 4 * (keys + values));
}

/// Decode: a tile of 16 rows holds both maps, so V is multiplied once. Every
/// block of keys copies its own, and the workspace is written and read once. Of
/// one map there is nothing of the second.
TEST(GpuCounts, Decode) {
  for (auto [wide, maps] :
       {std::pair<bool, int64_t>{false, 2}, {true, 2}, {false, 1}, {true, 1}}) {
    Signature s = wide ? unmasked(128, 256) : unmasked(64, 128);
    s.maps = maps;
    s.queries = 1;
    s.signal = s.noise = 4;
    CompiledCase compiled(s);
    const int64_t keys = 2 * getGpuSplitTable().back().splitKeys;
    Outcome outcome = compiled.run({1, 1, keys}, 3);
    ASSERT_TRUE(outcome.report.clean()) << outcome.report.str();
    ASSERT_EQ(outcome.stats.size(), 2u);
    const sim::LaunchStats &decode = outcome.stats[0];
    EXPECT_EQ(decode.blocks, 2u);
    EXPECT_EQ(decode.mmaFlops, uint64_t(2 * 16 * keys * (maps * s.d + s.dv)));
    EXPECT_EQ(moved(buffer(decode, K1)), uint64_t(2 * keys * s.d));
    EXPECT_EQ(moved(buffer(decode, K2)), uint64_t((maps - 1) * 2 * keys * s.d));
    EXPECT_EQ(moved(buffer(decode, V)), uint64_t(2 * keys * s.dv));
    expectNoConflicts(decode);
    // A block copies the one row of each map by 16 bytes.
    for (Buffer q : {Q1, Q2}) {
      const int64_t times = q == Q2 ? maps - 1 : 1;
      EXPECT_EQ(buffer(decode, q).copiedBytes,
                uint64_t(times * 2 * 4 * 2 * s.d));
      EXPECT_EQ(moved(buffer(decode, q)), buffer(decode, q).copiedBytes);
    }
    const sim::BufferStats *written = decode.findBuffer("workspace");
    const sim::BufferStats *read = outcome.stats[1].findBuffer("workspace");
    ASSERT_TRUE(written && read);
    // Only rows of the tile that exist are stored.
    EXPECT_EQ(written->storedBytes,
              uint64_t(2 * 4 * maps * s.signal * (s.dv + 2)));
    EXPECT_EQ(written->loadedBytes, 0u);
    EXPECT_EQ(read->storedBytes, 0u);
    EXPECT_EQ(buffer(outcome.stats[1], O).storedBytes, uint64_t(2 * 4 * s.dv));
  }
}

/// Blocks behind the length read no query, key or value, and leave states
/// without keys, whose accumulators the merge does not read.
TEST(GpuCounts, DecodeLeavesOutRangesWithoutKeys) {
  const int64_t splitKeys = getGpuSplitTable().back().splitKeys;
  Signature s = unmasked(64, 128);
  s.queries = 1;
  s.kvLen = s.nanBehind = true;
  CompiledCase compiled(s);
  Shape shape{1, 1, 5 * splitKeys};
  for (int64_t length : {int64_t(0), int64_t(1), splitKeys + 1}) {
    shape.length = length;
    Outcome outcome = compiled.run(shape, 3);
    ASSERT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_LE(outcome.worst(), 1.0);
    ASSERT_EQ(outcome.stats.size(), 2u);
    const sim::LaunchStats &decode = outcome.stats[0];
    ASSERT_EQ(decode.blocks, 5u);
    const uint64_t ranges = (length + splitKeys - 1) / splitKeys;
    EXPECT_EQ(moved(buffer(decode, Q1)), ranges * 2 * s.d);
    EXPECT_EQ(moved(buffer(decode, Q2)), ranges * 2 * s.d);
    EXPECT_EQ(moved(buffer(decode, K1)), uint64_t(2 * length * s.d));
    EXPECT_EQ(moved(buffer(decode, V)), uint64_t(2 * length * s.dv));
    const uint64_t row = 2 * sizeof(float);
    EXPECT_EQ(decode.findBuffer("workspace")->storedBytes,
              5 * row * (s.dv + 2));
    EXPECT_EQ(outcome.stats[1].findBuffer("workspace")->loadedBytes,
              5 * row * 2 + ranges * row * s.dv);
  }
}

/// Expects that a block copies and multiplies `tiles` of eight tiles of keys,
/// whose segments are `ofKey`; its queries see segment 5.
void expectTiles(const GpuScheduleRow &row,
                 const std::function<int64_t(int64_t)> &ofKey, int64_t tiles) {
  Signature s = ofRow(row);
  s.segments = true;
  Shape shape = aligned(row.getTiles().getRows(), 8 * row.keys);
  shape.ofQuery = [](int64_t) { return 5; };
  shape.ofKey = ofKey;
  Outcome outcome = CompiledCase(s).run(shape, 3);
  ASSERT_TRUE(outcome.report.clean()) << outcome.report.str();
  EXPECT_LE(outcome.worst(), 1.0);
  const sim::LaunchStats &stats = outcome.stats.at(0);
  const uint64_t keys = tiles * row.keys;
  EXPECT_EQ(stats.mmaFlops,
            2 * shape.queries * keys * row.maps * uint64_t(s.d + s.dv));
  EXPECT_EQ(moved(buffer(stats, K1)), 2 * keys * s.d);
  EXPECT_EQ(moved(buffer(stats, K2)), (row.maps - 1) * 2 * keys * s.d);
  EXPECT_EQ(moved(buffer(stats, V)), 2 * keys * s.dv);
}

/// Tiles of other segments are neither copied nor multiplied: before, after and
/// between those that are seen; and none may be.
TEST_P(EverySchedule, LeavesOutTilesOfOtherSegments) {
  const GpuScheduleRow &row = GetParam();
  auto ofTile = [&](std::initializer_list<int64_t> numbers) {
    return [&row, numbers = std::vector<int64_t>(numbers)](int64_t key) {
      return numbers[key / row.keys];
    };
  };
  expectTiles(row, ofTile({1, 1, 5, 5, 5, 9, 9, 9}), 3);
  expectTiles(row, ofTile({5, 1, 9, 5, 2, 2, 5, 1}), 3);
  expectTiles(row, ofTile({1, 2, 3, 4, 6, 7, 8, 9}), 0);
  // More stages, where they fit: several tiles are looked for ahead.
  GpuScheduleRow deep = row;
  deep.stages = 4;
  if (getGpuSharedBytes(deep, /*sharedKeys=*/false) <= 163 << 10) {
    expectTiles(deep, ofTile({5, 1, 9, 5, 2, 2, 5, 1}), 3);
    expectTiles(deep, ofTile({1, 1, 5, 2, 2, 2, 2, 2}), 1);
  }
  // One key each of tiles that begin and end with others.
  expectTiles(
      row,
      [&](int64_t key) {
        return key == row.keys + 1 || key == 7 * row.keys - 2 ? 5 : key % 4;
      },
      2);
}

/// Segments are read once for the queries and twice for keys, to leave out
/// those before and after the visible ones; then once for each tile, and for
/// both maps of a row tile only where it is seen in part.
TEST(GpuCounts, WholeTilesOfOneSegmentCompareNothing) {
  Signature s = unmasked(64, 128);
  s.segments = true;
  CompiledCase compiled(s);
  auto numbersRead = [&](int64_t last) {
    Shape shape = aligned(64, 256);
    shape.ofQuery = [](int64_t) { return 5; };
    shape.ofKey = [=](int64_t key) { return key == 255 ? last : 5; };
    Outcome outcome = compiled.run(shape, 3);
    EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_LE(outcome.worst(), 1.0);
    uint64_t bytes = 0;
    for (size_t i : {Weight + 1, Weight + 2})
      bytes += moved(*outcome.stats.at(0).findBuffer(std::to_string(i)));
    return bytes;
  };
  const uint64_t whole = numbersRead(5);
  // The last tile's keys and both queries of each lane, once for both maps.
  EXPECT_EQ(numbersRead(6), whole + 4 * 32 * 3 * sizeof(int64_t));
}

/// 64 queries and 256 keys of V1 take some 10 ms; the bound leaves room for
/// slow machines and sanitizers.
TEST(GpuSpeed, ABlockIsSimulatedInMilliseconds) {
  Signature s = unmasked(64, 128);
  CompiledCase compiled(s);
  compiled.run({1, 64, 256}, 3);
  Outcome outcome = compiled.run({1, 64, 256}, 3);
  RecordProperty("milliseconds", static_cast<int>(1e3 * outcome.seconds));
  EXPECT_LT(outcome.seconds, 0.5);
}

} // namespace
