//===- TensorCopyTest.cpp - mbarriers and the copy engine -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HopperText.h"

using namespace mlir::diffattn::sim;

namespace {

/// Thread 0 loads a box of 64 x 16, all wait for it, and each thread copies 16
/// bytes of shared memory to its place of %out. 2048 bytes, then the mbarrier.
class TensorLoadTest : public SimulatorTest {
protected:
  static std::string kernel() {
    return beginKernel(1, "ptr addrspace(1) %out, i32 %x, i32 %y", 128) +
           sharedPointer("tile", "0") + sharedPointer("bar", "2048") +
           "  br i1 %isfirst, label %init, label %meet\ninit:\n  " +
           nvvm("mbarrier.init.shared", "ptr addrspace(3) %bar, i32 1") + "  " +
           nvvm("fence.mbarrier_init.release.cluster", "") +
           "  br label %meet\nmeet:\n  " +
           nvvm("barrier.cta.sync.aligned.all", "i32 0") +
           "  br i1 %isfirst, label %load, label %join\nload:\n  %s = " +
           nvvm("mbarrier.arrive.expect.tx.scope.cta.space.cta",
                "ptr addrspace(3) %bar, i32 2048", "i64") +
           loadBox("m0", "tile", "bar", {"%x", "%y"}) +
           "  br label %join\njoin:\n" + waitFor("wait", "bar", "0") + R"(
  %from0 = shl i32 %tid, 4
  %from = getelementptr i8, ptr addrspace(3) %tile, i32 %from0
  %v = load <4 x i32>, ptr addrspace(3) %from, align 16
  %to = getelementptr i8, ptr addrspace(1) %out, i32 %from0
  store <4 x i32> %v, ptr addrspace(1) %to, align 16
  ret void
}
)";
  }

  /// The tensor has 40 rows of 72 numbers.
  LaunchReport run(
      const std::string &text, int x, int y, const SimOptions &options = {},
      std::function<void(TensorMap &)> change = [](auto &) {}) {
    EXPECT_EQ(compile(text, hopper()), "");
    out.assign(1024, 7);
    BufferUse input;
    input.writable = false;
    const uint64_t device = simulator->registerBuffer(
        source.bits.data(), source.bits.size() * 2, "source", input);
    TensorMap map = source.map(device, 16);
    change(map);
    auto handle = encodeTensorMap(map);
    EXPECT_TRUE(bool(handle)) << llvm::toString(handle.takeError());
    return launch(LaunchShape{{1, 1, 1}, {128, 1, 1}, 2048 + 8},
                  {KernelArgument::map(*handle), buffer(out, "out"),
                   KernelArgument::i32(x), KernelArgument::i32(y)},
                  options);
  }

  /// Expected contents of shared memory.
  std::vector<uint16_t> expectedTile(int x, int y) const {
    std::vector<uint16_t> tile(1024);
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 64; ++column) {
        const int i = y + row, j = x + column;
        const bool inside = i >= 0 && i < 40 && j >= 0 && j < 72;
        const int chunk = column / 8 ^ row % 8;
        tile[row * 64 + chunk * 8 + column % 8] =
            inside ? source.bits[i * 72 + j] : 0;
      }
    return tile;
  }

  Matrix source = Matrix::random(40, 72, /*bfloat=*/true, 3);
  std::vector<uint16_t> out;
};

TEST_F(TensorLoadTest, SwizzlesAndFillsWithZeros) {
  for (auto [x, y] : {std::pair{0, 0}, {8, 3}, {-5, -2}, {11, 30}, {80, 0}})
    for (CopyTiming copies : {CopyTiming::Early, CopyTiming::Late})
      for (uint64_t seed : {0, 1, 2}) {
        SimOptions options;
        options.copies = copies;
        options.seed = seed;
        EXPECT_EQ(run(kernel(), x, y, options).str(), "");
        EXPECT_EQ(out, expectedTile(x, y)) << x << " " << y;
      }
}

TEST_F(TensorLoadTest, CountsWhatItLoads) {
  LaunchReport report = run(kernel(), 11, 30);
  EXPECT_EQ(report.stats.bulkCopies, 1u);
  ASSERT_TRUE(report.stats.findBuffer("source"));
  EXPECT_EQ(report.stats.findBuffer("source")->copiedBytes, 10u * 61 * 2);
}

TEST_F(TensorLoadTest, WrongBytesNeverArrive) {
  for (const char *bytes : {"i32 2032", "i32 2064"})
    for (CopyTiming copies : {CopyTiming::Early, CopyTiming::Late}) {
      SimOptions options;
      options.copies = copies;
      LaunchReport report = run(replaced(kernel(), "i32 2048)\n  %cluster",
                                         std::string(bytes) + ")\n  %cluster"),
                                0, 0, options);
      EXPECT_TRUE(report.has(FaultKind::Deadlock)) << report.str();
      EXPECT_NE(report.str().find("of the mbarrier at"), std::string::npos);
    }
}

