//===- RacesTest.cpp - ordered and unordered accesses ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

using namespace mlir::diffattn::sim;

namespace {

/// Threads store to their word of shared memory, `between` happens, and they
/// load the word of thread tid ^ %mask.
class RacesTest : public SimulatorTest {
protected:
  static std::string exchange(const std::string &between,
                              const std::string &after = "") {
    return R"(
@tile = internal addrspace(3) global [128 x i32] poison, align 4
define ptx_kernel void @k(i32 %mask) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %to = getelementptr i32, ptr addrspace(3) @tile, i32 %tid
  store i32 %tid, ptr addrspace(3) %to, align 4
)" + between +
           R"(
  %other = xor i32 %tid, %mask
  %from = getelementptr i32, ptr addrspace(3) @tile, i32 %other
  %value = load i32, ptr addrspace(3) %from, align 4
)" + after +
           "  ret void\n}\n";
  }

  LaunchReport run(const std::string &text, int mask, uint64_t seed = 0,
                   uint32_t threads = 128) {
    EXPECT_EQ(compile(text), "");
    SimOptions options;
    options.seed = seed;
    return launch(threads, {KernelArgument::i32(mask)}, options);
  }

  const std::string barrier =
      "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n";
  const std::string warpSync = "  call void @llvm.nvvm.bar.warp.sync(i32 -1)\n";
  const std::string rewrite = "  store i32 0, ptr addrspace(3) %to, align 4\n";
};

TEST_F(RacesTest, BarrierOrdersTheBlock) {
  for (uint64_t seed : {0, 1, 2})
    EXPECT_EQ(run(exchange(barrier, barrier + rewrite), 64, seed).str(), "");
}

TEST_F(RacesTest, NothingOrders) {
  // The thread that comes second shows it, whichever it is: as a race, or as a
  // read of what is not yet written.
  for (uint64_t seed : {0, 1, 2, 3}) {
    LaunchReport report = run(exchange(""), 1, seed);
    EXPECT_TRUE(report.has(FaultKind::Race)) << seed << report.str();
  }
}

TEST_F(RacesTest, WriteAfterReadWithoutABarrier) {
  LaunchReport report = run(exchange(barrier, rewrite), 64);
  ASSERT_TRUE(report.has(FaultKind::Race));
  EXPECT_NE(report.str().find("and nothing orders the two"), std::string::npos);
  EXPECT_EQ(report.faults[0].other.op.empty(), false);
}

TEST_F(RacesTest, WarpSyncOrdersAWarpOnly) {
  EXPECT_EQ(run(exchange(warpSync, warpSync + rewrite), 1).str(), "");
  EXPECT_EQ(run(exchange(warpSync, warpSync + rewrite), 1, /*seed=*/5).str(),
            "");
  EXPECT_TRUE(run(exchange(warpSync), 32).has(FaultKind::Race));
}

TEST_F(RacesTest, ShuffleOrdersNothing) {
  std::string shuffle =
      "  %ignored = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %tid, "
      "i32 1, i32 31)\n";
  EXPECT_TRUE(run(exchange(shuffle), 1).has(FaultKind::Race));
}

TEST_F(RacesTest, NamedBarrierOrdersItsThreads) {
  // Pairs of warps meet at barrier 1 + warp / 2.
  std::string named = R"(
  %pair = lshr i32 %tid, 6
  %id = add i32 %pair, 1
  call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 %id, i32 64)
)";
  EXPECT_EQ(run(exchange(named), 32).str(), "");
  EXPECT_EQ(run(exchange(named), 33, /*seed=*/3).str(), "");
  EXPECT_TRUE(run(exchange(named), 64).has(FaultKind::Race));
}

TEST_F(RacesTest, ArriveReleasesButDoesNotAcquire) {
  auto byWarp = [](const std::string &first, const std::string &second) {
    return R"(
  %warp0 = icmp ult i32 %tid, 32
  br i1 %warp0, label %first, label %second
first:
)" + first +
           "  br label %met\nsecond:\n" + second + "  br label %met\nmet:\n";
  };
  std::string arrive =
      "  call void @llvm.nvvm.barrier.cta.arrive.aligned.count(i32 1, i32 "
      "64)\n";
  std::string sync =
      "  call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 1, i32 64)\n";
  // Warp 0 arrives: warp 1 may read what it wrote, not the other way round.
  auto text = [&](const std::string &reader) {
    return replaced(exchange(byWarp(arrive, sync) + "  %reads = icmp " +
                                 reader +
                                 " i32 %tid, 32\n  br i1 %reads, label %read, "
                                 "label %end\nread:\n",
                             "  br label %end\nend:\n"),
                    "define ptx_kernel void @k(i32 %mask) {\n",
                    "define ptx_kernel void @k(i32 %mask) {\nentry:\n");
  };
  EXPECT_EQ(run(text("uge"), 32, 0, 64).str(), "");
  EXPECT_TRUE(run(text("ult"), 32, 1, 64).has(FaultKind::Race));
}

