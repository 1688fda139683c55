//===- WgmmaFixture.h - a kernel of one warpgroup ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_TESTING_SIMULATOR_WGMMAFIXTURE_H
#define DIFFATTN_UNITTESTS_TESTING_SIMULATOR_WGMMAFIXTURE_H

#include "HopperText.h"

namespace mlir::diffattn::sim {

/// Where B and the mbarrier lie.
inline constexpr unsigned kMatrixB = 8192, kBarAt = kMatrixB + 32768;

/// A warpgroup multiplies A (64 x 64) by B (64 x n, or n x 64 and transposed),
/// which the copy engine brings.
class WgmmaFixture : public SimulatorTest {
protected:
  static std::string load(const Wgmma &wgmma) {
    const unsigned boxes = wgmma.transposeB ? (wgmma.n + 63) / 64 : 1;
    const unsigned bytes =
        8192 + (wgmma.transposeB ? boxes * 8192 : wgmma.n * 128);
    std::string text =
        beginKernel(2, "ptr addrspace(1) %d, ptr addrspace(1) %ga", 128) +
        sharedPointer("a", "0") + sharedPointer("b", std::to_string(kMatrixB)) +
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
      text += sharedPointer(to, std::to_string(kMatrixB + box * 8192)) +
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

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_UNITTESTS_TESTING_SIMULATOR_WGMMAFIXTURE_H
