//===- CpuFeaturesTest.cpp - cpuid against the compiler's view ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CpuFeatures.h"

#include "gtest/gtest.h"

using namespace diffattn_rt;

namespace {

TEST(CpuFeatures, AgreeWithTheCompilerSupportLibrary) {
  __builtin_cpu_init();
#define EXPECT_SAME(name)                                                      \
  EXPECT_EQ(getCpuFeature(name) == FeatureState::Present,                      \
            __builtin_cpu_supports(name) != 0)                                 \
      << name
  EXPECT_SAME("sse3");
  EXPECT_SAME("ssse3");
  EXPECT_SAME("sse4.1");
  EXPECT_SAME("sse4.2");
  EXPECT_SAME("popcnt");
  EXPECT_SAME("avx");
  EXPECT_SAME("avx2");
  EXPECT_SAME("fma");
  EXPECT_SAME("bmi");
  EXPECT_SAME("bmi2");
  EXPECT_SAME("avx512f");
  EXPECT_SAME("avx512vl");
  EXPECT_SAME("avx512bw");
  EXPECT_SAME("avx512dq");
  EXPECT_SAME("avx512cd");
  EXPECT_SAME("avx512bf16");
#undef EXPECT_SAME
}

TEST(CpuFeatures, OthersAreUnknown) {
  EXPECT_EQ(getCpuFeature("avx9000"), FeatureState::Unknown);
  EXPECT_EQ(getCpuFeature(""), FeatureState::Unknown);
}

} // namespace
