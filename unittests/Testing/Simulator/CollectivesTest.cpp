//===- CollectivesTest.cpp - shuffles, votes, barriers, and their faults --===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

using namespace mlir::diffattn::sim;

namespace {

class CollectivesTest : public SimulatorTest {
protected:
  /// A kernel that computes %result (i32) from %tid and %lane in `body` and
  /// stores it to out[tid].
  std::string kernel(const std::string &body) {
    return R"(
define ptx_kernel void @k(ptr addrspace(1) %out) {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %lane = call i32 @llvm.nvvm.read.ptx.sreg.laneid()
)" + body + R"(
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %tid
  store i32 %result, ptr addrspace(1) %to, align 4
  ret void
}
)";
  }

  std::vector<int> run(const std::string &text, uint32_t threads = 32,
                       uint64_t seed = 0) {
    EXPECT_EQ(compile(text), "");
    std::vector<int> out(threads, -1);
    if (!simulator)
      return out;
    SimOptions options;
    options.seed = seed;
    report = launch(threads, {buffer(out, "out")}, options);
    return out;
  }

  LaunchReport report;
};

TEST_F(CollectivesTest, ButterflySumsInEveryOrder) {
  std::string body = "  %s0 = add i32 %tid, 1\n";
  for (int i = 0; i < 5; ++i) {
    std::string from = std::to_string(i), to = std::to_string(i + 1);
    body += "  %o" + from +
            " = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %s" + from +
            ", i32 " + std::to_string(16 >> i) + ", i32 31)\n  %s" + to +
            " = add i32 %s" + from + ", %o" + from + "\n";
  }
  std::string text = kernel(body + "  %result = add i32 %s5, 0\n");
  for (uint64_t seed : {0, 1, 2, 3}) {
    std::vector<int> out = run(text, 64, seed);
    EXPECT_EQ(report.str(), "");
    EXPECT_EQ(out, std::vector<int>([] {
                std::vector<int> sums(64, 528);
                std::fill(sums.begin() + 32, sums.end(), 528 + 32 * 32);
                return sums;
              }()));
  }
}

