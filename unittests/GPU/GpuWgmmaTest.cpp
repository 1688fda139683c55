//===- GpuWgmmaTest.cpp - kernels by warpgroups on the simulator ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GpuCase.h"

#include "DiffAttn/Schedule/GpuSchedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

/// Each row of the table, with its own widths, and a block for each tile of
/// queries: GpuPersistentTest has those that share them out.
class EveryWgmmaRow : public ::testing::TestWithParam<GpuWgmmaRow> {
protected:
  static Signature signature() { return ofRow(GetParam()); }
  static int64_t rows() {
    return GetParam().placement == GpuPlacement::Both ? 128 : 64;
  }
};

/// Each row is chosen, with persistent blocks if it has them, unless only its
/// name selects it.
TEST_P(EveryWgmmaRow, IsChosen) {
  Signature s = signature();
  // For tiles that are not even.
  s.causal = true;
  const GpuWgmmaRow &row = GetParam();
  if (!row.byName)
    s.schedule.clear();
  const bool isPersistent =
      llvm::any_of(getGpuWgmmaTable(), [&](const GpuWgmmaRow &other) {
        return other.persistentBlocks && !other.byName && !row.byName &&
               std::tie(other.headDim, other.valueDim, other.sharedKeys,
                        other.minKeys, other.maps) ==
                   std::tie(row.headDim, row.valueDim, row.sharedKeys,
                            row.minKeys, row.maps);
      });
  Outcome outcome =
      CompiledCase(s).run({1, 9, std::max<int64_t>(row.minKeys, 5)}, 1);
  const std::string placement =
      row.placement == GpuPlacement::Both ? "both" : "apart";
  EXPECT_THAT(outcome.kernels,
              ::testing::HasSubstr(
                  "_wgmma_" + placement + "_k" + std::to_string(row.keys) +
                  "s" + std::to_string(row.stages) +
                  (row.cluster > 1 ? "c2" : "") + (row.overlap ? "o" : "") +
                  (isPersistent ? "p" : "") + "_"));
  EXPECT_GT(outcome.stats.at(0).wgmmas, 0u);
  EXPECT_EQ(outcome.stats.at(0).mmas, 0u);
}

/// The ring comes round, rows and keys end within tiles and at their edges.
TEST_P(EveryWgmmaRow, CausalAroundTileEdges) {
  Signature s = signature();
  s.causal = true;
  const int64_t keys = GetParam().keys;
  expectRight(s, {{1, rows(), keys},
                  {1, rows() + 1, keys * GetParam().stages + keys + 1},
                  {2, 9, 1},
                  {1, 2 * rows() - 1, 2 * keys - 1}});
}

TEST_P(EveryWgmmaRow, WithoutMask) {
  Signature s = signature();
  s.type = "f16";
  s.weight = "f32";
  s.result = "f32";
  expectRight(s, {{1, rows() - 3, 3 * GetParam().keys}, {1, 17, 1}});
}

TEST_P(EveryWgmmaRow, WindowLengthsOffsetsAndGate) {
  Signature s = signature();
  s.left = 90;
  s.right = 30;
  s.kvLen = s.nanBehind = s.qOffset = s.gate = s.epsOutside = true;
  expectRight(s, {{3, 70, 200}, {2, 16, 16}});
}

/// A length hides all memory behind it, also NaN.
TEST_P(EveryWgmmaRow, NaNBehindTheLength) {
  Signature s = signature();
  s.kvLen = s.nanBehind = true;
  expectRight(s, {{4, 20, 3 * GetParam().keys}});
}

TEST_P(EveryWgmmaRow, OneResultInEveryOrder) {
  Signature s = signature();
  s.causal = true;
  CompiledCase compiled(s);
  const Shape shape{1, rows() + 5, 4 * GetParam().keys + 7};
  Outcome first = compiled.run(shape, /*seed=*/3);
  ASSERT_TRUE(first.report.clean()) << first.report.str();
  for (uint64_t order : {1, 2, 7, 1234}) {
    sim::SimOptions options;
    options.seed = order;
    options.copies = order % 2 ? sim::CopyTiming::Late : sim::CopyTiming::Early;
    options.workers = order == 7 ? 2 : 1;
    Outcome again = compiled.run(shape, /*seed=*/3, options);
    EXPECT_TRUE(again.report.clean()) << again.report.str();
    EXPECT_EQ(again.output, first.output) << "order " << order;
  }
}

