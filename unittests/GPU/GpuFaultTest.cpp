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

#include "llvm/IR/Verifier.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include <gtest/gtest.h>

using namespace mlir;
using namespace mlir::diffattn;
using sim::FaultKind;
using sim::Injection;

namespace {

/// The expected outcome of an injection: one of the faults, or with `wrong`, a
/// result beyond the bound instead.
struct Expected {
  Injection injection;
  std::vector<FaultKind> kinds;
  bool wrong = false;
  /// On keys that grow: random scores grow too little after the first tile for
  /// their sums to be rescaled.
  bool growing = false;
  /// Whether it is tried in merge kernels too.
  bool inMerge = true;
};

const Expected kExpected[] = {
    {Injection::DropWait, {FaultKind::NotArrived}},
    {Injection::WeakenWait, {FaultKind::NotArrived}},
    {Injection::DropBarrier, {FaultKind::Race, FaultKind::NotArrived}},
    {Injection::RefillEarly, {FaultKind::Race, FaultKind::NotArrived}},
    {Injection::RowOutOfBounds, {FaultKind::OutOfBounds}},
    {Injection::SharedOutOfBounds, {FaultKind::OutOfBounds}},
    {Injection::MisalignedRow, {FaultKind::Misaligned}},
    {Injection::MisalignedCopy, {FaultKind::Misaligned}},
    {Injection::HalfWarp, {FaultKind::Divergence}},
    // A stage that was filled before still holds other keys.
    {Injection::DropCopy, {FaultKind::Uninitialized}, true},
    {Injection::WrongSwizzle, {}, true},
    // A merge only sums whole warps, which may begin with another lane.
    {Injection::WrongLane, {}, true, /*growing=*/false, /*inMerge=*/false},
    {Injection::VoteAll, {}, true, /*growing=*/true},
};

class GpuFaultTest : public ::testing::Test {
protected:
  /// Breaks the kernel of `signature` in every way, at some places of each.
  void expectAllFound(const Signature &signature, const Shape &shape) {
    CompiledCase compiled(signature);
    Outcome whole = compiled.run(shape, kSeed);
    ASSERT_TRUE(whole.report.clean()) << whole.report.str();
    ASSERT_LE(whole.worst(), 1.0);
    Shape growing = shape;
    growing.growth = 0.5;
    Outcome grown = compiled.run(growing, kSeed);
    ASSERT_TRUE(grown.report.clean()) << grown.report.str();
    ASSERT_LE(grown.worst(), 1.0);
    llvm::SmallVector<llvm::StringRef> kernels;
    llvm::StringRef(whole.kernels).trim().split(kernels, ' ');
    std::unique_ptr<llvm::Module> alone =
        llvm::CloneModule(compiled.getKernels());
    for (const Expected &expected : kExpected) {
      unsigned places = 0;
      for (llvm::StringRef name : kernels) {
        if (!expected.inMerge && name.contains("_merge_"))
          continue;
        const std::string kernel = name.str();
        unsigned count =
            sim::countInjections(*alone, kernel, expected.injection);
        places += count;
        // The first, the last, and one between them.
        unsigned step = std::max(1u, (count + 1) / 2);
        for (unsigned at = 0; at < count; at += step)
          expectFound(compiled, *alone, kernel, expected,
                      std::min(at, count - 1),
                      expected.growing ? growing : shape);
      }
      EXPECT_GT(places, 0u) << stringifyInjection(expected.injection).str();
    }
  }

private:
  static constexpr unsigned kSeed = 7;

  void expectFound(CompiledCase &compiled, const llvm::Module &whole,
                   const std::string &kernel, const Expected &expected,
                   unsigned index, const Shape &shape) {
    std::unique_ptr<llvm::Module> broken = llvm::CloneModule(whole);
    sim::inject(*broken, kernel, expected.injection, index);
    std::string message;
    llvm::raw_string_ostream os(message);
    ASSERT_FALSE(llvm::verifyModule(*broken, &os)) << message;
    compiled.replaceKernels(*broken);
    Outcome outcome = compiled.run(shape, kSeed);
    SCOPED_TRACE(stringifyInjection(expected.injection).str() + " at place " +
                 std::to_string(index) + " of " + kernel);
    bool isShown = expected.wrong && outcome.worst() > 1.0;
    isShown |= llvm::any_of(expected.kinds, [&](FaultKind kind) {
      return outcome.report.has(kind);
    });
    EXPECT_TRUE(isShown) << "faults: " << outcome.report.str()
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
