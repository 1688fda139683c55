//===- WgmmaTest.cpp - products of a warpgroup and their registers --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "WgmmaFixture.h"

using namespace mlir::diffattn;
using namespace mlir::diffattn::sim;

namespace {

class WgmmaTest : public WgmmaFixture {};

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

TEST_F(WgmmaTest, AWaitMayLeaveTheLastGroup) {
  // Two products of 16 columns of A each: the wait for all but one group ends
  // the first, and not the second.
  auto text = [&](const std::string &taken) {
    std::string kernel =
        load(both) + descriptor("da", "a", 0, 1024) +
        descriptor("db", "b", 0, 1024) + "  %da1 = add i64 %da, 2\n" +
        fenceMatrices() + multiply("x.", both, "", "i64 %da", "db", 0) +
        commitMatrices() + multiply("y.", both, "", "i64 %da1", "db", 0) +
        commitMatrices() + waitMatrices("out", 1, taken, 16) +
        storeSums("out", 32, "0") + waitMatrices("last", 0, "y.", 16);
    return kernel + "  ret void\n}\n";
  };
  EXPECT_EQ(faults(text("x."), both), "");
  auto firstColumns = [](const Matrix &from) {
    Matrix part{from.rows, 16, {}, {}};
    for (unsigned row = 0; row < from.rows; ++row)
      for (unsigned k = 0; k < 16; ++k)
        part.values.push_back(from.at(row, k));
    return part;
  };
  EXPECT_EQ(d, product(firstColumns(a), firstColumns(b), true));
  EXPECT_NE(faults(text("y."), both)
                .find("takes accumulators of a wgmma that this does not wait"),
            std::string::npos);
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
  // after the wait, or before it. As a pair, its bits are taken in the next
  // turn.
  auto text = [&](bool early, bool asPair) {
    Wgmma wgmma = registers;
    std::string pack =
        asPair ? "  %next = add <2 x i16> %halves, zeroinitializer\n"
               : "  %next = add i32 %p, 0\n";
    std::string carried =
        asPair ? "  %halves = phi <2 x i16> [ %start, %fulldone ], [ %next, "
                 "%loop ]\n"
               : "  %p = phi i32 [ %a0.0, %fulldone ], [ %next, %loop ]\n";
    std::string bits =
        asPair ? "  %p = bitcast <2 x i16> %halves to i32\n" : "";
    std::string phis, body;
    for (unsigned i = 0; i < 16; ++i) {
      const std::string s = std::to_string(i);
      phis += "  %o" + s + " = phi float [ 0.0, %fulldone ], [ %out" + s +
              ", %loop ]\n";
    }
    body = load(wgmma) + loadFragments() + descriptor("db", "b", 8192, 1024) +
           (asPair ? "  %start = bitcast i32 %a0.0 to <2 x i16>\n" : "") +
           "  br label %loop\nloop:\n"
           "  %i = phi i32 [ 0, %fulldone ], [ %inext, %loop ]\n" +
           carried + phis + bits + fenceMatrices() +
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
  for (bool asPair : {false, true}) {
    EXPECT_EQ(faults(text(false, asPair), registers), "");
    EXPECT_NE(
        faults(text(true, asPair), registers)
            .find("computes a register of A while a wgmma still reads it"),
        std::string::npos);
  }
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

} // namespace
