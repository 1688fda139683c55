//===- WarpgroupsTest.cpp - setmaxnreg and assembly that is not known -----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HopperText.h"

using namespace mlir::diffattn::sim;

namespace {

/// Warpgroup 0 takes fewer registers, the others more.
class WarpgroupsTest : public SimulatorTest {
protected:
  static std::string kernel(int fewer, int more) {
    return beginKernel(0, "i32 %unused", 384) +
           "  %group = lshr i32 %tid, 7\n"
           "  %loads = icmp eq i32 %group, 0\n"
           "  br i1 %loads, label %fewer, label %more\nfewer:\n  " +
           nvvm("setmaxnreg.dec.sync.aligned.u32",
                "i32 " + std::to_string(fewer)) +
           "  br label %end\nmore:\n  " +
           nvvm("setmaxnreg.inc.sync.aligned.u32",
                "i32 " + std::to_string(more)) +
           "  br label %end\nend:\n  ret void\n}\n";
  }

  std::string run(const std::string &text, uint64_t seed = 0,
                  unsigned threads = 384) {
    EXPECT_EQ(compile(text, hopper()), "");
    SimOptions options;
    options.seed = seed;
    return launch(threads, {KernelArgument::i32(0)}, options).str();
  }
};

TEST_F(WarpgroupsTest, RegistersThatFit) {
  for (uint64_t seed : {0, 1, 2, 3}) {
    EXPECT_EQ(run(kernel(24, 240), seed), "");
    EXPECT_EQ(run(kernel(40, 232), seed), "");
  }
}

TEST_F(WarpgroupsTest, RegistersThatDoNot) {
  EXPECT_NE(run(kernel(40, 240)).find("deadlock: "), std::string::npos);
  EXPECT_NE(run(kernel(24, 160)).find("registers: "), std::string::npos);
  EXPECT_NE(run(kernel(176, 240)).find("registers: "), std::string::npos);
  EXPECT_NE(run(kernel(28, 240)).find("registers: "), std::string::npos);
}

TEST_F(WarpgroupsTest, AWarpThatStaysAway) {
  std::string text = replaced(kernel(24, 240), "%group = lshr i32 %tid, 7",
                              "%minus = sub i32 %tid, 32\n"
                              "  %group = lshr i32 %minus, 7");
  std::string report = run(text);
  EXPECT_TRUE(report.find("divergence: ") != std::string::npos ||
              report.find("deadlock: ") != std::string::npos)
      << report;
  report = run(replaced(kernel(24, 240), "384,1,1", "352,1,1"), 0, 352);
  EXPECT_NE(report.find("expected four warps"), std::string::npos) << report;
}

TEST_F(WarpgroupsTest, AssemblyThatIsNotOfTheTable) {
  std::string text = replaced(
      kernel(24, 240), "  ret void",
      "  call void asm sideeffect \"wgmma.wait_group.sync.aligned 0; \", "
      "\"~{memory}\"()\n  ret void");
  EXPECT_NE(compile(text, hopper()).find("the inline assembly \"wgmma"),
            std::string::npos);
  // A chip without setmaxnreg refuses it.
  EXPECT_NE(compile(kernel(24, 240)).find("setmaxnreg"), std::string::npos);
  text = replaced(kernel(24, 240), "  ret void",
                  "  call void asm sideeffect "
                  "\"wgmma.wait_group.sync.aligned 0;\", \"~{memory}\"()\n"
                  "  ret void");
  EXPECT_EQ(compile(text, hopper()), "");
}

} // namespace
