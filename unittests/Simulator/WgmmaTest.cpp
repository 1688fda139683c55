//===- WgmmaTest.cpp - products of a warpgroup ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HopperText.h"

using namespace mlir::diffattn;
using namespace mlir::diffattn::sim;

namespace {

constexpr unsigned kAccumulatorsAt = 8192, kBarAt = kAccumulatorsAt + 32768;

/// A warpgroup multiplies A (64 x 64) by B (64 x n, or n x 64 and transposed),
/// which the copy engine brings.
class WgmmaTest : public SimulatorTest {
protected:
  static std::string load(const Wgmma &wgmma) {
    const unsigned boxes = wgmma.transposeB ? (wgmma.n + 63) / 64 : 1;
    const unsigned bytes =
        8192 + (wgmma.transposeB ? boxes * 8192 : wgmma.n * 128);
    std::string text =
        beginKernel(2, "ptr addrspace(1) %d, ptr addrspace(1) %ga", 128) +
        sharedPointer("a", "0") +
        sharedPointer("b", std::to_string(kAccumulatorsAt)) +
        sharedPointer("bar", std::to_string(kBarAt)) +
        "  br i1 %isfirst, label %init, label %meet\ninit:\n  " +
        nvvm("mbarrier.init.shared", "ptr addrspace(3) %bar, i32 1") + "  " +
        nvvm("fence.mbarrier_init.release.cluster", "") +
        "  br label %meet\nmeet:\n  " +
        nvvm("barrier.cta.sync.aligned.all", "i32 0") +
        "  br i1 %isfirst, label %load, label %join\nload:\n  %s = " +
        nvvm("mbarrier.arrive.expect.tx.scope.cta.space.cta",
             "ptr addrspace(3) %bar, i32 " + std::to_string(bytes), "i64") +
        loadBox("m0", "a", "bar", {"0", "0"});
    for (unsigned box = 0; box < boxes; ++box) {
      const std::string to = "box" + std::to_string(box);
      text += sharedPointer(to, std::to_string(kAccumulatorsAt + box * 8192)) +
              loadBox("m1", to, "bar", {std::to_string(box * 64), "0"});
    }
    return text + "  br label %join\njoin:\n" + waitFor("full", "bar", "0");
  }

  /// The four registers of A for each step, %a<step>.<i>.
  static std::string loadFragments() {
    std::string text = R"(
  %l = and i32 %tid, 31
  %g = lshr i32 %l, 2
  %w = lshr i32 %tid, 5
  %w16 = shl i32 %w, 4
  %r = add i32 %w16, %g
  %t = and i32 %l, 3
  %t2 = shl i32 %t, 1
  %r64 = shl i32 %r, 6
  %e = add i32 %r64, %t2
)";
    for (unsigned step = 0; step < 4; ++step)
      for (unsigned i = 0; i < 4; ++i) {
        const std::string name =
            "%a" + std::to_string(step) + "." + std::to_string(i);
        text += "  " + name + ".e = add i32 %e, " +
                std::to_string(16 * step + 512 * (i & 1) + 8 * (i >> 1)) +
                "\n  " + name +
                ".p = getelementptr i16, ptr addrspace(1) %ga, "
                "i32 " +
                name + ".e\n  " + name + " = load i32, ptr addrspace(1) " +
                name + ".p, align 4\n";
      }
    return text;
  }

  static std::string kernel(const Wgmma &wgmma) {
    std::string text = load(wgmma);
    if (wgmma.aInRegisters)
      text += loadFragments();
    text += descriptor("da", "a", 0, 1024) +
            descriptor("db", "b", wgmma.transposeB ? 8192 : 0, 1024) +
            fenceMatrices();
    std::string sums;
    for (unsigned step = 0; step < 4; ++step) {
      const std::string s = std::to_string(step);
      text += "  %da" + s + " = add i64 %da, " + std::to_string(2 * step) +
              "\n  %db" + s + " = add i64 %db, " +
              std::to_string((wgmma.transposeB ? 128 : 2) * step) + "\n";
      std::string a = "i64 %da" + s;
      if (wgmma.aInRegisters)
        a = "i32 %a" + s + ".0, i32 %a" + s + ".1, i32 %a" + s + ".2, i32 %a" +
            s + ".3";
      text += multiply("acc" + s + ".", wgmma, sums, a, "db" + s, step != 0);
      sums = "acc" + s + ".";
    }
    return text + commitMatrices() + waitMatrices("out", 0, sums, wgmma.n / 2) +
           storeSums("out", wgmma.n, "0") + "  ret void\n}\n";
  }

