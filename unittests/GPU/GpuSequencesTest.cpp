//===- GpuSequencesTest.cpp - packed sequences and pages ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Kernels that find keys by a table of pages, and their queries and keys by
// bounds of sequences, on the simulator. Keys that no sequence has are NaN.
//
//===----------------------------------------------------------------------===//
#include "FaultInjection.h"
#include "GpuCase.h"

#include "llvm/Transforms/Utils/Cloning.h"
#include <gmock/gmock.h>

using namespace mlir;
using namespace mlir::diffattn;
using sim::FaultKind;
using ::testing::HasSubstr;

namespace {

Signature small(int64_t d = 32, int64_t dv = 64) {
  Signature s;
  s.d = d;
  s.dv = dv;
  s.causal = true;
  return s;
}

Signature paged(Signature s) {
  s.paged = s.kvLen = true;
  return s;
}

Shape pagesOf(int64_t rows, std::vector<int64_t> lengths, int64_t queries,
              int64_t keys) {
  Shape shape{1, queries, keys};
  shape.pageRows = rows;
  shape.keyLengths = std::move(lengths);
  return shape;
}

Shape packed(std::vector<int64_t> queries, std::vector<int64_t> keys) {
  Shape shape;
  shape.queryLengths = std::move(queries);
  shape.keyLengths = std::move(keys);
  return shape;
}

Shape packedPages(int64_t rows, std::vector<int64_t> queries,
                  std::vector<int64_t> lengths, int64_t keys) {
  Shape shape = packed(std::move(queries), std::move(lengths));
  shape.pageRows = rows;
  shape.keys = keys;
  return shape;
}

/// Pages of one key, that end inside tiles, that are as long as them and
/// longer; sequences without keys, and with as many as there is place for.
TEST(GpuSequences, PagesOfAnyLength) {
  expectRight(paged(small()),
              {pagesOf(1, {37, 0, 70}, 40, 70), pagesOf(5, {33, 90}, 40, 90),
               pagesOf(16, {95, 16}, 40, 96), pagesOf(24, {47}, 70, 48),
               pagesOf(32, {65, 31}, 20, 96), pagesOf(160, {100}, 33, 160)});
}

TEST(GpuSequences, PagesOfEveryForm) {
  // Pairs of warps, maps apart, rows of tokens, elements.
  Signature s = paged(small(128, 256));
  s.signal = 4;
  s.noise = 2;
  s.value = 2;
  s.bthd = true;
  expectRight(s, {pagesOf(8, {70, 9}, 20, 72)});
  s = paged(small(128, 128));
  s.sharedKeys = s.sigmoid = true;
  s.lambda = 2;
  s.left = 40;
  s.schedule = "placement = apart, warps = 4, kv_block_size = 32, stages = 3";
  expectRight(s, {pagesOf(48, {90, 60}, 20, 96)});
  s = paged(small(20, 36));
  s.softcap = 3.0;
  expectRight(s, {pagesOf(7, {70, 10}, 20, 70)});
  s = paged(small());
  s.step = 3;
  s.qOffset = true;
  expectRight(s, {pagesOf(16, {50, 64}, 20, 64)});
  s = paged(small(20, 36));
  s.type = "f32";
  expectRight(s, {pagesOf(7, {70, 10}, 6, 70), pagesOf(32, {64}, 6, 64)});
}

TEST(GpuSequences, DecodeFromPages) {
  Signature s = paged(small(64, 128));
  s.queries = 2;
  s.signal = 4;
  s.noise = 2;
  s.rms = true;
  expectRight(s, {pagesOf(16, {300, 0, 129}, 2, 304),
                  pagesOf(5, {90, 200}, 2, 200), pagesOf(256, {250}, 2, 256)});
  s.d = 20;
  s.left = 50;
  expectRight(s, {pagesOf(24, {130, 60}, 2, 144)});
}

/// Prefill, decode and f32 with one map, from pages and of sequences.
TEST(GpuSequences, OneMap) {
  auto withOneMap = [](Signature s) {
    s.maps = 1;
    s.signal = s.noise = 4;
    s.key1 = s.value = 2;
    return s;
  };
  Signature s = withOneMap(paged(small(64, 64)));
  s.left = 40;
  expectRight(s, {pagesOf(48, {90, 60}, 20, 96)});
  s.type = "f32";
  expectRight(s, {pagesOf(7, {70, 10}, 6, 70)});
  s = withOneMap(paged(small(20, 36)));
  s.queries = 2;
  s.rms = true;
  expectRight(s, {pagesOf(16, {300, 0, 129}, 2, 304)});
  s = withOneMap(small(64, 64));
  s.packed = s.gate = true;
  expectRight(s, {packed({70, 0, 64, 3, 130}, {70, 9, 100, 0, 64}),
                  packed({1, 3, 0, 1}, {9, 40, 20, 1})});
}

/// Blocks begin within sequences and at their ends, some sequences have no
/// queries or no keys, and nothing is written of the next one.
TEST(GpuSequences, PackedQueries) {
  Signature s = small();
  s.packed = s.rms = s.gate = true;
  s.weight = "bf16";
  s.lambda = 2;
  expectRight(s, {packed({70, 0, 64, 3, 130}, {70, 9, 100, 0, 64}),
                  packed({200}, {33})});
  s = small(128, 256);
  s.packed = s.qOffset = true;
  s.signal = 4;
  s.noise = 2;
  s.left = 30;
  s.right = 5;
  s.bthd = true;
  expectRight(s, {packed({20, 0, 50}, {60, 5, 40})});
  s = small(20, 36);
  s.packed = true;
  expectRight(s, {packed({20, 40}, {50, 33})});
  s.type = "f32";
  expectRight(s, {packed({5, 0, 6}, {40, 9, 33})});
}

TEST(GpuSequences, PackedQueriesOfPages) {
  Signature s = paged(small());
  s.packed = true;
  s.signal = 2;
  expectRight(s, {packedPages(16, {40, 70}, {60, 70}, 80),
                  packedPages(5, {33, 0, 90}, {33, 8, 20}, 35)});
  s.type = "f32";
  expectRight(s, {packedPages(5, {3, 0, 9}, {33, 8, 20}, 35)});
}

/// About one query each: ranges of keys. Sequences with more rows than a block
/// has take several.
TEST(GpuSequences, PackedDecode) {
  Signature s = paged(small(64, 128));
  s.packed = true;
  s.signal = 4;
  s.noise = 2;
  s.lambda = 2;
  const std::vector<Shape> shapes{
      packedPages(16, {1, 1, 0, 1}, {140, 3, 20, 0}, 144),
      packedPages(8, {9, 1, 1, 20}, {60, 70, 1, 33}, 72)};
  expectRight(s, shapes);
  EXPECT_THAT(CompiledCase(s).run(shapes[1], 1).kernels,
              HasSubstr("diffattn_decode_"));
  s.paged = s.kvLen = false;
  expectRight(s, {packed({1, 0, 2, 1}, {150, 20, 33, 0})});
}

/// Each tile is copied once, as without pages, and each thread asks the table
/// once for a row of a tile, of which it has two.
TEST(GpuSequences, TableIsReadOnceForEachRow) {
  Signature s = paged(small(64, 128));
  s.causal = false;
  s.schedule = "placement = apart, warps = 8, row_tiles = 2, "
               "kv_block_size = 32, stages = 2, q_in_registers = true";
  Shape shape = pagesOf(16, {96}, 64, 96);
  Outcome outcome = CompiledCase(s).run(shape, 1);
  ASSERT_TRUE(outcome.report.clean()) << outcome.report.str();
  ASSERT_THAT(outcome.kernels, HasSubstr("apart8x2_k32"));
  const sim::LaunchStats &stats = outcome.stats.at(0);
  enum : size_t { Q1, K1, Q2, K2, V, O, Lambda, KvLen, Table };
  auto bytes = [&](size_t buffer) {
    return *stats.findBuffer(std::to_string(buffer));
  };
  for (size_t operand : {K1, K2})
    EXPECT_EQ(bytes(operand).copiedBytes, uint64_t(2 * 96 * s.d));
  EXPECT_EQ(bytes(V).copiedBytes, uint64_t(2 * 96 * s.dv));
  EXPECT_EQ(bytes(Table).loadedBytes, uint64_t(3 * 256 * sizeof(int64_t)));
}

/// Tiles end within pages and at their ends; boxes are as long as pages, as
/// tiles, or 16 rows. Other pages are copied by threads.
TEST(GpuSequences, HopperReadsPagesByMaps) {
  Signature s = paged(onHopper(64, 128));
  s.causal = true;
  s.queries = 1;
  const std::vector<Shape> shapes{pagesOf(16, {300, 0, 129}, 1, 304),
                                  pagesOf(32, {90, 200}, 1, 224),
                                  pagesOf(192, {190}, 1, 192)};
  expectRight(s, shapes);
  CompiledCase compiled(s);
  Outcome byMaps = compiled.run(shapes[0], 5);
  EXPECT_THAT(byMaps.kernels, HasSubstr("_bulk"));
  // Eight tiles of 64 keys, each of a box of 16 for the panels of K1, K2 and V.
  EXPECT_EQ(byMaps.stats.at(0).bulkCopies, 8u * 4 * (1 + 1 + 2));
  s.chip = "sm_90";
  EXPECT_EQ(CompiledCase(s).run(shapes[0], 5).output, byMaps.output);
  EXPECT_EQ(compiled.run(pagesOf(24, {70}, 1, 72), 1).stats.at(0).bulkCopies,
            0u);
}

TEST(GpuSequences, HopperMultipliesByWarpgroups) {
  Signature s = paged(onHopper(64, 128));
  s.causal = true;
  const std::vector<Shape> shapes{pagesOf(16, {100, 64}, 140, 112),
                                  pagesOf(64, {130}, 30, 192)};
  expectRight(s, shapes);
  EXPECT_THAT(CompiledCase(s).run(shapes[0], 1).kernels, HasSubstr("_wgmma_"));
  s.packed = true;
  expectRight(s, {packedPages(16, {140, 0, 30}, {100, 3, 64}, 112)});
  s.paged = s.kvLen = false;
  expectRight(s, {packed({130, 0, 30}, {70, 9, 64}), packed({70}, {70})});
  // Boxes of 80 rows, and of 16 of them.
  s = paged(onHopper(128, 256));
  s.causal = true;
  expectRight(s, {pagesOf(80, {100, 64}, 20, 160), pagesOf(48, {96}, 20, 96)});
  s = onHopper(128, 128);
  s.sharedKeys = s.packed = s.causal = true;
  expectRight(s, {packed({40, 30}, {150, 30})});
}

TEST(GpuSequences, HopperDecodesPackedSequences) {
  Signature s = paged(onHopper(64, 128));
  s.packed = true;
  s.signal = 4;
  s.noise = 2;
  const Shape shape = packedPages(16, {1, 1, 0, 3}, {140, 3, 20, 77}, 144);
  expectRight(s, {shape});
  EXPECT_THAT(CompiledCase(s).run(shape, 1).kernels, HasSubstr("_bulk"));
  s.paged = s.kvLen = false;
  expectRight(s, {packed({1, 0, 2, 1}, {150, 20, 33, 0})});
}

/// An entry that is no page gives zeros, and the report names it.
TEST(GpuSequences, PagesThatAreNone) {
  for (auto [type, chip] :
       {std::pair{"bf16", "sm_80"}, {"f32", "sm_80"}, {"bf16", "sm_90a"}}) {
    Signature s = paged(small());
    s.type = type;
    s.chip = chip;
    Shape shape = pagesOf(16, {40, 20}, 20, 48);
    shape.wrongPages = true;
    CompiledCase compiled(s);
    Outcome outcome = compiled.run(shape, 1);
    EXPECT_THAT(outcome.report.str(),
                HasSubstr("index out of range: an entry of block_table is "));
    for (const sim::Fault &fault : outcome.report.faults)
      EXPECT_EQ(fault.kind, FaultKind::Index);
    EXPECT_LE(outcome.worst(), 1.0);
  }
}

} // namespace
