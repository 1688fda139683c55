//===- MatmulTest.cpp - a pipelined product, whole and broken -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PipelinedMatmul.h"

#include <cmath>

using namespace mlir::diffattn::sim;

namespace {

TEST_F(MatmulTest, IsRightInEveryOrderAndTiming) {
  ASSERT_EQ(compile(matmul()), "");
  for (uint64_t seed : {0, 1, 2, 3})
    for (CopyTiming timing : {CopyTiming::Early, CopyTiming::Late}) {
      SimOptions options;
      options.seed = seed;
      options.copies = timing;
      LaunchReport report = run(options);
      EXPECT_EQ(report.str(), "");
      EXPECT_TRUE(right());
    }
}

TEST_F(MatmulTest, CountsWhatTheKernelMustMove) {
  ASSERT_EQ(compile(matmul()), "");
  LaunchReport report = run();
  const LaunchStats &stats = report.stats;
  // Every tile is copied once, nothing else is read, and no bank is passed
  // twice.
  EXPECT_EQ(stats.findBuffer("A")->copiedBytes, a.size() * 2);
  EXPECT_EQ(stats.findBuffer("B")->copiedBytes, b.size() * 2);
  EXPECT_EQ(stats.findBuffer("A")->loadedBytes, 0u);
  EXPECT_EQ(stats.findBuffer("C")->storedBytes, c.size() * 4);
  EXPECT_EQ(stats.findBuffer("sums")->storedBytes, sums.size() * 4);
  EXPECT_EQ(stats.mmaFlops, 2ull * kRows * kColumns * kDepth);
  EXPECT_EQ(stats.ldmatrices, 2u * 2 * 4 * kTiles);
  EXPECT_EQ(stats.bankConflicts, 0u);
  EXPECT_EQ(stats.barriers, unsigned(kTiles));
}

struct Breakage {
  const char *name;
  const char *from, *to;
  std::vector<FaultKind> kinds;
  /// The fault is no breach of any rule, but the result is wrong.
  bool wrongResult = false;
};

void PrintTo(const Breakage &breakage, std::ostream *os) {
  *os << breakage.name;
}

class BrokenMatmulTest : public MatmulTest,
                         public ::testing::WithParamInterface<Breakage> {};

TEST_P(BrokenMatmulTest, IsFound) {
  const Breakage &breakage = GetParam();
  ASSERT_EQ(compile(replaced(matmul(), breakage.from, breakage.to)), "");
  for (uint64_t seed : {0, 1, 2}) {
    SimOptions options;
    options.seed = seed;
    LaunchReport report = run(options);
    if (breakage.wrongResult) {
      EXPECT_FALSE(right());
      continue;
    }
    EXPECT_TRUE(llvm::any_of(breakage.kinds,
                             [&](FaultKind kind) { return report.has(kind); }))
        << "seed " << seed << "\n"
        << report.str();
  }
}

const char *kWait =
    "  call void @llvm.nvvm.cp.async.wait.group(i32 0) ; WAIT\n";
const char *kBarrier =
    "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) ; BARRIER\n";

INSTANTIATE_TEST_SUITE_P(
    Faults, BrokenMatmulTest,
    ::testing::Values(
        Breakage{"DroppedWait", kWait, "", {FaultKind::NotArrived}},
        Breakage{"WeakenedWait",
                 kWait,
                 "  call void @llvm.nvvm.cp.async.wait.group(i32 1)\n",
                 {FaultKind::NotArrived}},
        Breakage{"MissingBarrier",
                 kBarrier,
                 "",
                 {FaultKind::Race, FaultKind::NotArrived}},
        Breakage{"BarrierOfOneWarp",
                 kBarrier,
                 "  call void @llvm.nvvm.bar.warp.sync(i32 -1)\n",
                 {FaultKind::Race, FaultKind::NotArrived}},
        Breakage{
            "EarlyReuseOfAStage",
            "%odd = and i32 %kt, 1\n  %stage = mul i32 %odd, 6144\n  %column",
            "%odd = and i32 %kt, 0\n  %stage = mul i32 %odd, 6144\n  %column",
            {FaultKind::NotArrived, FaultKind::Race}},
        Breakage{"RowOutOfBounds",
                 "%from3 = add i32 %source, 12288",
                 "%from3 = add i32 %source, 12800",
                 {FaultKind::OutOfBounds}},
        Breakage{"RowBeforeShared",
                 "%to0 = add i32 %target, 0",
                 "%to0 = add i32 %target, -128",
                 {FaultKind::OutOfBounds}},
        Breakage{"MisalignedRow",
                 "%ao2 = shl i32 %ax2, 4",
                 "%ao2 = shl i32 %ax2, 3",
                 {FaultKind::Misaligned}},
        Breakage{"MisalignedCopy",
                 "%column = shl i32 %chunk, 4",
                 "%column = shl i32 %chunk, 3",
                 {FaultKind::Misaligned}},
        Breakage{"WrongSwizzle",
                 "%bx1 = xor i32 %bc1, %l8",
                 "%bx1 = xor i32 %bc1, %l16",
                 {FaultKind::OutOfBounds, FaultKind::Uninitialized}},
        Breakage{"NoSwizzleWhereRead",
                 ", %l8 ; SWIZZLE",
                 ", 0",
                 {},
                 /*wrongResult=*/true},
        Breakage{"WrongLaneInAShuffle",
                 "float %w1, i32 2, i32 31",
                 "float %w1, i32 4, i32 31",
                 {},
                 /*wrongResult=*/true},
        Breakage{"HalfAWarp",
                 "end:\n",
                 "end:\n  %half = icmp ult i32 %lane, 16\n  br i1 %half, label "
                 "%go, label %done\ngo:\n",
                 {FaultKind::Divergence}},
        Breakage{"OneWarpOnly",
                 "  br label %loop\nloop:\n  %kt = phi i32 [0, %entry]",
                 "  %one = icmp eq i32 %warp, 0\n  br i1 %one, label %loop, "
                 "label %done\nloop:\n  %kt = phi i32 [0, %entry]",
                 {FaultKind::Deadlock}},
        Breakage{"TileNotCopied",
                 "  %more = icmp ult i32 %next, 4",
                 "  %more = icmp ult i32 %next, 3",
                 {},
                 /*wrongResult=*/true}),
    [](const ::testing::TestParamInfo<Breakage> &info) {
      return std::string(info.param.name);
    });

TEST_F(MatmulTest, ConflictsWithoutASwizzleAreCounted) {
  // Neither the copies nor the reads swizzle: right, but eight rows lie in the
  // same banks.
  std::string text = replaced(matmul(), ", %l8 ; SWIZZLE", ", 0");
  text = replaced(text, "%swizzled = xor i32 %chunk, %first",
                  "%swizzled = xor i32 %chunk, 0");
  ASSERT_EQ(compile(text), "");
  LaunchReport report = run();
  EXPECT_EQ(report.str(), "");
  EXPECT_TRUE(right());
  // Each of the four matrices of an ldmatrix passes the banks eight times.
  EXPECT_EQ(report.stats.ldmatrixConflicts, report.stats.ldmatrices * 4 * 7);
}

TEST_F(MatmulTest, TooLittleSharedMemory) {
  ASSERT_EQ(compile(matmul()), "");
  c.assign(kRows * kColumns, NAN);
  sums.assign(kRows, NAN);
  LaunchReport report = launch(
      LaunchShape{{1, 1, 1}, {64, 1, 1}, 2 * kStageBytes - 16},
      {buffer(a, "A"), buffer(b, "B"), buffer(c, "C"), buffer(sums, "sums")});
  EXPECT_TRUE(report.has(FaultKind::OutOfBounds));
}

} // namespace
