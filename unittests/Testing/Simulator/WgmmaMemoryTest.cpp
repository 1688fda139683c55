//===- WgmmaMemoryTest.cpp - reads of shared memory by wgmma --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "WgmmaFixture.h"

using namespace mlir::diffattn;
using namespace mlir::diffattn::sim;

namespace {

class WgmmaMemoryTest : public WgmmaFixture {};

TEST_F(WgmmaMemoryTest, OperandsThatAreNotThere) {
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

TEST_F(WgmmaMemoryTest, WritesOfThreadsNeedTheProxyFence) {
  // Zeros over a part of B, as after the last key.
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

TEST_F(WgmmaMemoryTest, OperandsMustStayUntilTheWait) {
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