/// K and V are brought once a block, or once for a cluster, every product is
/// made once, and the result is stored once: in boxes, where the kernel has
/// them, else in whole sectors. Shared memory meets no bank twice.
TEST_P(EveryWgmmaRow, BringsAndMultipliesOnce) {
  Signature s = signature();
  s.weight.clear();
  const GpuWgmmaRow &row = GetParam();
  const int64_t keys = 5 * row.keys;
  Shape shape{1, 2 * rows(), keys};
  // Rows begin with a sector.
  shape.gap = 8;
  Outcome outcome = CompiledCase(s).run(shape, 3);
  ASSERT_TRUE(outcome.report.clean()) << outcome.report.str();
  const sim::LaunchStats &stats = outcome.stats.at(0);
  ASSERT_EQ(stats.blocks, 2u);
  const uint64_t scores = stats.blocks * rows() * keys;
  EXPECT_EQ(stats.mmaFlops, 2 * scores * row.maps * uint64_t(s.d + s.dv));
  enum : size_t { Q1, K1, Q2, K2, V, O };
  auto copied = [&](size_t operand) {
    const sim::BufferStats *of = stats.findBuffer(std::to_string(operand));
    return of ? of->copiedBytes : 0;
  };
  EXPECT_EQ(copied(Q1), uint64_t(2 * 2 * rows() * s.d));
  const bool hasSecondKeys = row.maps == 2 && !s.sharedKeys;
  EXPECT_EQ(copied(Q2), uint64_t((row.maps - 1) * 2 * 2 * rows() * s.d));
  const uint64_t times = stats.blocks / row.cluster;
  EXPECT_EQ(copied(K1), times * 2 * keys * s.d);
  EXPECT_EQ(copied(K2), hasSecondKeys ? times * 2 * keys * s.d : 0);
  EXPECT_EQ(copied(V), times * 2 * keys * s.dv);
  const sim::BufferStats *result = stats.findBuffer(std::to_string(O));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->storedBytes, uint64_t(2 * 2 * rows() * s.dv));
  EXPECT_EQ(result->loadedBytes + result->copiedBytes, 0u);
  // Sectors of boxes are not counted.
  EXPECT_EQ(result->sectors,
            row.placement == GpuPlacement::Both ? 0 : result->storedBytes / 32);
  EXPECT_EQ(stats.bankConflicts, 0u);
  // Each block: queries, then a box of each panel of a tile, then of each
  // warp's rows.
  const uint64_t panels = (s.d + 63) / 64, valuePanels = (s.dv + 63) / 64;
  uint64_t boxes =
      row.maps * panels + 5 * ((hasSecondKeys ? 2 : 1) * panels + valuePanels);
  if (row.placement == GpuPlacement::Both)
    boxes += rows() / 16 * valuePanels;
  EXPECT_EQ(stats.bulkCopies, stats.blocks * boxes);
}

INSTANTIATE_TEST_SUITE_P(GpuWgmma, EveryWgmmaRow,
                         ::testing::ValuesIn(getWgmmaRowsOfBlocks()));

/// Warps whose rows all exist store boxes; one that ends beyond the queries
/// stores its rows.
TEST(GpuWgmma, StoresBoxesOfWholeTiles) {
  Signature s = onHopper(64, 128);
  CompiledCase compiled(s);
  auto countBoxes = [&](int64_t queries) {
    Outcome outcome = compiled.run({1, queries, 64}, 1);
    EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_LE(outcome.worst(), 1.0);
    EXPECT_EQ(outcome.stats.at(0).findBuffer("5")->storedBytes,
              uint64_t(2 * queries * s.dv));
    // Two boxes of Q, four of K and V.
    return outcome.stats.at(0).bulkCopies - 6;
  };
  EXPECT_EQ(countBoxes(128), 8u * 2);
  EXPECT_EQ(countBoxes(127), 7u * 2);
  EXPECT_EQ(countBoxes(33), 2u * 2);
  EXPECT_EQ(countBoxes(15), 0u);
}

/// A result in f32 has no map, and takes none.
TEST(GpuWgmma, ResultsThatNoMapDescribes) {
  Signature s = onHopper(64, 128);
  s.result = "f32";
  Outcome outcome = CompiledCase(s).run({1, 128, 64}, 1);
  EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
  EXPECT_LE(outcome.worst(), 1.0);
  EXPECT_GT(outcome.stats.at(0).wgmmas, 0u);
  EXPECT_EQ(outcome.stats.at(0).bulkCopies, 6u);
}

/// Blocks without queries bring their part for the others of the cluster; rows
/// of two blocks see other keys; a cluster has the parts of one sequence.
TEST(GpuWgmma, Clusters) {
  const GpuWgmmaRow *row =
      llvm::find_if(getGpuWgmmaTable(),
                    [](const GpuWgmmaRow &row) { return row.cluster > 1; });
  ASSERT_NE(row, getGpuWgmmaTable().end());
  Signature s = ofRow(*row);
  s.left = 40;
  s.right = 0;
  s.signal = s.noise = 2;
  expectRight(s, {{2, 64, 130}, {1, 65, 200}, {1, 1, 3}, {1, 20, 0}});
  s.packed = true;
  Shape shape;
  shape.queryLengths = {70, 0, 129, 5};
  shape.keyLengths = {100, 9, 0, 97};
  expectRight(s, {shape});
  s.paged = s.kvLen = true;
  for (int64_t rows : {16, 48, 32}) {
    shape.pageRows = rows;
    shape.keys = 192;
    shape.keyLengths = {100, 9, 190, 97};
    expectRight(s, {shape});
  }
}