TEST_F(TensorLoadTest, WrongParity) {
  // It does not wait for the copy, which is then on its way.
  std::string text = replaced(kernel(), "%bar, i32 0)", "%bar, i32 1)");
  EXPECT_TRUE(run(text, 0, 0).has(FaultKind::NotArrived));
  SimOptions early;
  early.copies = CopyTiming::Early;
  early.seed = 1;
  EXPECT_FALSE(run(text, 0, 0, early).clean());
}

TEST_F(TensorLoadTest, NoWait) {
  std::string text = replaced(kernel(), "label %waitask\nwaitask",
                              "label "
                              "%waitdone\nwaitask");
  LaunchReport report = run(text, 0, 0);
  EXPECT_TRUE(report.has(FaultKind::NotArrived)) << report.str();
  SimOptions early;
  early.copies = CopyTiming::Early;
  report = run(text, 0, 0, early);
  EXPECT_TRUE(report.has(FaultKind::Race)) << report.str();
}

TEST_F(TensorLoadTest, NoLoop) {
  // try_wait may give up: with some orders it does.
  std::string text = replaced(kernel(), "label %waitdone, label %waitask",
                              "label %waitdone, "
                              "label %waitdone");
  bool isFaulty = false;
  for (uint64_t seed = 1; seed < 5; ++seed) {
    SimOptions options;
    options.seed = seed;
    isFaulty |= !run(text, 0, 0, options).clean();
  }
  EXPECT_TRUE(isFaulty);
}

TEST_F(TensorLoadTest, FencesAndBarriersOfTheBeginning) {
  LaunchReport report = run(
      replaced(kernel(), nvvm("fence.mbarrier_init.release.cluster", ""), ""),
      0, 0);
  EXPECT_TRUE(report.has(FaultKind::MissingFence)) << report.str();
  SimOptions options;
  options.seed = 1;
  report =
      run(replaced(kernel(), nvvm("barrier.cta.sync.aligned.all", "i32 0"), ""),
          0, 0, options);
  EXPECT_TRUE(report.has(FaultKind::Race) ||
              report.has(FaultKind::BarrierMismatch))
      << report.str();
}

TEST_F(TensorLoadTest, ArrivalsThatAreTooMany) {
  std::string arrive = "%s2 = " + nvvm("mbarrier.arrive.scope.cta.space.cta",
                                       "ptr addrspace(3) %bar, i32 1", "i64");
  LaunchReport report =
      run(replaced(kernel(), "  %s = ",
                   "  " + arrive + "  " + replaced(arrive, "%s2", "%s3") +
                       "  %s = "),
          0, 0);
  // The first one ends the phase, before the copy.
  EXPECT_FALSE(report.clean());
  report = run(replaced(kernel(), "label %join\njoin:\n",
                        "label %join\njoin:\n  " + arrive),
               0, 0);
  EXPECT_TRUE(report.has(FaultKind::BarrierMismatch)) << report.str();
  EXPECT_NE(report.str().find("expected at most 0 more arrivals"),
            std::string::npos)
      << report.str();
}

TEST_F(SimulatorTest, APhaseThatNobodyWaitedFor) {
  auto arrive = [](const std::string &name) {
    return "  " + name + " = " +
           nvvm("mbarrier.arrive.scope.cta.space.cta",
                "ptr addrspace(3) %bar, i32 1", "i64");
  };
  auto run = [&](const std::string &between) {
    EXPECT_EQ(
        compile(
            beginKernel(0, "i32 %unused", 32) + sharedPointer("bar", "0") +
                "  br i1 %isfirst, label %init, label %end\n"
                "init:\n  " +
                nvvm("mbarrier.init.shared", "ptr addrspace(3) %bar, i32 1") +
                arrive("%s0") + between + arrive("%s1") +
                "  br label %end\nend:\n  ret void\n}\n",
            hopper()),
        "");
    return launch(LaunchShape{{1, 1, 1}, {32, 1, 1}, 8},
                  {KernelArgument::i32(0)});
  };
  EXPECT_EQ(run(waitFor("wait", "bar", "0")).str(), "");
  LaunchReport report = run("");
  EXPECT_TRUE(report.has(FaultKind::BarrierMismatch)) << report.str();
  EXPECT_NE(report.str().find("expected a wait for phase 0"), std::string::npos)
      << report.str();
  EXPECT_NE(report.str().find("before the end of phase 1"), std::string::npos)
      << report.str();
}

TEST_F(TensorLoadTest, MisalignedTileOrMbarrier) {
  LaunchReport report = run(replaced(kernel(), sharedPointer("tile", "0"),
                                     sharedPointer("tile", "128")),
                            0, 0);
  EXPECT_TRUE(report.has(FaultKind::Misaligned) ||
              report.has(FaultKind::OutOfBounds))
      << report.str();
  report = run(replaced(kernel(), sharedPointer("bar", "2048"),
                        sharedPointer("bar", "2044")),
               0, 0);
  EXPECT_TRUE(report.has(FaultKind::Misaligned)) << report.str();
}

