//===- ResidentBlocksTest.cpp - blocks that take turns --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

#include <set>

using namespace mlir::diffattn::sim;

namespace {

/// Blocks of two warps take tiles from a counter until none is left, and write
/// down who took each.
class ResidentBlocksTest : public SimulatorTest {
protected:
  static constexpr const char *kKernel = R"(
@tile = internal addrspace(3) global i32 poison, align 4
define ptx_kernel void @k(ptr addrspace(1) %counter, ptr addrspace(1) %taken, i32 %tiles) {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %me = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %first = icmp eq i32 %tid, 0
  br label %again
again:
  br i1 %first, label %take, label %meet
take:
  %next = atomicrmw add ptr addrspace(1) %counter, i32 1 monotonic, align 4
  store i32 %next, ptr addrspace(3) @tile, align 4
  br label %meet
meet:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %mine = load i32, ptr addrspace(3) @tile, align 4
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %some = icmp slt i32 %mine, %tiles
  br i1 %some, label %work, label %end
work:
  %row = shl i32 %mine, 6
  %at = add i32 %row, %tid
  %to = getelementptr i32, ptr addrspace(1) %taken, i32 %at
  store i32 %me, ptr addrspace(1) %to, align 4
  br label %again
end:
  ret void
}
)";

  LaunchReport run(unsigned residentBlocks, uint64_t seed,
                   unsigned workers = 1) {
    EXPECT_EQ(compile(kKernel), "");
    counter = {0};
    taken.assign(40 * 64, -1);
    SimOptions options;
    options.seed = seed;
    options.residentBlocks = residentBlocks;
    options.workers = workers;
    return launch(LaunchShape{{4, 1, 1}, {64, 1, 1}, 0},
                  {buffer(counter, "counter"), buffer(taken, "taken"),
                   KernelArgument::i32(40)},
                  options);
  }

  std::set<int> takers() const { return {taken.begin(), taken.end()}; }

  std::vector<int> counter, taken;
};

TEST_F(ResidentBlocksTest, ShareTheTiles) {
  std::set<std::vector<int>> orders;
  for (uint64_t seed : {1, 2, 3, 4}) {
    LaunchReport report = run(4, seed);
    EXPECT_EQ(report.str(), "");
    EXPECT_EQ(report.stats.blocks, 4u);
    EXPECT_EQ(counter[0], 44);
    EXPECT_EQ(takers(), (std::set<int>{0, 1, 2, 3}));
    // A tile is one block's.
    for (size_t i = 0; i < taken.size(); ++i)
      ASSERT_EQ(taken[i], taken[i / 64 * 64]);
    orders.insert(taken);
  }
  EXPECT_EQ(orders.size(), 4u);
}

TEST_F(ResidentBlocksTest, OneByOneTheFirstTakesAll) {
  EXPECT_EQ(run(1, 1).str(), "");
  EXPECT_EQ(takers(), std::set<int>{0});
}

TEST_F(ResidentBlocksTest, AlsoOnWorkers) {
  EXPECT_EQ(run(2, 1, /*workers=*/2).str(), "");
  EXPECT_EQ(counter[0], 44);
  EXPECT_FALSE(takers().count(-1));
}

TEST_F(ResidentBlocksTest, MayWaitForEachOther) {
  // Block 0 waits until block 1 has raised the flag.
  const char *text = R"(
define ptx_kernel void @k(ptr addrspace(1) %flag) {
entry:
  %me = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %first = icmp eq i32 %me, 0
  br i1 %first, label %ask, label %raise
ask:
  %seen = atomicrmw add ptr addrspace(1) %flag, i32 0 acquire, align 4
  %up = icmp ne i32 %seen, 0
  br i1 %up, label %end, label %ask
raise:
  %old = atomicrmw add ptr addrspace(1) %flag, i32 1 release, align 4
  br label %end
end:
  ret void
}
)";
  for (uint64_t seed : {0, 1, 2}) {
    ASSERT_EQ(compile(text), "");
    std::vector<int> flag = {0};
    SimOptions options;
    options.seed = seed;
    options.residentBlocks = 2;
    options.maxSteps = 1'000'000;
    const LaunchShape shape{{2, 1, 1}, {32, 1, 1}, 0};
    EXPECT_EQ(launch(shape, {buffer(flag, "flag")}, options).str(), "");
    // One by one the first would wait for ever.
    flag = {0};
    options.residentBlocks = 1;
    options.maxSteps = 100'000;
    EXPECT_TRUE(launch(shape, {buffer(flag, "flag2")}, options)
                    .has(FaultKind::NoProgress));
  }
}

} // namespace