TEST_F(CollectivesTest, ShuffleModesAndPredicates) {
  auto shuffle = [&](const std::string &mode, int offset, int control) {
    return run(kernel("  %pair = call {i32, i1} @llvm.nvvm.shfl.sync." + mode +
                      ".i32p(i32 -1, i32 %lane, i32 " + std::to_string(offset) +
                      ", i32 " + std::to_string(control) + R"()
  %value = extractvalue {i32, i1} %pair, 0
  %valid = extractvalue {i32, i1} %pair, 1
  %bit = zext i1 %valid to i32
  %high = shl i32 %bit, 8
  %result = or i32 %value, %high
)"));
  };
  const int valid = 256;
  std::vector<int> up = shuffle("up", 1, 0), down = shuffle("down", 2, 31),
                   index = shuffle("idx", 5, 31),
                   groups = shuffle("idx", 1, 0x181f);
  EXPECT_EQ(up[0], 0);
  EXPECT_EQ(up[7], 6 | valid);
  EXPECT_EQ(down[29], 31 | valid);
  EXPECT_EQ(down[30], 30);
  EXPECT_EQ(index[31], 5 | valid);
  // Segments of eight lanes.
  EXPECT_EQ(groups[0], 1 | valid);
  EXPECT_EQ(groups[17], 17 | valid);
  EXPECT_EQ(groups[31], 25 | valid);
  EXPECT_EQ(report.str(), "");
}

TEST_F(CollectivesTest, VotesAndMatches) {
  std::vector<int> ballot = run(kernel(R"(
  %odd = and i32 %lane, 1
  %yes = icmp eq i32 %odd, 1
  %result = call i32 @llvm.nvvm.vote.ballot.sync(i32 -1, i1 %yes)
)"));
  EXPECT_EQ(ballot[3], int(0xaaaaaaaa));
  std::vector<int> matched = run(kernel(R"(
  %group = lshr i32 %lane, 3
  %result = call i32 @llvm.nvvm.match.any.sync.i32(i32 -1, i32 %group)
)"));
  EXPECT_EQ(matched[9], 0xff00);
  std::vector<int> reduced = run(kernel(
      "  %result = call i32 @llvm.nvvm.redux.sync.max(i32 %lane, i32 -1)\n"));
  EXPECT_EQ(reduced[0], 31);
  std::vector<int> all = run(kernel(R"(
  %low = icmp ult i32 %lane, 32
  %bit = call i1 @llvm.nvvm.vote.all.sync(i32 -1, i1 %low)
  %result = zext i1 %bit to i32
)"));
  EXPECT_EQ(all[4], 1);
  EXPECT_EQ(report.str(), "");
}

TEST_F(CollectivesTest, DisjointMasksMayMeetApart) {
  // The halves of the warp shuffle at different places, each under its own
  // mask.
  std::vector<int> out = run(kernel(R"(
  %half = icmp ult i32 %lane, 16
  br i1 %half, label %low, label %high
low:
  %a = call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 65535, i32 %lane, i32 3, i32 31)
  br label %end
high:
  %b = call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -65536, i32 %lane, i32 20, i32 31)
  br label %end
end:
  %result = phi i32 [%a, %low], [%b, %high]
)"));
  EXPECT_EQ(report.str(), "");
  EXPECT_EQ(out[0], 3);
  EXPECT_EQ(out[31], 20);
}

TEST_F(CollectivesTest, ShuffleInHalfAWarp) {
  run(kernel(R"(
  %half = icmp ult i32 %lane, 16
  br i1 %half, label %low, label %end
low:
  %a = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %lane, i32 1, i32 31)
  br label %end
end:
  %result = phi i32 [%a, %low], [0, %entry]
)"));
  ASSERT_TRUE(report.has(FaultKind::Divergence)) << report.str();
  EXPECT_EQ(report.faults[0].where.op, "llvm.nvvm.shfl.sync.bfly.i32");
}

TEST_F(CollectivesTest, BothArmsWaitForEachOther) {
  run(kernel(R"(
  %half = icmp ult i32 %lane, 16
  br i1 %half, label %low, label %high
low:
  %a = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %lane, i32 1, i32 31)
  br label %end
high:
  %b = call i32 @llvm.nvvm.shfl.sync.down.i32(i32 -1, i32 %lane, i32 1, i32 31)
  br label %end
end:
  %result = phi i32 [%a, %low], [%b, %high]
)"));
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_EQ(report.faults[0].kind, FaultKind::Divergence);
  EXPECT_EQ(report.faults[0].where.op, "llvm.nvvm.shfl.sync.down.i32");
  EXPECT_EQ(report.faults[0].other.op, "llvm.nvvm.shfl.sync.bfly.i32");
}

TEST_F(CollectivesTest, MaskWithoutTheLaneItself) {
  run(kernel("  %result = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 65535, "
             "i32 %lane, i32 1, i32 31)\n"));
  EXPECT_NE(report.str().find("expected lane 16 to be in its own mask"),
            std::string::npos);
}

TEST_F(CollectivesTest, ShuffleFromALaneOutsideTheMask) {
  run(kernel(R"(
  %half = icmp ult i32 %lane, 16
  br i1 %half, label %low, label %end
low:
  %a = call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 65535, i32 %lane, i32 20, i32 31)
  br label %end
end:
  %result = phi i32 [%a, %low], [0, %entry]
)"));
  EXPECT_NE(report.str().find("which is not in mask"), std::string::npos);
}

TEST_F(CollectivesTest, BlockOfHalfAWarp) {
  std::string text =
      kernel("  %result = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 "
             "%lane, i32 1, i32 31)\n");
  run(text, 16);
  EXPECT_NE(report.str().find("to exist"), std::string::npos);
}

/// Warp 0 goes through `first`, all others through `second`.
static std::string byWarp(const std::string &first, const std::string &second) {
  return R"(
  %warp0 = icmp ult i32 %tid, 32
  br i1 %warp0, label %first, label %second
first:
)" + first +
         R"(
  br label %end
second:
)" + second +
         R"(
  br label %end
end:
  %result = add i32 0, 0
)";
}

static const char *kBarrier =
    "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n";

TEST_F(CollectivesTest, BarrierInOneWarp) {
  run(kernel(byWarp(kBarrier, "")), 64);
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_EQ(report.faults[0].kind, FaultKind::Deadlock);
  EXPECT_EQ(report.faults[0].where.op,
            "llvm.nvvm.barrier.cta.sync.aligned.all");
  EXPECT_NE(report.faults[0].message.find(
                "threads 0-31 wait at barrier 0 with 32 of 64 threads"),
            std::string::npos)
      << report.str();
  EXPECT_NE(report.faults[0].message.find("threads 32-63 ended"),
            std::string::npos);
}

TEST_F(CollectivesTest, BarriersInDifferentPlacesMeet) {
  run(kernel(byWarp(kBarrier, kBarrier)), 64);
  EXPECT_EQ(report.str(), "");
  EXPECT_EQ(report.stats.barriers, 1u);
}

TEST_F(CollectivesTest, BarriersCross) {
  auto sync = [](int id) {
    return "  call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 " +
           std::to_string(id) + ", i32 64)\n";
  };
  run(kernel(byWarp(sync(1) + sync(2), sync(2) + sync(1))), 64);
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_EQ(report.faults[0].kind, FaultKind::Deadlock);
  EXPECT_FALSE(report.faults[0].other.op.empty());
}

TEST_F(CollectivesTest, BarrierInHalfAWarp) {
  run(kernel(R"(
  %half = icmp ult i32 %lane, 16
  br i1 %half, label %low, label %end
low:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br label %end
end:
  %result = add i32 0, 0
)"),
      64);
  EXPECT_TRUE(report.has(FaultKind::Divergence)) << report.str();
}

