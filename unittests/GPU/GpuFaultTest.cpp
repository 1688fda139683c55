//===- GpuFaultTest.cpp - attention kernels, broken -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Kernels as they are shipped, with one instruction changed: either the
// simulator says what is wrong, or the result is off by more than the bound. So
// a clean run means something.
//
//===----------------------------------------------------------------------===//
#include "FaultInjection.h"
#include "GpuCase.h"

#include "llvm/Transforms/Utils/Cloning.h"
#include <gtest/gtest.h>

using namespace mlir;
using namespace mlir::diffattn;
using sim::Injection;

namespace {

std::vector<Injection> getInjections() {
  std::vector<Injection> all = sim::getAllInjections().vec();
  all.push_back(Injection::VoteAll);
  return all;
}

class GpuFaultTest : public ::testing::Test {
protected:
  /// Breaks the kernel of `signature` in every way, at some places of each.
  void expectAllFound(const Signature &signature, const Shape &shape) {
    CompiledCase compiled(signature);
    Outcome whole = compiled.run(shape, kSeed);
    ASSERT_TRUE(whole.report.clean()) << whole.report.str();
    ASSERT_LE(whole.worst(), 1.0);
    // Random scores grow too little after the first tile for their sums to be
    // rescaled.
    Shape growing = shape;
    growing.growth = 0.5;
    Outcome grown = compiled.run(growing, kSeed);
    ASSERT_TRUE(grown.report.clean()) << grown.report.str();
    ASSERT_LE(grown.worst(), 1.0);
    llvm::SmallVector<llvm::StringRef> kernels;
    llvm::StringRef(whole.kernels).trim().split(kernels, ' ');
    std::unique_ptr<llvm::Module> alone =
        llvm::CloneModule(compiled.getKernels());
    for (Injection injection : getInjections()) {
      unsigned places = 0;
      for (llvm::StringRef name : kernels) {
        // A merge only sums whole warps, which may begin with another lane.
        if (injection == Injection::WrongLane && name.contains("_merge_"))
          continue;
        const std::string kernel = name.str();
        unsigned count = sim::countInjections(*alone, kernel, injection);
        places += count;
        // The first, the last, and one between them.
        unsigned step = std::max(1u, (count + 1) / 2);
        for (unsigned at = 0; at < count; at += step)
          expectFound(compiled, *alone, kernel, injection,
                      std::min(at, count - 1),
                      injection == Injection::VoteAll ? growing : shape);
      }
      EXPECT_GT(places, 0u) << stringifyInjection(injection).str();
    }
  }

private:
  static constexpr unsigned kSeed = 7;

  void expectFound(CompiledCase &compiled, const llvm::Module &whole,
                   const std::string &kernel, Injection injection,
                   unsigned index, const Shape &shape) {
    compiled.replaceKernels(*sim::getBroken(whole, kernel, injection, index));
    Outcome outcome = compiled.run(shape, kSeed);
    const sim::ExpectedOutcome expected = sim::getExpectedOutcome(injection);
    EXPECT_TRUE(outcome.report.has(expected.kinds) ||
                (expected.wrong && outcome.worst() > 1.0))
        << stringifyInjection(injection).str() << " at place " << index
        << " of " << kernel << ", faults: " << outcome.report.str()
        << "error in bounds: " << outcome.worst();
  }
};

/// 64 queries and three tiles of keys: the ring is refilled while it is read.
TEST_F(GpuFaultTest, BothMapsInAWarp) {
  Signature s;
  s.d = 32;
  s.dv = 64;
  s.rms = s.causal = true;
  expectAllFound(s, {1, 64, 96});
}

TEST_F(GpuFaultTest, PairOfWarps) {
  Signature s;
  s.d = 128;
  s.dv = 256;
  s.rms = s.causal = true;
  expectAllFound(s, {1, 64, 96});
}

/// One map, whose warps have two tiles of rows. A norm would hide a wrong sum.
TEST_F(GpuFaultTest, OneMap) {
  Signature s;
  s.maps = 1;
  s.d = s.dv = 64;
  s.causal = true;
  expectAllFound(s, {1, 128, 192});
}

/// Decode, and the merge of its ranges, of which the first has four tiles.
TEST_F(GpuFaultTest, SplitKeys) {
  Signature s;
  s.d = 32;
  s.dv = 64;
  s.rms = true;
  s.queries = 2;
  s.schedule = "#diffattn.gpu_split_kv<warps = 2, q_in_registers = true, "
               "kv_split_size = 128>";
  expectAllFound(s, {1, 2, 300});
}

/// All eight rows exist, and the last range ends in the stage where the states
/// are left.
TEST_F(GpuFaultTest, SplitKeysOfOneMap) {
  Signature s;
  s.maps = 1;
  s.signal = s.noise = 4;
  s.d = 32;
  s.dv = 64;
  s.queries = 2;
  s.schedule = "#diffattn.gpu_split_kv<warps = 2, q_in_registers = true, "
               "kv_split_size = 128>";
  expectAllFound(s, {1, 2, 330});
}

} // namespace