  LaunchReport run(const std::string &text, const Wgmma &wgmma,
                   const SimOptions &options = {}) {
    EXPECT_EQ(compile(text, hopper()), "");
    a = Matrix::random(64, 64, wgmma.bfloat, 1);
    b = wgmma.transposeB ? Matrix::random(64, wgmma.n, wgmma.bfloat, 2)
                         : Matrix::random(wgmma.n, 64, wgmma.bfloat, 2);
    d.assign(64 * wgmma.n, -1);
    const KernelArgument deviceA = buffer(a.bits, "a");
    auto mapA = encodeTensorMap(a.map(deviceA.bits, 64));
    auto mapB = encodeTensorMap(
        b.map(buffer(b.bits, "b").bits, wgmma.transposeB ? 64 : wgmma.n));
    EXPECT_TRUE(bool(mapA)) << llvm::toString(mapA.takeError());
    EXPECT_TRUE(bool(mapB)) << llvm::toString(mapB.takeError());
    return launch(LaunchShape{{1, 1, 1}, {128, 1, 1}, kBarAt + 8},
                  {KernelArgument::map(*mapA), KernelArgument::map(*mapB),
                   buffer(d, "d"), deviceA},
                  options);
  }

  std::string faults(const std::string &text, const Wgmma &wgmma,
                     const SimOptions &options = {}) {
    return run(text, wgmma, options).str();
  }

  const Wgmma both{32, true, false, false}, registers{32, true, true, true};
  Matrix a, b;
  std::vector<float> d;
};

TEST_F(WgmmaTest, IsThePlainProduct) {
  for (unsigned n : {8u, 24u, 64u, 96u, 256u})
    for (unsigned bits = 0; bits < 8; ++bits) {
      Wgmma wgmma{n, bool(bits & 1), bool(bits & 2), bool(bits & 4)};
      // A row of B must be a multiple of 16 bytes: 24 columns are 48.
      SimOptions options;
      options.seed = bits;
      options.copies = bits & 1 ? CopyTiming::Early : CopyTiming::Late;
      ASSERT_EQ(faults(kernel(wgmma), wgmma, options), "") << n << " " << bits;
      ASSERT_EQ(d, product(a, b, !wgmma.transposeB)) << n << " " << bits;
    }
}

TEST_F(WgmmaTest, CountsFlops) {
  LaunchReport report = run(kernel(both), both);
  EXPECT_EQ(report.stats.wgmmas, 4u);
  EXPECT_EQ(report.stats.mmaFlops, 2u * 64 * 64 * 32);
}

TEST_F(WgmmaTest, WaitsThatAreMissingOrTooWeak) {
  const std::string wait = getPtxAsm(WgmmaWait{0, 16, 0}).text;
  std::string text = kernel(both);
  EXPECT_NE(
      faults(replaced(text, wait, getPtxAsm(WgmmaWait{1, 16, 0}).text), both)
          .find("takes accumulators of a wgmma that this does not wait"),
      std::string::npos);
  EXPECT_NE(
      faults(replaced(text, wait, getPtxAsm(RegisterTie{1, 0}).text), both)
          .find("in flight: "),
      std::string::npos);
  EXPECT_NE(
      faults(replaced(text, commitMatrices(), ""), both).find("in flight: "),
      std::string::npos);
  // The results go round the wait.
  EXPECT_NE(
      faults(replaced(text, "store float %out0,", "store float %acc3.0,"), both)
          .find("went through no wait"),
      std::string::npos);
  // A thread that ends before.
  std::string ended =
      text.substr(0, text.find("  %out = ")) + "  ret void\n}\n";
  EXPECT_NE(faults(ended, both).find("no wait has ended this wgmma"),
            std::string::npos);
}

TEST_F(WgmmaTest, TheWaitMayStandBesideATie) {
  // A wait of nothing, and then the registers: as good.
  std::string text = replaced(kernel(both), getPtxAsm(WgmmaWait{0, 16, 0}).text,
                              getPtxAsm(RegisterTie{1, 0}).text);
  text = replaced(text, commitMatrices(),
                  commitMatrices() + "  " +
                      nvvm("wgmma.wait_group.sync.aligned", "i64 0"));
  EXPECT_EQ(faults(text, both), "");
  EXPECT_EQ(d, product(a, b, true));
}

TEST_F(WgmmaTest, Fences) {
  for (const Wgmma &wgmma : {both, registers}) {
    EXPECT_NE(faults(replaced(kernel(wgmma), fenceMatrices(), ""), wgmma)
                  .find("missing fence: "),
              std::string::npos);
  }
  // Registers of A that are computed after the fence.
  std::string text = kernel(registers);
  text = replaced(text, "i32 %a2.1,", "i32 %late,");
  size_t at = text.find("  %da2 = ");
  text.insert(at, "  %late = add i32 %a2.1, 0\n");
  EXPECT_NE(faults(text, registers).find("missing fence: "), std::string::npos);
}

