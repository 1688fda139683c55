//===- GpuBulkDecodeTest.cpp - decode by tensor maps on the simulator -----===//
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

Signature decodeOnHopper(int64_t d, int64_t dv) {
  Signature s = onHopper(d, dv);
  s.queries = 1;
  return s;
}

TEST(GpuBulkDecode, IsChosenAndBringsEachTileOnce) {
  for (auto [d, dv] : {std::pair<int64_t, int64_t>{64, 128}, {128, 256}}) {
    Signature s = decodeOnHopper(d, dv);
    s.weight.clear();
    const int64_t keys = 2 * getGpuSplitTable().back().splitKeys;
    Outcome outcome = CompiledCase(s).run({1, 1, keys}, 3);
    ASSERT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_LE(outcome.worst(), 1.0);
    EXPECT_THAT(outcome.kernels, ::testing::HasSubstr("_bulk"));
    const sim::LaunchStats &stats = outcome.stats.at(0);
    EXPECT_EQ(stats.blocks, 2u);
    EXPECT_GT(stats.bulkCopies, 0u);
    EXPECT_EQ(stats.mmaFlops, uint64_t(2 * 16 * keys * (2 * d + dv)));
    EXPECT_EQ(stats.bankConflicts, 0u);
    enum : size_t { Q1, K1, Q2, K2, V };
    auto copied = [&](size_t operand) {
      const sim::BufferStats *of = stats.findBuffer(std::to_string(operand));
      return of ? of->copiedBytes : 0;
    };
    EXPECT_EQ(copied(Q1), uint64_t(2 * 2 * d));
    EXPECT_EQ(copied(K1), uint64_t(2 * keys * d));
    EXPECT_EQ(copied(K2), uint64_t(2 * keys * d));
    EXPECT_EQ(copied(V), uint64_t(2 * keys * dv));
  }
}

/// The ring comes round; keys end within tiles and at their edges; panels have
/// columns that the tensor does not have.
TEST(GpuBulkDecode, Widths) {
  for (auto [d, dv] : {std::pair<int64_t, int64_t>{64, 128},
                       {128, 256},
                       {32, 64},
                       {40, 72},
                       {96, 192},
                       {8, 8}}) {
    Signature s = decodeOnHopper(d, dv);
    s.causal = true;
    expectRight(s, {{1, 1, 600}, {2, 1, 64}, {1, 1, 1}});
    // Who copies makes no difference to a number.
    Outcome byMaps = CompiledCase(s).run({1, 1, 300}, 5);
    s.chip = "sm_90";
    Outcome byThreads = CompiledCase(s).run({1, 1, 300}, 5);
    EXPECT_NE(byMaps.kernels, byThreads.kernels);
    EXPECT_EQ(byMaps.output, byThreads.output);
  }
}

TEST(GpuBulkDecode, LengthsGroupsAndSeveralQueries) {
  Signature s = decodeOnHopper(64, 128);
  s.queries = 2;
  s.signal = 4;
  s.kvLen = s.nanBehind = s.sigmoid = true;
  s.lambda = 2;
  s.left = 130;
  expectRight(s, {{3, 2, 530}, {4, 2, 70}});
}

TEST(GpuBulkDecode, OneMap) {
  for (auto [d, dv] : {std::pair<int64_t, int64_t>{64, 64}, {40, 200}}) {
    Signature s = decodeOnHopper(d, dv);
    s.maps = 1;
    s.signal = s.noise = 4;
    s.key1 = s.value = 2;
    s.queries = 2;
    s.causal = s.kvLen = s.nanBehind = true;
    s.bias = d == 40 ? "bf16" : "";
    expectRight(s, {{2, 2, 300}, {1, 2, 1}});
    EXPECT_THAT(CompiledCase(s).run({1, 2, 40}, 1).kernels,
                ::testing::HasSubstr("_bulk_onemap"));
  }
}

TEST(GpuBulkDecode, OneKeyBiasAndSoftcap) {
  Signature s = decodeOnHopper(128, 128);
  s.sharedKeys = s.gate = s.kvLen = s.nanBehind = true;
  s.signal = 4;
  s.bias = "bf16";
  s.softcap = 5.0;
  expectRight(s, {{2, 1, 300}});
  // With wide values, a bias or a mask leaves registers for fewer warps.
  s.dv = 256;
  s.weight = s.type;
  for (const char *bias : {"bf16", "i1"}) {
    s.bias = bias;
    expectRight(s, {{2, 1, 300}});
    EXPECT_THAT(CompiledCase(s).run({1, 1, 40}, 1).kernels,
                ::testing::HasSubstr("_both2x1_k32s4_bulk_onekey_softcap"));
  }
}

TEST(GpuBulkDecode, OneResultInEveryOrder) {
  Signature s = decodeOnHopper(64, 128);
  s.queries = 2;
  s.signal = s.noise = 2;
  s.schedule = "#diffattn.when<tensor_maps = true : #diffattn.gpu_split_kv<"
               "warps = 2, stages = 3, bulk_copies = true, kv_split_size = "
               "256>>, #diffattn.gpu_split_kv<warps = 4, kv_split_size = 256>";
  CompiledCase compiled(s);
  Outcome first = compiled.run({2, 2, 500}, /*seed=*/3);
  ASSERT_TRUE(first.report.clean()) << first.report.str();
  EXPECT_THAT(first.kernels, ::testing::HasSubstr("_bulk"));
  for (uint64_t order : {1, 2, 7, 1234}) {
    sim::SimOptions options;
    options.seed = order;
    options.copies = order % 2 ? sim::CopyTiming::Late : sim::CopyTiming::Early;
    options.workers = order == 7 ? 2 : 1;
    Outcome again = compiled.run({2, 2, 500}, /*seed=*/3, options);
    EXPECT_TRUE(again.report.clean()) << again.report.str();
    EXPECT_EQ(again.output, first.output) << "order " << order;
  }
}

/// Layouts that a tensor map cannot describe, and features that the kernel does
/// not have.
TEST(GpuBulkDecode, OtherCallsCopyByThreads) {
  auto expectOther = [](const Signature &s) {
    Outcome outcome = CompiledCase(s).run({1, 1, 200}, 1);
    EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_LE(outcome.worst(), 1.0);
    EXPECT_EQ(outcome.stats.at(0).bulkCopies, 0u) << outcome.kernels;
    EXPECT_THAT(outcome.kernels, ::testing::HasSubstr("diffattn_decode_"));
  };
  Signature s = decodeOnHopper(64, 128);
  s.step = 2;
  expectOther(s);
  s.step = 1;
  s.chip = "sm_90";
  expectOther(s);
  s.chip = "sm_90a";
  s.d = 20;
  expectOther(s);
}

} // namespace
