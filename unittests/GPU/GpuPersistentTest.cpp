//===- GpuPersistentTest.cpp - blocks that share out tiles of queries -----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GpuCase.h"

#include "DiffAttn/Schedule/GpuSchedule.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <set>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

/// The rows of the table with persistent blocks.
std::vector<GpuWgmmaRow> getRows() {
  std::vector<GpuWgmmaRow> rows;
  for (const GpuWgmmaRow &row : getGpuWgmmaTable())
    if (row.persistentBlocks)
      rows.push_back(row);
  return rows;
}

/// The row of (64,128) whose warpgroups have both maps.
GpuWgmmaRow getNarrowRow() {
  return *llvm::find_if(getGpuWgmmaTable(), [](const GpuWgmmaRow &row) {
    return row.headDim == 64 && row.valueDim == 128 && row.persistentBlocks &&
           row.placement == GpuPlacement::Both;
  });
}

int64_t rowsOf(const GpuWgmmaRow &row) {
  return row.placement == GpuPlacement::Both ? 128 : 64;
}

/// Two heads of two batches, two and a half tiles of queries, a ring that comes
/// round.
Shape severalTiles(const GpuWgmmaRow &row) {
  return {2, 2 * rowsOf(row) + 21, (row.stages + 1) * row.keys + 9};
}

class EveryPersistentRow : public ::testing::TestWithParam<GpuWgmmaRow> {
protected:
  static Signature signature(int64_t blocks) {
    Signature s = ofPersistent(GetParam(), blocks);
    s.causal = true;
    s.signal = 2;
    return s;
  }
};

/// Who takes which tile, and when, changes no bit: neither do blocks for each
/// tile.
TEST_P(EveryPersistentRow, HaveTheBitsOfABlockForEachTile) {
  const Shape shape = severalTiles(GetParam());
  Outcome expected = CompiledCase(signature(0)).run(shape, 5);
  ASSERT_TRUE(expected.report.clean()) << expected.report.str();
  EXPECT_LE(expected.worst(), 1.0);
  EXPECT_EQ(expected.stats.at(0).blocks, 12u);
  for (int64_t blocks : {1, 3, 200}) {
    CompiledCase compiled(signature(blocks));
    for (uint64_t order : {blocks % 2, blocks % 2 + 2}) {
      sim::SimOptions options;
      options.seed = order;
      options.copies =
          order % 2 ? sim::CopyTiming::Late : sim::CopyTiming::Early;
      options.residentBlocks = order < 2 ? 1 : order;
      options.workers = order == 3 ? 2 : 1;
      Outcome outcome = compiled.run(shape, 5, options, /*compare=*/true);
      EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
      EXPECT_EQ(outcome.output, expected.output)
          << blocks << " blocks, order " << order;
      EXPECT_EQ(outcome.stats.at(0).blocks,
                static_cast<uint64_t>(std::min<int64_t>(blocks, 12)));
      EXPECT_THAT(outcome.kernels, ::testing::HasSubstr("p_"));
      EXPECT_EQ(outcome.report.stats.bankConflicts,
                expected.report.stats.bankConflicts);
    }
  }
}

/// K and V are copied once for each tile of queries, whichever block takes it;
/// Q and the result once.
TEST_P(EveryPersistentRow, BringAndMultiplyOnce) {
  Signature s = ofPersistent(GetParam(), /*blocks=*/2);
  s.weight.clear();
  const GpuWgmmaRow &row = GetParam();
  const int64_t queries = 3 * rowsOf(row), keys = 3 * row.keys;
  sim::SimOptions options;
  options.residentBlocks = 2;
  Outcome outcome = CompiledCase(s).run({1, queries, keys}, 3, options);
  ASSERT_TRUE(outcome.report.clean()) << outcome.report.str();
  EXPECT_LE(outcome.worst(), 1.0);
  const sim::LaunchStats &stats = outcome.stats.at(0);
  EXPECT_EQ(stats.mmaFlops,
            uint64_t(2 * queries * keys) * row.maps * uint64_t(s.d + s.dv));
  enum : size_t { Q1, K1, Q2, K2, V, O };
  auto copied = [&](size_t operand) {
    const sim::BufferStats *of = stats.findBuffer(std::to_string(operand));
    return of ? of->copiedBytes : 0;
  };
  EXPECT_EQ(copied(Q1), uint64_t(2 * queries * s.d));
  EXPECT_EQ(copied(Q2), uint64_t((row.maps - 1) * 2 * queries * s.d));
  EXPECT_EQ(copied(K1), uint64_t(3 * 2 * keys * s.d));
  EXPECT_EQ(copied(K2),
            s.sharedKeys || row.maps == 1 ? 0 : uint64_t(3 * 2 * keys * s.d));
  EXPECT_EQ(copied(V), uint64_t(3 * 2 * keys * s.dv));
  EXPECT_EQ(stats.findBuffer(std::to_string(O))->storedBytes,
            uint64_t(2 * queries * s.dv));
}

/// Tiles without keys come between others: rows far to the left of all keys,
/// and batches of no length.
TEST_P(EveryPersistentRow, TilesWithoutKeys) {
  Signature s = ofPersistent(GetParam(), /*blocks=*/2);
  s.left = 30;
  s.right = 0;
  s.kvLen = s.nanBehind = s.gate = true;
  expectRight(s, {{3, 2 * rowsOf(GetParam()) + 9, 40},
                  {2, 3 * rowsOf(GetParam()), 2 * GetParam().keys + 1}});
  Shape none{2, rowsOf(GetParam()) + 1, 30};
  none.length = 0;
  Outcome outcome = CompiledCase(s).run(none, 1);
  EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
  EXPECT_THAT(outcome.output, ::testing::Each(0.0));
}