TEST_F(WgmmaTest, RegistersOfAInFlight) {
  // The loop multiplies three times; what it packs for the next turn comes
  // after the wait, or before it.
  auto text = [&](bool early) {
    Wgmma wgmma = registers;
    std::string pack = "  %next = add i32 %p, 0\n";
    std::string phis, body;
    for (unsigned i = 0; i < 16; ++i) {
      const std::string s = std::to_string(i);
      phis += "  %o" + s + " = phi float [ 0.0, %fulldone ], [ %out" + s +
              ", %loop ]\n";
    }
    body = load(wgmma) + loadFragments() + descriptor("db", "b", 8192, 1024) +
           "  br label %loop\nloop:\n"
           "  %i = phi i32 [ 0, %fulldone ], [ %inext, %loop ]\n"
           "  %p = phi i32 [ %a0.0, %fulldone ], [ %next, %loop ]\n" +
           phis + fenceMatrices() +
           multiply("acc", wgmma, "o",
                    "i32 %p, i32 %a0.1, i32 %a0.2, i32 %a0.3", "db", 1) +
           commitMatrices() + (early ? pack : "") +
           waitMatrices("out", 0, "acc", 16) + (early ? "" : pack) +
           "  %inext = add i32 %i, 1\n"
           "  %more = icmp slt i32 %inext, 3\n"
           "  br i1 %more, label %loop, label %end\nend:\n" +
           storeSums("out", 32, "0") + "  ret void\n}\n";
    return body;
  };
  EXPECT_EQ(faults(text(false), registers), "");
  EXPECT_NE(faults(text(true), registers)
                .find("computes a register of A while a wgmma still reads it"),
            std::string::npos);
}

TEST_F(WgmmaTest, DescriptorsThatSaySomethingElse) {
  // The distance of eight rows: wrong numbers, or memory that nothing wrote.
  std::string text = kernel(both);
  const std::string good = descriptor("db", "b", 0, 1024);
  run(replaced(text, good, descriptor("db", "b", 0, 512)), both);
  EXPECT_NE(d, product(a, b, true));
  EXPECT_FALSE(
      faults(replaced(text, good, descriptor("db", "b", 0, 16384)), both)
          .empty());
  // Another swizzle; the second row of one.
  EXPECT_NE(faults(replaced(text, "%db.c, 46", "%db.c, 0 ;"), both)
                .find("expected the 128-byte swizzle"),
            std::string::npos);
  EXPECT_NE(
      faults(replaced(text, "%db0 = add i64 %db, 0", "%db0 = add i64 %db, 8"),
             both)
          .find("descriptor of B: expected it to begin in the first"),
      std::string::npos);
  EXPECT_NE(
      faults(replaced(text, "%da3 = add i64 %da, 6", "%da3 = add i64 %da, 7"),
             both)
          .find("descriptor of A: expected the elements"),
      std::string::npos);
  // Threads that disagree.
  EXPECT_NE(faults(replaced(text, "%da0 = add i64 %da, 0",
                            "%tid64 = zext i32 %tid to i64\n  %da0 = add i64 "
                            "%da, %tid64"),
                   both)
                .find("the same descriptors"),
            std::string::npos);
}

TEST_F(WgmmaTest, OperandsThatAreNotThere) {
  std::string text = kernel(both);
  std::string unwaited =
      replaced(text, "label %fullask\nfullask", "label %fulldone\nfullask");
  EXPECT_NE(faults(unwaited, both).find("not arrived: "), std::string::npos);
  // One warp that has not waited is enough.
  SimOptions early;
  early.copies = CopyTiming::Early;
  std::string some =
      replaced(text, "  br label %fullask\nfullask",
               "  %third = icmp uge i32 %tid, 96\n"
               "  br i1 %third, label %fulldone, label %fullask\nfullask");
  EXPECT_NE(faults(some, both, early).find("race: "), std::string::npos);
}

TEST_F(WgmmaTest, WritesOfThreadsNeedTheProxyFence) {
  // Zeros over a part of B, as behind the last key.
  std::string zeros = "  %z0 = shl i32 %tid, 4\n  %z = getelementptr i8, ptr "
                      "addrspace(3) %b, i32 %z0\n  store <4 x i32> "
                      "zeroinitializer, ptr addrspace(3) %z, align 16\n";
  std::string fence = "  " + nvvm("fence.proxy.async.shared_cta", ""),
              barrier = "  " + nvvm("barrier.cta.sync.aligned.all", "i32 0");
  auto text = [&](const std::string &between) {
    return replaced(kernel(both), fenceMatrices(),
                    zeros + between + fenceMatrices());
  };
  EXPECT_EQ(faults(text(fence + barrier), both), "");
  EXPECT_NE(faults(text(barrier), both).find("missing fence: "),
            std::string::npos);
  EXPECT_NE(faults(text(barrier + fence), both).find("missing fence: "),
            std::string::npos);
  EXPECT_NE(faults(text(fence), both).find("race: "), std::string::npos);
}

TEST_F(WgmmaTest, OperandsMustStayUntilTheWait) {
  std::string zero = "  store i32 0, ptr addrspace(3) %b, align 4\n";
  std::string text = kernel(both);
  // Thread 0 alone, of the warp that has waited.
  auto write = [&](const std::string &before) {
    std::string changed = text;
    changed.insert(changed.find(before),
                   "  br i1 %isfirst, label %zero, label %after\nzero:\n" +
                       zero + "  br label %after\nafter:\n");
    return faults(changed, both);
  };
  EXPECT_EQ(write("\n  %lane = and"), "");
  std::string report = write("  %out = ");
  EXPECT_NE(report.find("race: "), std::string::npos) << report;
  EXPECT_NE(report.find("a wgmma of warpgroup 0 reads"), std::string::npos)
      << report;
}

} // namespace