TEST_F(TensorLoadTest, AnMbarrierIsNoMemory) {
  LaunchReport report = run(
      replaced(kernel(), "  %v = load",
               "  store i32 0, ptr addrspace(3) %bar, align 4\n  %v = load"),
      0, 0);
  EXPECT_TRUE(report.has(FaultKind::BarrierMismatch)) << report.str();
}

TEST_F(TensorLoadTest, MapsThatAreWrong) {
  // Rows beyond the buffer.
  LaunchReport report =
      run(kernel(), 0, 30, {}, [](TensorMap &map) { map.sizes[1] = 48; });
  EXPECT_TRUE(report.has(FaultKind::OutOfBounds)) << report.str();
  report = run(kernel(), 0, 0, {}, [](TensorMap &map) { map.rank = 1; });
  EXPECT_TRUE(report.has(FaultKind::Descriptor)) << report.str();
  // A box that is smaller than what is waited for.
  report = run(kernel(), 0, 0, {}, [](TensorMap &map) { map.box[1] = 15; });
  EXPECT_TRUE(report.has(FaultKind::Deadlock)) << report.str();
  report = run(kernel(), 0, 0, {}, [](TensorMap &map) { map.box[1] = 17; });
  EXPECT_TRUE(report.has(FaultKind::OutOfBounds) ||
              report.has(FaultKind::BarrierMismatch) ||
              report.has(FaultKind::Race))
      << report.str();
  EXPECT_EQ(run(replaced(kernel(), "ptr %m0, i32", "ptr null, i32"), 0, 0)
                .has(FaultKind::Descriptor),
            true);
}

TEST_F(TensorLoadTest, ATileThatIsStillRead) {
  // It is loaded once more, with nothing that orders the reads before.
  std::string again =
      "  br i1 %isfirst, label %again, label %end\nagain:\n  %s2 = " +
      nvvm("mbarrier.arrive.expect.tx.scope.cta.space.cta",
           "ptr addrspace(3) %bar, i32 2048", "i64") +
      loadBox("m0", "tile", "bar", {"%x", "%y"}) + waitFor("w2", "bar", "1") +
      "  br label %end\nend:\n  ret void\n";
  std::string barrier = "  " + nvvm("barrier.cta.sync.aligned.all", "i32 0");
  EXPECT_EQ(
      run(replaced(kernel(), "  ret void\n", barrier + again), 0, 0).str(), "");
  LaunchReport report = run(replaced(kernel(), "  ret void\n", again), 0, 0);
  EXPECT_TRUE(report.has(FaultKind::Race)) << report.str();
  // Nobody waits for the second one.
  report = run(replaced(kernel(), "  ret void\n",
                        barrier + replaced(again, "label %w2ask\nw2ask",
                                           "label %w2done\nw2ask")),
               0, 0);
  EXPECT_TRUE(report.has(FaultKind::InFlight)) << report.str();
}

TEST(TensorMapTest, RefusesWhatCudaRefuses) {
  TensorMap good;
  good.base = 1 << 20;
  good.rank = 3;
  good.sizes = {64, 100, 4, 1, 1};
  good.strides = {128, 12800, 0, 0};
  good.box = {64, 32, 1, 1, 1};
  good.swizzle128 = true;
  auto handle = encodeTensorMap(good);
  ASSERT_TRUE(bool(handle)) << llvm::toString(handle.takeError());
  auto read = decodeTensorMap(&*handle);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->sizes, good.sizes);
  EXPECT_EQ(read->getBoxBytes(), 64u * 32 * 2);
  EXPECT_FALSE(decodeTensorMap(TensorMapHandle().bytes.data()));
  auto refused = [&](std::function<void(TensorMap &)> change) {
    TensorMap map = good;
    change(map);
    auto result = encodeTensorMap(map);
    return result ? std::string() : llvm::toString(result.takeError());
  };
  EXPECT_EQ(refused([](TensorMap &m) { m.base += 8; }),
            "tensor map: expected base to be a multiple of 16, but got "
            "1048584");
  EXPECT_EQ(refused([](TensorMap &m) { m.rank = 6; }),
            "tensor map: expected rank to be 1 to 5, but got 6");
  EXPECT_EQ(refused([](TensorMap &m) { m.strides[1] += 2; }),
            "tensor map: expected strides[1] to be a multiple of 16 below "
            "2^40, but got 12802");
  EXPECT_NE(refused([](TensorMap &m) { m.strides[0] = 1ull << 40; }), "");
  EXPECT_EQ(refused([](TensorMap &m) { m.box[1] = 257; }),
            "tensor map: expected box[1] to be 1 to 256, but got 257");
  EXPECT_EQ(refused([](TensorMap &m) { m.sizes[2] = 0; }),
            "tensor map: expected sizes[2] to be 1 to 2^32, but got 0");
  EXPECT_EQ(refused([](TensorMap &m) { m.box[0] = 128; }),
            "tensor map: expected rows of the box to be 128 bytes with the "
            "128-byte swizzle, but got 256");
  EXPECT_NE(refused([](TensorMap &m) { m.elementBytes = 3; }), "");
  EXPECT_NE(refused([](TensorMap &m) {
              m.swizzle128 = false;
              m.box[0] = 7;
            }),
            "");
}

} // namespace
