//===- TensorStoreTest.cpp - shared memory stored by the copy engine ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HopperText.h"

using namespace mlir::diffattn::sim;

namespace {

/// Each thread writes 16 bytes of a tile of 64 x 16, swizzled, and thread 0
/// stores it as box (%x, %y) of a tensor.
class TensorStoreTest : public SimulatorTest {
protected:
  const std::string fence = "  " + nvvm("fence.proxy.async.shared_cta", ""),
                    barrier =
                        "  " + nvvm("barrier.cta.sync.aligned.all", "i32 0"),
                    commit = "  " + nvvm("cp.async.bulk.commit.group", ""),
                    wait =
                        "  " + nvvm("cp.async.bulk.wait.group.read", "i32 0");

  std::string kernel() const {
    return beginKernel(1, "ptr addrspace(1) %from, i32 %x, i32 %y", 128) +
           sharedPointer("tile", "0") + R"(
  %linear = shl i32 %tid, 4
  %g = getelementptr i8, ptr addrspace(1) %from, i32 %linear
  %v = load <4 x i32>, ptr addrspace(1) %g, align 16
  %row = lshr i32 %tid, 3
  %line = and i32 %row, 7
  %turn = shl i32 %line, 4
  %place = xor i32 %linear, %turn
  %s = getelementptr i8, ptr addrspace(3) %tile, i32 %place
  store <4 x i32> %v, ptr addrspace(3) %s, align 16
)" + fence +
           barrier + "  br i1 %isfirst, label %store, label %end\nstore:\n" +
           storeBox("m0", "tile", {"%x", "%y"}) + commit + wait +
           "  br label %end\nend:\n  ret void\n}\n";
  }

  LaunchReport run(const std::string &text, int x, int y,
                   const SimOptions &options = {}, uint64_t rows = 40) {
    EXPECT_EQ(compile(text, hopper()), "");
    out.assign(40 * 72, 0xabcd);
    const uint64_t device =
        simulator->registerBuffer(out.data(), out.size() * 2, "out");
    TensorMap map = tile.map(device, 16);
    map.sizes = {72, rows, 1, 1, 1};
    map.strides[0] = 144;
    auto handle = encodeTensorMap(map);
    EXPECT_TRUE(bool(handle)) << llvm::toString(handle.takeError());
    return launch(LaunchShape{{1, 1, 1}, {128, 1, 1}, 2048 + 64},
                  {KernelArgument::map(*handle), buffer(tile.bits, "from"),
                   KernelArgument::i32(x), KernelArgument::i32(y)},
                  options);
  }

  Matrix tile = Matrix::random(16, 64, /*bfloat=*/true, 4);
  std::vector<uint16_t> out;
};

TEST_F(TensorStoreTest, WritesWhatIsInside) {
  for (auto [x, y] : {std::pair{0, 0}, {8, 24}, {-5, -3}, {30, 35}})
    for (CopyTiming copies : {CopyTiming::Early, CopyTiming::Late}) {
      SimOptions options;
      options.copies = copies;
      options.seed = 1;
      EXPECT_EQ(run(kernel(), x, y, options).str(), "");
      for (int i = 0; i < 40; ++i)
        for (int j = 0; j < 72; ++j) {
          const int row = i - y, column = j - x;
          const bool inside =
              row >= 0 && row < 16 && column >= 0 && column < 64;
          ASSERT_EQ(out[i * 72 + j],
                    inside ? tile.bits[row * 64 + column] : 0xabcd)
              << i << " " << j;
        }
    }
}

TEST_F(TensorStoreTest, NeedsTheFenceOfWhoWrote) {
  LaunchReport report = run(replaced(kernel(), fence, ""), 0, 0);
  EXPECT_TRUE(report.has(FaultKind::MissingFence)) << report.str();
  // That of the thread that stores is not enough, nor one before the write.
  report = run(
      replaced(replaced(kernel(), fence, ""), "store:\n", "store:\n" + fence),
      0, 0);
  EXPECT_TRUE(report.has(FaultKind::MissingFence)) << report.str();
  report = run(
      replaced(replaced(kernel(), fence, ""), "  %row =", fence + "  %row ="),
      0, 0);
  EXPECT_TRUE(report.has(FaultKind::MissingFence)) << report.str();
}

TEST_F(TensorStoreTest, NeedsTheBarrier) {
  LaunchReport report = run(replaced(kernel(), barrier, ""), 0, 0);
  EXPECT_FALSE(report.clean());
}

TEST_F(TensorStoreTest, MustHaveReadBeforeItsThreadEnds) {
  LaunchReport report = run(replaced(kernel(), wait, ""), 0, 0);
  EXPECT_TRUE(report.has(FaultKind::InFlight)) << report.str();
  report = run(replaced(kernel(), commit, ""), 0, 0);
  EXPECT_TRUE(report.has(FaultKind::InFlight)) << report.str();
  report = run(
      replaced(kernel(), "wait.group.read(i32 0)", "wait.group.read(i32 1)"), 0,
      0);
  EXPECT_TRUE(report.has(FaultKind::InFlight)) << report.str();
}

TEST_F(TensorStoreTest, MustHaveReadBeforeItIsWrittenAgain) {
  std::string rewrite = barrier + "  store i32 0, ptr addrspace(3) %s, align "
                                  "16\n  ret void\n";
  EXPECT_EQ(run(replaced(kernel(), "  ret void\n", rewrite), 0, 0).str(), "");
  std::string late =
      replaced(replaced(kernel(), wait, ""), "  ret void\n", rewrite);
  LaunchReport report = run(late, 0, 0);
  EXPECT_TRUE(report.has(FaultKind::Race)) << report.str();
  EXPECT_NE(report.str().find("a bulk copy of thread 0 reads"),
            std::string::npos)
      << report.str();
}

TEST_F(TensorStoreTest, WhatIsWrittenIsThereAfterTheWholeWait) {
  // %from is the tensor itself here, and thread 0 reads of it what it stored.
  std::string back = "  %back = load i32, ptr addrspace(1) %from, align 4\n";
  std::string text = replaced(kernel(), wait, wait + back);
  auto runOnItself = [&](const std::string &kernel) {
    EXPECT_EQ(compile(kernel, hopper()), "");
    const uint64_t device = simulator->registerBuffer(
        tile.bits.data(), tile.bits.size() * 2, "both");
    auto handle = encodeTensorMap(tile.map(device, 16));
    EXPECT_TRUE(bool(handle)) << llvm::toString(handle.takeError());
    return launch(LaunchShape{{1, 1, 1}, {128, 1, 1}, 2048 + 64},
                  {KernelArgument::map(*handle),
                   KernelArgument::pointer(device), KernelArgument::i32(0),
                   KernelArgument::i32(0)});
  };
  LaunchReport report = runOnItself(text);
  EXPECT_TRUE(report.has(FaultKind::Race)) << report.str();
  EXPECT_EQ(runOnItself(replaced(text, "wait.group.read", "wait.group")).str(),
            "");
}

TEST_F(TensorStoreTest, RowsBehindTheBuffer) {
  LaunchReport report = run(kernel(), 0, 30, {}, /*rows=*/64);
  EXPECT_TRUE(report.has(FaultKind::OutOfBounds)) << report.str();
}

} // namespace
