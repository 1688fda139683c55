//===- CpuTargetTest.cpp - names and facts of CPUs ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/CpuTarget.h"
#include "DiffAttn/Target/HostFacts.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

TEST(CpuTarget, EveryNameGivesItsTarget) {
  for (const CpuTarget &row : getCpuTargets()) {
    std::optional<CpuTarget> target = getCpuTarget(row.name);
    ASSERT_TRUE(target) << row.name.str();
    EXPECT_EQ(target->name, row.name);
    EXPECT_EQ(target->features, row.features);
    EXPECT_FALSE(row.codegenCpu.empty());
    EXPECT_TRUE(llvm::is_contained(getCpuIsaNames(), row.name));
  }
  EXPECT_EQ(getCpuIsaNames().size(), getCpuTargets().size() + 1);
  EXPECT_EQ(getCpuIsaNames().front(), "native");
}

TEST(CpuTarget, OtherNamesGiveNothing) {
  for (StringRef name : {"", "AVX2", "avx", "avx512 ", "avx512bf16,avx2",
                         "znver4", "sm_80", "cpu:avx2"})
    EXPECT_FALSE(getCpuTarget(name)) << name.str();
}

/// A better target that is a worse one with more features has no fewer of
/// anything.
TEST(CpuTarget, MoreFeaturesTakeNothingAway) {
  for (const CpuTarget &a : getCpuTargets())
    for (const CpuTarget &b : getCpuTargets()) {
      if (a.emulatesTiles || b.emulatesTiles)
        continue;
      bool includes = llvm::all_of(b.features, [&](StringRef feature) {
        return a.has(feature.drop_front());
      });
      if (!includes)
        continue;
      EXPECT_LE(&a, &b) << a.name.str() << " is listed after " << b.name.str();
      EXPECT_GE(a.vectorBytes, b.vectorBytes);
      EXPECT_GE(a.vectorRegisters, b.vectorRegisters);
      EXPECT_GE(hostSupports(b), hostSupports(a));
    }
}

TEST(CpuTarget, FactsFollowTheFeatures) {
  for (const CpuTarget &target : getCpuTargets()) {
    // An emulation has the vectors of the target that it emulates.
    bool isWide = target.has("avx512f") || target.emulatesTiles;
    EXPECT_EQ(target.vectorBytes == 64, isWide);
    EXPECT_EQ(target.vectorRegisters == 32, isWide);
    EXPECT_EQ(target.hasTiles(),
              target.has("amx-tile") || target.emulatesTiles);
    EXPECT_EQ(target.has("amx-tile"), target.has("amx-bf16"));
    EXPECT_EQ(target.vectorBytes >= 32, target.has("avx2"));
    EXPECT_EQ(target.hasHalfConversion(), target.has("f16c"));
    EXPECT_EQ(target.hasBf16Dot(), target.has("avx512bf16"));
    for (StringRef feature : target.features)
      EXPECT_TRUE(feature.starts_with("+")) << feature.str();
    EXPECT_LT(target.l1Bytes, target.l2Bytes);
    EXPECT_LT(target.l2Bytes, target.l3Bytes);
  }
}

TEST(CpuTarget, NativeRunsHere) {
  CpuTarget native = *getCpuTarget("native");
  EXPECT_TRUE(hostSupports(native));
  EXPECT_TRUE(hostSupports(*getCpuTarget("generic")));
  // The first that runs here, but for bf16 dot products, which are taken only
  // where they pay.
  for (const CpuTarget &target : getCpuTargets()) {
    if (target.name == native.name)
      break;
    EXPECT_TRUE(!hostSupports(target) || target.hasBf16Dot())
        << target.name.str();
  }
  // There is a refusal if the CPU has the features and the system denies them.
  const CpuTarget amx = *getCpuTarget("amx");
  EXPECT_EQ(getNativeRefusal().empty(),
            !hostHasFeatures(amx) || hostSupports(amx));
  EXPECT_EQ(native.prefetchBytes, getHostFacts().prefetchBytes);
  EXPECT_GT(native.l1Bytes, 0);
  EXPECT_GT(native.l2Bytes, 0);
  EXPECT_GT(native.l3Bytes, 0);
}

/// Named instruction sets take nothing that was measured.
TEST(CpuTarget, ThePrefetchIsTheRowsTheHostsOrGiven) {
  for (const CpuTarget &row : getCpuTargets()) {
    EXPECT_EQ(llvm::cantFail(getCpuTarget(row.name, -1)).prefetchBytes,
              row.prefetchBytes);
    for (int64_t bytes : {int64_t(0), int64_t(64), kMaxPrefetchBytes})
      EXPECT_EQ(llvm::cantFail(getCpuTarget(row.name, bytes)).prefetchBytes,
                bytes);
  }
  for (int64_t bytes : {int64_t(-2), kMaxPrefetchBytes + 1, INT64_MIN})
    EXPECT_EQ(llvm::toString(getCpuTarget("native", bytes).takeError()),
              "expected prefetch-bytes to be between 0 and 65536, or -1, but "
              "got " +
                  std::to_string(bytes));
  EXPECT_EQ(llvm::toString(getCpuTarget("avx", 0).takeError()).substr(0, 29),
            "expected isa to be one of nat");
}