/// A result in f32 is stored by rows, from registers or from where the maps
/// meet; its queries' place is free before.
TEST_P(EveryPersistentRow, ResultsInF32) {
  Signature s = ofPersistent(GetParam(), /*blocks=*/2);
  s.type = "f16";
  s.weight = "f32";
  s.result = "f32";
  expectRight(s, {{1, 3 * rowsOf(GetParam()) - 3, 2 * GetParam().keys}});
}

/// Parts that have no queries are passed over.
TEST_P(EveryPersistentRow, SequencesAndPages) {
  Signature s = ofPersistent(GetParam(), /*blocks=*/2);
  s.causal = s.packed = true;
  s.signal = 2;
  Shape shape;
  shape.queryLengths = {rowsOf(GetParam()) + 6, 0, 0, 65, 5, 0};
  shape.keyLengths = {100, 9, 0, 0, 97, 3};
  expectRight(s, {shape});
  s.paged = s.kvLen = true;
  shape.pageRows = 16;
  shape.keys = 112;
  expectRight(s, {shape});
  s.packed = false;
  shape.queryLengths.clear();
  shape.queries = 70;
  expectRight(s, {shape});
}

INSTANTIATE_TEST_SUITE_P(GpuPersistent, EveryPersistentRow,
                         ::testing::ValuesIn(getRows()));

/// The tiles of queries (of `rows` rows, by head) that a launch of one block
/// leaves out which goes on with number `next` behind its first tile.
std::set<std::pair<int64_t, int64_t>> findOmitted(CompiledCase &compiled,
                                                  const Shape &shape,
                                                  int64_t rows, uint32_t next) {
  compiled.beginAt(next - 1);
  Outcome outcome = compiled.run(shape, 1);
  EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
  const int64_t dv = compiled.getSignature().dv;
  std::set<std::pair<int64_t, int64_t>> omitted;
  for (size_t i = 0; i < outcome.output.size(); i += dv)
    if (std::isnan(outcome.output[i])) {
      const int64_t row = i / dv;
      omitted.insert({row / shape.queries, row % shape.queries / rows});
    }
  return omitted;
}

/// The last tiles, which see most keys, come first, of all heads of all
/// batches.
TEST(GpuPersistent, LongestRowsFirst) {
  Signature s = ofPersistent(getNarrowRow(), /*blocks=*/1);
  s.causal = true;
  s.signal = 2;
  const Shape shape{2, 300, 40};
  CompiledCase compiled(s);
  std::set<std::pair<int64_t, int64_t>> expected;
  uint32_t number = 0;
  for (int64_t tile : {2, 1, 0})
    for (int64_t head = 0; head < 4; ++head) {
      if (number % 3 == 1)
        EXPECT_EQ(findOmitted(compiled, shape, 128, number), expected);
      // The first one is the block's own.
      if (number > 0)
        expected.insert({head, tile});
      ++number;
    }
  // As a counter that was not reset: nothing is left to do.
  EXPECT_EQ(findOmitted(compiled, shape, 128, number), expected);
}

/// Heads whose keys and values do not fit the L2 together come in sections, of
/// whole groups that share values.
TEST(GpuPersistent, SectionsOfHeads) {
  Signature s = ofPersistent(getNarrowRow(), /*blocks=*/1);
  s.signal = 6;
  s.noise = s.key1 = s.key2 = s.value = 3;
  s.kvLen = true;
  // 12 MB for each head of V: two of them fit 32 MB.
  Shape shape{1, 130, 24000};
  shape.length = 5;
  CompiledCase compiled(s);
  const std::set<std::pair<int64_t, int64_t>> first{
      {1, 1}, {2, 1}, {3, 1}, {0, 0}, {1, 0}, {2, 0}, {3, 0}};
  EXPECT_EQ(findOmitted(compiled, shape, 128, 8), first);
}

/// A counter that nothing sets is found, and so is one that goes on from the
/// launch before.
TEST(GpuPersistent, CountersThatAreNotReset) {
  CompiledCase compiled(ofPersistent(getNarrowRow(), /*blocks=*/2));
  const Shape shape{1, 300, 64};
  EXPECT_TRUE(compiled.run(shape, 1).report.clean());
  compiled.beginAt(4);
  EXPECT_EQ(compiled.run(shape, 1).worst(),
            std::numeric_limits<double>::infinity());
  compiled.dropFills();
  EXPECT_TRUE(compiled.run(shape, 1).report.has(sim::FaultKind::Uninitialized));
}

/// Where every tile has a block there is no counter, so nothing must be set.
TEST(GpuPersistent, AsManyBlocksAsTilesNeedNoCounter) {
  for (int64_t blocks : {2, 3}) {
    CompiledCase compiled(ofPersistent(getNarrowRow(), blocks));
    compiled.dropFills();
    Outcome outcome = compiled.run({1, 140, 64}, 1);
    EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_LE(outcome.worst(), 1.0);
    EXPECT_EQ(outcome.stats.at(0).blocks, 2u);
  }
}

} // namespace
