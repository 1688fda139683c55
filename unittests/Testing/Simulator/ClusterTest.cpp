//===- ClusterTest.cpp - blocks that see each other's shared memory -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HopperText.h"

using namespace mlir::diffattn::sim;

namespace {

/// Two blocks of a cluster: each brings its half of a tile of 64 x 16 into
/// both, as often as there are tiles, and copies the whole tile to its place of
/// %out. An mbarrier counts bytes, one what both blocks have read.
class ClusterTest : public SimulatorTest {
protected:
  const std::string meet = "  " + nvvm("barrier.cluster.arrive.aligned", "") +
                           "  " + nvvm("barrier.cluster.wait.aligned", ""),
                    blockBarrier =
                        "  " + nvvm("barrier.cta.sync.aligned.all", "i32 0");

  static std::string arriveAt(const std::string &block) {
    return "  %remote" + block + " = " +
           nvvm("mapa.shared.cluster", "ptr addrspace(3) %empty, i32 " + block,
                "ptr addrspace(7)") +
           "  " +
           nvvm("mbarrier.arrive.scope.cluster.space.cluster",
                "ptr addrspace(7) %remote" + block + ", i32 1");
  }

  std::string kernel() const {
    std::string load = loadBox("m0", "mine", "full", {"0", "%y"});
    load = replaced(load, "i16 0, i64 0, i1 false", "i16 3, i64 0, i1 true");
    std::string text =
        beginKernel(1, "ptr addrspace(1) %out, i32 %tiles", 128) +
        "  %rank = " + nvvm("read.ptx.sreg.cluster.ctarank", "", "i32") +
        "  %half = shl i32 %rank, 10\n" + sharedPointer("tile", "0") +
        sharedPointer("mine", "%half") + sharedPointer("full", "2048") +
        sharedPointer("empty", "2056") +
        "  br i1 %isfirst, label %init, label %met\ninit:\n  " +
        nvvm("mbarrier.init.shared", "ptr addrspace(3) %full, i32 1") + "  " +
        nvvm("mbarrier.init.shared", "ptr addrspace(3) %empty, i32 2") + "  " +
        nvvm("fence.mbarrier_init.release.cluster", "") +
        "  br label %met\nmet:\n" + meet +
        "  br label %turn\nturn:\n"
        "  %i = phi i32 [ 0, %met ], [ %inext, %next ]\n"
        "  %parity = and i32 %i, 1\n  %other = xor i32 %parity, 1\n"
        "  br i1 %isfirst, label %load, label %join\nload:\n" +
        waitFor("empty", "empty", "%other") + "  %s = " +
        nvvm("mbarrier.arrive.expect.tx.scope.cta.space.cta",
             "ptr addrspace(3) %full, i32 2048", "i64") +
        "  %y0 = shl i32 %i, 4\n  %y1 = shl i32 %rank, 3\n"
        "  %y = add i32 %y0, %y1\n" +
        load + "  br label %join\njoin:\n" +
        waitFor("full", "full", "%parity") +
        R"(
  %from0 = shl i32 %tid, 4
  %from = getelementptr i8, ptr addrspace(3) %tile, i32 %from0
  %v = load <4 x i32>, ptr addrspace(3) %from, align 16
  %a = mul i32 %rank, %tiles
  %b = add i32 %a, %i
  %c = shl i32 %b, 11
  %to0 = add i32 %c, %from0
  %to = getelementptr i8, ptr addrspace(1) %out, i32 %to0
  store <4 x i32> %v, ptr addrspace(1) %to, align 16
)" + blockBarrier +
        "  br i1 %isfirst, label %free, label %next\nfree:\n" + arriveAt("0") +
        arriveAt("1") +
        "  br label %next\nnext:\n  %inext = add i32 %i, 1\n"
        "  %more = icmp slt i32 %inext, %tiles\n"
        "  br i1 %more, label %turn, label %last\nlast:\n" +
        meet + "  ret void\n}\n";
    return replaced(text, "\"nvvm.reqntid\"",
                    "\"nvvm.cluster_dim\"=\"2,1,1\" \"nvvm.reqntid\"");
  }

  LaunchReport run(const std::string &text, const SimOptions &options = {},
                   unsigned blocks = 2) {
    EXPECT_EQ(compile(text, hopper()), "");
    out.assign(2 * kTiles * 1024, 7);
    auto handle =
        encodeTensorMap(source.map(buffer(source.bits, "source").bits, 8));
    EXPECT_TRUE(bool(handle)) << llvm::toString(handle.takeError());
    return launch(LaunchShape{{blocks, 1, 1}, {128, 1, 1}, 2048 + 16},
                  {KernelArgument::map(*handle), buffer(out, "out"),
                   KernelArgument::i32(kTiles)},
                  options);
  }