TEST_F(CollectivesTest, WrongBarrierCounts) {
  auto sync = [](int count) {
    return "  call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 1, i32 " +
           std::to_string(count) + ")\n";
  };
  run(kernel(byWarp(sync(64), sync(96))), 96);
  EXPECT_TRUE(report.has(FaultKind::BarrierMismatch)) << report.str();
  run(kernel(byWarp(sync(48), sync(48))), 64);
  EXPECT_TRUE(report.has(FaultKind::BarrierMismatch)) << report.str();
  run(kernel(byWarp(sync(64), sync(64))), 96);
  EXPECT_TRUE(report.has(FaultKind::Deadlock)) << report.str();
  run(kernel("  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 16)\n  "
             "%result = add i32 0, 0\n"),
      64);
  EXPECT_NE(report.str().find("expected a barrier from 0 to 15, but got 16"),
            std::string::npos);
}

TEST_F(CollectivesTest, ArriveWithoutWaiting) {
  // Warp 0 arrives and goes on; warp 1 waits for it.
  std::string sync =
      "  call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 1, i32 64)\n";
  std::string arrive =
      "  call void @llvm.nvvm.barrier.cta.arrive.aligned.count(i32 1, i32 "
      "64)\n";
  run(kernel(byWarp(arrive, sync)), 64);
  EXPECT_EQ(report.str(), "");
  run(kernel(byWarp(arrive, arrive)), 64);
  EXPECT_EQ(report.str(), "");
}

TEST_F(CollectivesTest, BarrierThatReduces) {
  std::vector<int> out = run(kernel(R"(
  %low = icmp ult i32 %tid, 40
  %result = call i32 @llvm.nvvm.barrier.cta.red.popc.aligned.all(i32 0, i1 %low)
)"),
                             64);
  EXPECT_EQ(report.str(), "");
  EXPECT_EQ(out, std::vector<int>(64, 40));
}

TEST_F(CollectivesTest, EndlessLoop) {
  EXPECT_EQ(compile(R"(
define ptx_kernel void @k() {
entry:
  br label %loop
loop:
  br label %loop
}
)"),
            "");
  SimOptions options;
  options.maxSteps = 10000;
  EXPECT_TRUE(launch(32, {}, options).has(FaultKind::NoProgress));
}

TEST_F(CollectivesTest, LoopThatWaitsForAnotherThreadEnds) {
  // Thread 0 spins until thread 1 has written: only a fair order of threads
  // ends it. The race is reported.
  EXPECT_EQ(compile(R"(
@flag = internal addrspace(3) global i32 poison, align 4
define ptx_kernel void @k() {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %first = icmp eq i32 %tid, 0
  br i1 %first, label %loop, label %writer
loop:
  %value = load volatile i32, ptr addrspace(3) @flag, align 4
  %done = icmp eq i32 %value, 1
  br i1 %done, label %end, label %loop
writer:
  store volatile i32 1, ptr addrspace(3) @flag, align 4
  br label %end
end:
  ret void
}
)"),
            "");
  LaunchReport report = launch(2, {});
  EXPECT_TRUE(report.has(FaultKind::Race));
  EXPECT_FALSE(report.has(FaultKind::NoProgress));
}

TEST_F(CollectivesTest, Trap) {
  run(kernel(R"(
  %last = icmp eq i32 %tid, 31
  br i1 %last, label %bad, label %end
bad:
  call void @llvm.trap()
  br label %end
end:
  %result = add i32 0, 0
)"));
  ASSERT_TRUE(report.has(FaultKind::Trap));
  EXPECT_EQ(report.faults[0].thread, 31u);
}

TEST_F(CollectivesTest, SpecialRegisters) {
  EXPECT_EQ(compile(R"(
define ptx_kernel void @k(ptr addrspace(1) %out) {
  %x = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %y = call i32 @llvm.nvvm.read.ptx.sreg.tid.y()
  %bx = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %by = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
  %bz = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.z()
  %nx = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %gx = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %gy = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.y()
  %warp = call i32 @llvm.nvvm.read.ptx.sreg.warpid()
  %a = mul i32 %bz, %gy
  %b = add i32 %a, %by
  %c = mul i32 %b, %gx
  %block = add i32 %c, %bx
  %d = mul i32 %y, %nx
  %thread = add i32 %d, %x
  %e = mul i32 %block, 64
  %index = add i32 %e, %thread
  %value = add i32 %index, %warp
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %index
  store i32 %value, ptr addrspace(1) %to, align 4
  ret void
}
)"),
            "");
  std::vector<int> out(64 * 12, -1);
  EXPECT_EQ(
      launch(LaunchShape{{3, 2, 2}, {16, 4, 1}, 0}, {buffer(out, "out")}).str(),
      "");
  for (int i = 0; i < 64 * 12; ++i)
    EXPECT_EQ(out[i], i + (i % 64) / 32);
}

} // namespace