TEST(HostFacts, AreMeasuredOnce) {
  HostFacts facts = getHostFacts();
  EXPECT_TRUE(knowsHostFacts());
  EXPECT_GE(facts.prefetchBytes, 0);
  EXPECT_LE(facts.prefetchBytes, kMaxPrefetchBytes);
  // Without the instruction there is nothing to be fast.
  CpuTarget dot = *getCpuTarget("avx512bf16");
  EXPECT_TRUE(hostHasFeatures(dot) || !facts.hasFastBf16Dot);
  recallHostFacts({!facts.hasFastBf16Dot, facts.prefetchBytes + 64});
  EXPECT_EQ(getHostFacts(), facts);
  EXPECT_EQ(getHostSignature(), getHostSignature());
  EXPECT_FALSE(getHostSignature().empty());
}

/// Reads that take `times` by distance, the shorter and the longer ones.
struct Reads {
  SmallVector<double> shortRead, longRead;
  int64_t bytes = 0;

  int64_t choose() {
    return choosePrefetch([&](int64_t size, int, ArrayRef<int64_t> distances) {
      EXPECT_EQ(distances.front(), 0);
      EXPECT_GT(size, bytes);
      const SmallVector<double> &times = bytes ? longRead : shortRead;
      EXPECT_EQ(distances.size(), times.size());
      bytes = size;
      return times;
    });
  }
};

TEST(HostFacts, LinesAreAskedForWhereShortAndLongReadsGain) {
  EXPECT_EQ((Reads{{1.0, 0.7, 0.7, 0.7}, {1.0, 0.7}}).choose(), 4096);
  EXPECT_EQ((Reads{{1.0, 0.7, 0.5, 0.6}, {1.0, 0.6}}).choose(), 2048);
  EXPECT_EQ((Reads{{1.0, 0.7, 0.7, 0.6}, {1.0, 0.7}}).choose(), 8192);
  // Zen 4: only the short read gains.
  Reads zen4{{1.0, 1.0, 1.2, 0.75}, {1.0, 0.97}};
  EXPECT_EQ(zen4.choose(), 0);
  EXPECT_GE(zen4.bytes, 64 << 20);
  // Nothing to gain takes no long read.
  Reads none{{1.0, 0.95, 1.0, 1.1}, {}};
  EXPECT_EQ(none.choose(), 0);
  EXPECT_LE(none.bytes, 1 << 20);
}

TEST(HostFacts, TheirTextIsReadBack) {
  for (bool fast : {false, true})
    for (int64_t bytes : {int64_t(0), int64_t(4096), kMaxPrefetchBytes}) {
      HostFacts facts{fast, bytes};
      std::optional<HostFacts> read = parseHostFacts(writeHostFacts(facts));
      ASSERT_TRUE(read);
      EXPECT_EQ(*read, facts);
      // Cut, or with more behind it, it is no text of ours.
      std::string text = writeHostFacts(facts);
      for (size_t n = 0; n < text.size(); ++n)
        EXPECT_FALSE(parseHostFacts(StringRef(text).take_front(n))) << n;
      EXPECT_FALSE(parseHostFacts(text + "\n"));
    }
  for (StringRef text :
       {"bf16 dot products fast, prefetch -64 bytes ahead",
        "bf16 dot products fast, prefetch 65537 bytes ahead",
        "bf16 dot products quick, prefetch 0 bytes ahead",
        "bf16 dot products slow, prefetch 99999999999999999999 bytes ahead"})
    EXPECT_FALSE(parseHostFacts(text)) << text.str();
}

/// The emulation makes the same code as the target that it stands for.
TEST(CpuTarget, TheEmulationHasTheSameFacts) {
  CpuTarget real = *getCpuTarget("amx"),
            emulated = *getCpuTarget("amx-emulated");
  EXPECT_EQ(real.vectorBytes, emulated.vectorBytes);
  EXPECT_EQ(real.vectorRegisters, emulated.vectorRegisters);
  EXPECT_EQ(real.hasTiles(), emulated.hasTiles());
  EXPECT_EQ(real.hasBf16Dot(), emulated.hasBf16Dot());
  EXPECT_EQ(real.hasHalfConversion(), emulated.hasHalfConversion());
  EXPECT_FALSE(real.emulatesTiles);
}

TEST(CpuTarget, TilesAreRefusedWithAReason) {
  CpuTarget tiles = *getCpuTarget("amx");
  EXPECT_EQ(hostSupports(tiles),
            hostHasFeatures(tiles) && getTileRefusal().empty());
}

} // namespace