TEST_F(RacesTest, AtomicsDoNotRaceWithEachOther) {
  std::string text = R"(
@sum = internal addrspace(3) global i32 poison, align 4
define ptx_kernel void @k(ptr addrspace(1) %out) {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %first = icmp eq i32 %tid, 0
  br i1 %first, label %clear, label %meet
clear:
  store i32 0, ptr addrspace(3) @sum, align 4
  br label %meet
meet:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %old = atomicrmw add ptr addrspace(3) @sum, i32 1 monotonic, align 4
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %total = load i32, ptr addrspace(3) @sum, align 4
  %grand = atomicrmw add ptr addrspace(1) %out, i32 %total monotonic, align 4
  ret void
}
)";
  ASSERT_EQ(compile(text), "");
  std::vector<int> out(1);
  EXPECT_EQ(launch(64, {buffer(out, "out")}).str(), "");
  EXPECT_EQ(out[0], 64 * 64);
  // The clearing store races with them if the barrier is missing.
  ASSERT_EQ(
      compile(replaced(
          text,
          "meet:\n  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n",
          "meet:\n")),
      "");
  EXPECT_TRUE(launch(64, {buffer(out, "out")}).has(FaultKind::Race));
}

TEST_F(RacesTest, OneThreadExchanges) {
  ASSERT_EQ(compile(R"(
define ptx_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %won) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %mine = add i32 %tid, 1
  %pair = cmpxchg ptr addrspace(1) %out, i32 0, i32 %mine monotonic monotonic, align 4
  %exchanged = extractvalue {i32, i1} %pair, 1
  %one = zext i1 %exchanged to i32
  %to = getelementptr i32, ptr addrspace(1) %won, i32 %tid
  store i32 %one, ptr addrspace(1) %to, align 4
  ret void
}
)"),
            "");
  for (uint64_t seed : {0, 1, 2}) {
    std::vector<int> out(1), won(64, -1), expected(64);
    SimOptions options;
    options.seed = seed;
    EXPECT_EQ(
        launch(64, {buffer(out, "out"), buffer(won, "won")}, options).str(),
        "");
    ASSERT_TRUE(out[0] >= 1 && out[0] <= 64) << out[0];
    expected[out[0] - 1] = 1;
    EXPECT_EQ(won, expected) << seed;
  }
}

TEST_F(RacesTest, SumsOfFloatsHaveAnOrder) {
  // Two warps, one after the other or at any time, to shared memory or to
  // global.
  auto text = [](const std::string &type, const std::string &operation,
                 bool isShared, bool isOrdered) {
    const std::string to =
        isShared ? "ptr addrspace(3) @sum" : "ptr addrspace(1) %out";
    const std::string add = "  %OLD = atomicrmw " + operation + " " + to +
                            ", " + type + " 1" + (type == "float" ? ".0" : "") +
                            " monotonic, align 4\n";
    return R"(
@sum = internal addrspace(3) global [4 x i8] poison, align 4
define ptx_kernel void @k(ptr addrspace(1) %out) {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %clears = icmp eq i32 %tid, 0
  br i1 %clears, label %clear, label %meet
clear:
  store i32 0, ptr addrspace(3) @sum, align 4
  br label %meet
meet:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %first = icmp eq i32 %tid, 0
  br i1 %first, label %one, label %between
one:
)" + replaced(add, "OLD", "old1") +
           "  br label %between\nbetween:\n" +
           (isOrdered ? "  call void @llvm.nvvm.barrier.cta.sync.aligned.all"
                        "(i32 0)\n"
                      : "") +
           R"(
  %second = icmp eq i32 %tid, 32
  br i1 %second, label %two, label %end
two:
)" + replaced(add, "OLD", "old2") +
           "  br label %end\nend:\n  ret void\n}\n";
  };
  std::vector<int> out(1);
  for (bool isShared : {true, false}) {
    auto launchOf = [&](const std::string &type, const std::string &operation,
                        bool isOrdered) {
      EXPECT_EQ(compile(text(type, operation, isShared, isOrdered)), "");
      return launch(64, {buffer(out, "out")});
    };
    LaunchReport report = launchOf("float", "fadd", /*isOrdered=*/false);
    ASSERT_TRUE(report.has(FaultKind::Order)) << report.str();
    EXPECT_NE(report.str().find("their order decides the sum"),
              std::string::npos);
    EXPECT_EQ(launchOf("float", "fadd", /*isOrdered=*/true).str(), "");
    // Neither the larger one of two nor a sum of integers depends on order.
    EXPECT_EQ(launchOf("float", "fmax", /*isOrdered=*/false).str(), "");
    EXPECT_EQ(launchOf("i32", "add", /*isOrdered=*/false).str(), "");
  }
  // Nothing orders two blocks.
  ASSERT_EQ(compile(text("float", "fadd", /*isShared=*/false,
                         /*isOrdered=*/true)),
            "");
  EXPECT_TRUE(
      launch(LaunchShape{{2, 1, 1}, {64, 1, 1}, 0}, {buffer(out, "out")})
          .has(FaultKind::Order));
}