/// The order of products is no order of sums: rows whose maximum grows in every
/// tile, and those whose does not, with no tile, one, and many.
TEST(GpuWgmma, OverlapHasTheBitsOfThePlainOrder) {
  for (const GpuWgmmaRow &row : getGpuWgmmaTable()) {
    if (!row.overlap)
      continue;
    GpuWgmmaRow plain = row;
    plain.overlap = false;
    auto compile = [](const GpuWgmmaRow &row) {
      Signature s = ofRow(row);
      s.causal = s.kvLen = s.nanBehind = true;
      return std::make_unique<CompiledCase>(s);
    };
    auto one = compile(row), other = compile(plain);
    for (auto [keys, length] : {std::pair<int64_t, int64_t>{3, 0},
                                {9, 9},
                                {5 * row.keys, 4 * row.keys - 5}})
      for (double growth : {0.0, 0.3}) {
        Shape shape{2, 70, keys};
        shape.length = length;
        shape.growth = growth;
        Outcome overlapped = one->run(shape, 5),
                expected = other->run(shape, 5);
        EXPECT_TRUE(overlapped.report.clean()) << overlapped.report.str();
        EXPECT_LE(overlapped.worst(), 1.0);
        EXPECT_EQ(overlapped.output, expected.output);
        EXPECT_NE(overlapped.kernels, expected.kernels);
      }
  }
}

/// Blocks that bring tiles for each other.
TEST(GpuWgmma, OverlapInClusters) {
  GpuWgmmaRow row{128, 256, false, GpuPlacement::Apart, 64, 2, 2, true};
  Signature s = ofRow(row);
  s.causal = true;
  expectRight(s, {{1, 70, 70}, {1, 129, 200}, {1, 5, 0}});
}

/// Columns of a panel that the tensor does not have are zeros.
TEST(GpuWgmma, OtherWidthsTakeTheLeastRowThatHoldsThem) {
  for (auto [d, dv] : {std::pair<int64_t, int64_t>{32, 64},
                       {8, 8},
                       {40, 72},
                       {72, 136},
                       {72, 200},
                       {136, 104}}) {
    Signature s = onHopper(d, dv);
    s.causal = true;
    expectRight(s, {{1, 70, 70}});
  }
}

TEST(GpuWgmma, GroupsOfHeadsAndLambdas) {
  Signature s = onHopper(64, 128);
  s.signal = 6;
  s.noise = 2;
  s.key1 = 3;
  s.key2 = 1;
  s.value = 3;
  s.bthd = s.sigmoid = true;
  for (int lambda : {1, 2, 3}) {
    s.lambda = lambda;
    expectRight(s, {{2, 17, 40}});
  }
}

TEST(GpuWgmma, ScalesThatAreMultipliedFirst) {
  Signature s = onHopper(64, 128);
  for (double scale : {-0.3, 20.0}) {
    s.scale = scale;
    expectRight(s, {{1, 40, 70}});
  }
}

/// Rows without keys are zeros; no map describes nothing.
TEST(GpuWgmma, NoKeys) {
  Outcome outcome = CompiledCase(onHopper(64, 128)).run({1, 20, 0}, 1);
  EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
  EXPECT_EQ(outcome.stats.at(0).wgmmas, 0u);
  EXPECT_THAT(outcome.output, ::testing::Each(0.0));
}

/// Layouts that a tensor map cannot describe, and features that the kernel does
/// not have.
TEST(GpuWgmma, OtherCallsTakeMmaSync) {
  auto expectOther = [](const Signature &s, const Shape &shape) {
    Outcome outcome = CompiledCase(s).run(shape, 1);
    EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_LE(outcome.worst(), 1.0);
    EXPECT_EQ(outcome.stats.at(0).wgmmas, 0u) << outcome.kernels;
    EXPECT_GT(outcome.stats.at(0).mmas, 0u) << outcome.kernels;
  };
  Signature s = onHopper(64, 128);
  s.step = 2;
  expectOther(s, {1, 20, 30});
  s.step = 1;
  s.softcap = 5.0;
  expectOther(s, {1, 20, 30});
  s.softcap = 0.0;
  s.bias = "i1";
  expectOther(s, {1, 20, 30});
  s.bias = "f32";
  expectOther(s, {1, 20, 30});
  s.bias.clear();
  s.d = 20;
  expectOther(s, {1, 20, 30});
}

} // namespace
