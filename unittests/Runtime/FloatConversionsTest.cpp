//===- FloatConversionsTest.cpp - All of f16, and edges of bf16 -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "gtest/gtest.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>

namespace {

template <typename F>
F *ours(const char *name) {
  diffattn_named_function all[5];
  diffattn_rt_float_conversions(all);
  for (const diffattn_named_function &function : all)
    if (strcmp(function.name, name) == 0)
      return reinterpret_cast<F *>(function.address);
  return nullptr;
}

template <typename To, typename From>
To bitsOf(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

/// Rounds `x` to a format by exact arithmetic: 2^-(digits-1) relative to its
/// leading bit, at least `least`.
double nearest(double x, int digits, double least) {
  if (x == 0 || std::isnan(x) || std::isinf(x))
    return x;
  double unit = std::max(std::ldexp(1.0, std::ilogb(x) - digits + 1), least);
  return std::nearbyint(x / unit) * unit;
}

TEST(FloatConversions, HalfRoundTrips) {
  auto *extend = ours<float(_Float16)>("__extendhfsf2");
  auto *trunc = ours<_Float16(float)>("__truncsfhf2");
  ASSERT_TRUE(extend && trunc);
  for (uint32_t i = 0; i < 0x10000; ++i) {
    float wide = extend(bitsOf<_Float16>(uint16_t(i)));
    if ((i & 0x7fff) > 0x7c00) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_TRUE(std::isnan(wide + float(0)));
      continue;
    }
    ASSERT_EQ(bitsOf<uint16_t>(trunc(wide)), i);
  }
}

TEST(FloatConversions, RoundsToNearestEven) {
  auto *half = ours<_Float16(float)>("__truncsfhf2");
  auto *halfD = ours<_Float16(double)>("__truncdfhf2");
  auto *bf = ours<__bf16(float)>("__truncsfbf2");
  auto *bfD = ours<__bf16(double)>("__truncdfbf2");
  auto *extend = ours<float(_Float16)>("__extendhfsf2");
  ASSERT_TRUE(half && halfD && bf && bfD && extend);
  auto wide = [](__bf16 b) {
    return bitsOf<float>(uint32_t(bitsOf<uint16_t>(b)) << 16);
  };
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    int exponent = int(random() % 44) - 30;
    double d = std::ldexp(1.0 + double(random() % (1 << 13)) / (1 << 13) +
                              (i % 3 ? 0 : double(random() % 16) * 0x1p-40),
                          exponent);
    float f = float(d);
    ASSERT_EQ(extend(half(f)), nearest(f, 11, 0x1p-24)) << f;
    ASSERT_EQ(extend(halfD(d)), nearest(d, 11, 0x1p-24)) << d;
    ASSERT_EQ(wide(bf(-f)), nearest(-f, 8, 0)) << f;
    ASSERT_EQ(wide(bfD(d)), nearest(d, 8, 0)) << d;
  }
  EXPECT_EQ(bitsOf<uint16_t>(half(1e6f)), 0x7c00);
  EXPECT_EQ(bitsOf<uint16_t>(half(65519.0f)), 0x7bff);
  EXPECT_EQ(bitsOf<uint16_t>(half(65520.0f)), 0x7c00);
  EXPECT_EQ(bitsOf<uint16_t>(bf(INFINITY)), 0x7f80);
  EXPECT_TRUE(std::isnan(wide(bf(NAN))));
  EXPECT_TRUE(std::isnan(extend(half(NAN))));
}

} // namespace