TEST_F(RacesTest, TwoBlocksWriteOneByte) {
  ASSERT_EQ(compile(R"(
define ptx_kernel void @k(ptr addrspace(1) %out) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %tid
  store i32 %tid, ptr addrspace(1) %to, align 4
  ret void
}
)"),
            "");
  std::vector<int> out(32);
  LaunchReport report =
      launch(LaunchShape{{2, 1, 1}, {32, 1, 1}, 0}, {buffer(out, "out")});
  ASSERT_TRUE(report.has(FaultKind::Race));
  EXPECT_EQ(report.faults[0].block[0], 1u);
  // One block alone writes each byte once; a second launch may write it again.
  EXPECT_EQ(launch(32, {buffer(out, "out")}).str(), "");
  EXPECT_EQ(launch(32, {buffer(out, "out")}).str(), "");
}

TEST_F(RacesTest, InvariantLoadOfWhatTheKernelWrites) {
  ASSERT_EQ(compile(R"(
define ptx_kernel void @k(ptr addrspace(1) %p) {
  store i32 1, ptr addrspace(1) %p, align 4
  %v = load i32, ptr addrspace(1) %p, align 4, !invariant.load !0
  ret void
}
!0 = !{}
)"),
            "");
  std::vector<int> data(1);
  LaunchReport report = launch(1, {buffer(data, "data")});
  EXPECT_NE(report.str().find("although the load says that nothing does"),
            std::string::npos);
}

/// Each thread copies 16 bytes of its own row into shared memory and reads the
/// row of thread tid ^ %mask.
static const char *kCopy = R"(
@tile = internal addrspace(3) global [512 x i8] poison, align 16
define ptx_kernel void @k(i32 %mask, ptr addrspace(1) %in, ptr addrspace(1) %out) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %row = mul i32 %tid, 16
  %to = getelementptr i8, ptr addrspace(3) @tile, i32 %row
  %source = getelementptr i8, ptr addrspace(1) %in, i32 %row
  call void @llvm.nvvm.cp.async.cg.shared.global.16(ptr addrspace(3) %to, ptr addrspace(1) %source)
  call void @llvm.nvvm.cp.async.commit.group()
  call void @llvm.nvvm.cp.async.wait.group(i32 0)
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %other = xor i32 %tid, %mask
  %theirs = mul i32 %other, 16
  %from = getelementptr i8, ptr addrspace(3) @tile, i32 %theirs
  %value = load <4 x i32>, ptr addrspace(3) %from, align 16
  %result = getelementptr i8, ptr addrspace(1) %out, i32 %row
  store <4 x i32> %value, ptr addrspace(1) %result, align 16
  ret void
}
)";

class CopiesTest : public RacesTest {
protected:
  LaunchReport copy(const std::string &text, CopyTiming timing, int mask = 1) {
    EXPECT_EQ(compile(text), "");
    for (int i = 0; i < 128; ++i)
      in[i] = i;
    out.assign(128, -1);
    SimOptions options;
    options.copies = timing;
    return launch(
        32,
        {KernelArgument::i32(mask),
         KernelArgument::pointer(simulator->registerBuffer(in, 512, "in")),
         KernelArgument::pointer(
             simulator->registerBuffer(out.data(), 512, "out"))},
        options);
  }
  alignas(32) int in[128];
  std::vector<int> out;
  const std::string wait =
      "  call void @llvm.nvvm.cp.async.wait.group(i32 0)\n";
  const std::string commit = "  call void @llvm.nvvm.cp.async.commit.group()\n";
};