  /// Faults in some orders and with both timings, of the first that shows one.
  std::string faults(const std::string &text) {
    for (CopyTiming copies : {CopyTiming::Late, CopyTiming::Early})
      for (uint64_t seed : {0, 1, 2, 3}) {
        SimOptions options;
        options.seed = seed;
        options.copies = copies;
        if (LaunchReport report = run(text, options); !report.clean())
          return report.str();
      }
    return "";
  }

  static constexpr unsigned kTiles = 5;
  Matrix source = Matrix::random(16 * kTiles, 64, true, 8);
  std::vector<uint16_t> out;
};

TEST_F(ClusterTest, BothGetBothHalves) {
  EXPECT_EQ(faults(kernel()), "");
  for (unsigned rank = 0; rank < 2; ++rank)
    for (unsigned row = 0; row < 16 * kTiles; ++row)
      for (unsigned column = 0; column < 64; ++column)
        ASSERT_EQ(out[(rank * 16 * kTiles + row) * 64 +
                      ((column / 8) ^ (row % 8)) * 8 + column % 8],
                  source.bits[row * 64 + column])
            << rank << " " << row << " " << column;
}

TEST_F(ClusterTest, LoadsEachByteOnce) {
  LaunchReport report = run(kernel());
  EXPECT_EQ(report.str(), "");
  EXPECT_EQ(report.stats.blocks, 2u);
  EXPECT_EQ(report.stats.bulkCopies, 2 * kTiles);
  EXPECT_EQ(report.stats.findBuffer("source")->copiedBytes, 2048u * kTiles);
}

TEST_F(ClusterTest, LeavesBeforeThePartnerArrives) {
  std::string text = kernel();
  const size_t at = text.rfind(meet);
  text.erase(at, meet.size());
  EXPECT_NE(faults(text).find("of the cluster has ended"), std::string::npos);
}

TEST_F(ClusterTest, BreaksAsItShould) {
  const std::string text = kernel();
  auto shows = [&](const std::string &changed,
                   std::initializer_list<const char *> any) {
    const std::string report = faults(changed);
    for (const char *kind : any)
      if (report.find(kind) != std::string::npos)
        return true;
    ADD_FAILURE() << report;
    return false;
  };
  // Masks: itself alone, and a block that is not there.
  EXPECT_TRUE(shows(replaced(text, "i16 3,", "i16 1,"), {"deadlock: "}));
  EXPECT_TRUE(shows(replaced(text, "i16 3,", "i16 7,"), {"descriptor: "}));
  // The block does not wait until the other one has read.
  EXPECT_TRUE(shows(
      replaced(text, "label %emptyask\nemptyask", "label %emptydone\nemptyask"),
      {"race: ", "barrier mismatch: "}));
  EXPECT_TRUE(shows(replaced(text, "%empty, i32 2)", "%empty, i32 1)"),
                    {"race: ", "barrier mismatch: "}));
  // The block arrives at its own barrier alone.
  EXPECT_TRUE(shows(replaced(text, arriveAt("1"), ""), {"deadlock: "}));
  // A block that is not there.
  EXPECT_TRUE(
      shows(replaced(text, "%empty, i32 1)\n  call", "%empty, i32 2)\n  call"),
            {"out of bounds: "}));
  // The mbarriers of the other block may not be there yet.
  std::string early = text;
  early.replace(early.find(meet), meet.size(), blockBarrier);
  EXPECT_TRUE(shows(early, {"race: ", "barrier mismatch: "}));
  // A wait without an arrival, and one arrival more.
  std::string one = text;
  const std::string arrive = "  " + nvvm("barrier.cluster.arrive.aligned", "");
  one.erase(one.find(arrive), arrive.size());
  EXPECT_TRUE(shows(one, {"has not arrived"}));
  one = text;
  one.insert(one.find(arrive), arrive);
  EXPECT_TRUE(shows(one, {"arrives at the cluster again"}));
}

TEST_F(ClusterTest, LaunchesThatADriverRefuses) {
  ASSERT_EQ(compile(kernel(), hopper()), "");
  auto refused = [&](const LaunchShape &shape) {
    TensorMapHandle none;
    auto report =
        simulator->launch("k", shape,
                          {KernelArgument::map(none),
                           KernelArgument::pointer(0), KernelArgument::i32(1)});
    return report ? std::string() : llvm::toString(report.takeError());
  };
  EXPECT_EQ(refused({{3, 1, 1}, {128, 1, 1}, 2064}),
            "expected a grid of whole clusters of 2 x 1 x 1 blocks, but got 3 "
            "x 1 x 1");
  ASSERT_EQ(compile(replaced(kernel(), "\"2,1,1\"", "\"2,8,1\""), hopper()),
            "");
  EXPECT_EQ(refused({{2, 8, 1}, {128, 1, 1}, 2064}),
            "expected a cluster of 1 to 8 blocks on sm_90, but kernel @k has "
            "16");
}

} // namespace
