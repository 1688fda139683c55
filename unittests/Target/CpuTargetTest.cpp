//===- CpuTargetTest.cpp - names and facts of CPUs ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/CpuTarget.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

constexpr CpuIsa kIsas[] = {CpuIsa::AVX512BF16, CpuIsa::AVX512, CpuIsa::AVX2,
                            CpuIsa::Generic};

TEST(CpuTarget, EveryNameGivesItsTarget) {
  for (CpuIsa isa : kIsas) {
    std::optional<CpuTarget> target = getCpuTarget(stringifyCpuIsa(isa));
    ASSERT_TRUE(target) << stringifyCpuIsa(isa).str();
    EXPECT_EQ(target->isa, isa);
    EXPECT_TRUE(llvm::is_contained(getCpuIsaNames(), stringifyCpuIsa(isa)));
  }
  EXPECT_EQ(getCpuIsaNames().size(), std::size(kIsas) + 1);
  EXPECT_EQ(getCpuIsaNames().front(), "native");
}

TEST(CpuTarget, OtherNamesGiveNothing) {
  for (StringRef name : {"", "AVX2", "avx", "avx512 ", "avx512bf16,avx2",
                         "znver4", "sm_80", "cpu:avx2"})
    EXPECT_FALSE(getCpuTarget(name)) << name.str();
}

TEST(CpuTarget, AnIsaIncludesThoseAfterIt) {
  for (auto [better, worse] :
       llvm::zip(ArrayRef(kIsas).drop_back(), ArrayRef(kIsas).drop_front())) {
    CpuTarget a = *getCpuTarget(stringifyCpuIsa(better)),
              b = *getCpuTarget(stringifyCpuIsa(worse));
    llvm::StringSet<> features;
    for (StringRef feature : a.getFeatures())
      features.insert(feature);
    for (StringRef feature : b.getFeatures())
      EXPECT_TRUE(features.contains(feature)) << feature.str();
    EXPECT_GE(a.vectorBytes, b.vectorBytes);
    EXPECT_GE(a.vectorRegisters, b.vectorRegisters);
    EXPECT_GE(a.hasHalfConversion, b.hasHalfConversion);
    EXPECT_GE(hostSupports(worse), hostSupports(better));
  }
}

TEST(CpuTarget, FactsFollowTheFeatures) {
  for (CpuIsa isa : kIsas) {
    CpuTarget target = *getCpuTarget(stringifyCpuIsa(isa));
    auto has = [&](StringRef feature) {
      return llvm::is_contained(target.getFeatures(), feature);
    };
    EXPECT_EQ(target.vectorBytes == 64, has("+avx512f"));
    EXPECT_EQ(target.vectorRegisters == 32, has("+avx512f"));
    EXPECT_EQ(target.vectorBytes >= 32, has("+avx2"));
    EXPECT_EQ(target.hasHalfConversion, has("+f16c"));
    EXPECT_EQ(target.fastBf16Dot, has("+avx512bf16"));
    for (StringRef feature : target.getFeatures())
      EXPECT_TRUE(feature.starts_with("+")) << feature.str();
    EXPECT_LT(target.l1Bytes, target.l2Bytes);
    EXPECT_LT(target.l2Bytes, target.l3Bytes);
  }
}

TEST(CpuTarget, NativeRunsHere) {
  CpuTarget native = *getCpuTarget("native");
  EXPECT_TRUE(hostSupports(native.isa));
  EXPECT_TRUE(hostSupports(CpuIsa::Generic));
  // bf16 dot products are taken only where they pay; else the best there is.
  for (CpuIsa isa : {CpuIsa::AVX512, CpuIsa::AVX2})
    if (hostSupports(isa))
      EXPECT_LE(static_cast<int>(native.isa), static_cast<int>(isa));
  EXPECT_GT(native.l1Bytes, 0);
  EXPECT_GT(native.l2Bytes, 0);
  EXPECT_GT(native.l3Bytes, 0);
}

} // namespace