TEST_F(CopiesTest, ArrivesEarlyAndLate) {
  for (CopyTiming timing : {CopyTiming::Early, CopyTiming::Late}) {
    LaunchReport report = copy(kCopy, timing);
    EXPECT_EQ(report.str(), "");
    for (int i = 0; i < 128; ++i)
      EXPECT_EQ(out[i], i ^ 4);
    EXPECT_EQ(report.stats.findBuffer("in")->copiedBytes, 512u);
    EXPECT_EQ(report.stats.findBuffer("in")->sectors, 16u);
    EXPECT_EQ(report.stats.copyConflicts, 0u);
  }
}

TEST_F(CopiesTest, MissingWait) {
  for (CopyTiming timing : {CopyTiming::Early, CopyTiming::Late}) {
    LaunchReport report = copy(replaced(kCopy, wait, ""), timing);
    ASSERT_TRUE(report.has(FaultKind::NotArrived)) << report.str();
    EXPECT_EQ(report.faults[0].other.op,
              "llvm.nvvm.cp.async.cg.shared.global.16");
  }
}

TEST_F(CopiesTest, WaitThatIsTooWeak) {
  EXPECT_TRUE(copy(replaced(kCopy, "wait.group(i32 0)", "wait.group(i32 1)"),
                   CopyTiming::Late)
                  .has(FaultKind::NotArrived));
}

TEST_F(CopiesTest, MissingCommit) {
  // An uncommitted copy belongs to no group, but wait.all waits for it.
  EXPECT_TRUE(copy(replaced(kCopy, commit, ""), CopyTiming::Late)
                  .has(FaultKind::NotArrived));
  EXPECT_EQ(copy(replaced(replaced(kCopy, commit, ""), "wait.group(i32 0)",
                          "wait.all()"),
                 CopyTiming::Late)
                .str(),
            "");
}

TEST_F(CopiesTest, OwnWaitDoesNotOrderOthers) {
  std::string text = replaced(kCopy, barrier, "");
  LaunchReport report = copy(text, CopyTiming::Late);
  EXPECT_TRUE(report.has(FaultKind::Race) ||
              report.has(FaultKind::Uninitialized))
      << report.str();
  // A thread's own bytes are there after its own wait.
  EXPECT_EQ(copy(text, CopyTiming::Late, /*mask=*/0).str(), "");
}

TEST_F(CopiesTest, DestinationIsReusedTooEarly) {
  std::string again = "  call void @llvm.nvvm.cp.async.cg.shared.global.16(ptr "
                      "addrspace(3) %to, ptr addrspace(1) %source)\n";
  EXPECT_TRUE(copy(replaced(kCopy, "  ret void\n", again + "  ret void\n"),
                   CopyTiming::Late)
                  .has(FaultKind::Race));
  EXPECT_TRUE(copy(replaced(kCopy, commit, again + commit), CopyTiming::Late)
                  .has(FaultKind::Race));
  EXPECT_EQ(
      copy(replaced(kCopy, "  ret void\n", barrier + again + "  ret void\n"),
           CopyTiming::Late)
          .str(),
      "");
}

TEST_F(CopiesTest, SourceOutOfBoundsOrMisaligned) {
  auto from = [&](const std::string &offset) {
    return copy(replaced(kCopy, "ptr addrspace(1) %in, i32 %row",
                         "ptr addrspace(1) %in, i32 " + offset),
                CopyTiming::Late);
  };
  EXPECT_TRUE(from("512").has(FaultKind::OutOfBounds));
  EXPECT_TRUE(from("504").has(FaultKind::OutOfBounds));
  EXPECT_TRUE(from("-16").has(FaultKind::OutOfBounds));
  EXPECT_TRUE(from("8").has(FaultKind::Misaligned));
}

TEST_F(CopiesTest, ShortCopiesFillZeros) {
  std::string text =
      replaced(kCopy, "16(ptr addrspace(3) %to, ptr addrspace(1) %source)",
               "16.s(ptr addrspace(3) %to, ptr addrspace(1) %source, i32 8)");
  EXPECT_EQ(copy(text, CopyTiming::Late, 0).str(), "");
  EXPECT_EQ(out[5], 5);
  EXPECT_EQ(out[6], 0);
  // Nothing is read from the source of an empty copy, wherever it points.
  text = replaced(replaced(text, "i32 8)", "i32 0)"),
                  "getelementptr i8, ptr addrspace(1) %in, i32 %row",
                  "getelementptr i8, ptr addrspace(1) %in, i32 -99");
  EXPECT_EQ(copy(text, CopyTiming::Early, 0).str(), "");
  EXPECT_EQ(out[5], 0);
}

} // namespace
