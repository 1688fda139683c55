//===- GatedGemmTest.cpp - Products of which one gates the other ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TileNumbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

using namespace tile_tests;

namespace {

constexpr int32_t kEmulated = DIFFATTN_GEMM_EMULATED_TILES,
                  kNative = DIFFATTN_GEMM_BF16_TILES;
constexpr int32_t kAllRoundings = 31;

float fromBf16(uint16_t bits) { return fromBits(uint32_t(bits) << 16); }
float rounded(float f) { return std::isnan(f) ? f : fromBf16(toBFloat(f)); }

/// e^x by the steps that the compiler emits, one scalar operation each.
float exponential(float x) {
  if (std::isnan(x))
    return x;
  x = std::min(std::max(x, -104.0f), 89.0f);
  const float scaled = x * 1.44269504088896340736f;
  const float n = std::nearbyint(scaled);
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 0x1.9f0810p-13f;
  for (float c : {0x1.6d8db0p-10f, 0x1.111272p-7f, 0x1.55548ep-5f,
                  0x1.555554p-3f, 0x1.000000p-1f})
    p = std::fma(p, r, c);
  const float square = r * r;
  p = std::fma(p, square, r) + 1.0f;
  const int whole = static_cast<int>(n), half = whole >> 1;
  return std::ldexp(std::ldexp(p, half), whole - half);
}

/// silu(g) * u, one scalar operation after the other.
float gated(float g, float u, int32_t rounding) {
  auto round = [&](int32_t step, float x) {
    return rounding & step ? rounded(x) : x;
  };
  g = round(DIFFATTN_ROUND_SUMS, g);
  u = round(DIFFATTN_ROUND_SUMS, u);
  const float e = round(DIFFATTN_ROUND_EXPONENTIAL, exponential(-g));
  const float sum = round(DIFFATTN_ROUND_DENOMINATOR, e + 1.0f);
  const float sigmoid = round(DIFFATTN_ROUND_SIGMOID, 1.0f / sum);
  const float silu = round(DIFFATTN_ROUND_SILU, g * sigmoid);
  return silu * u;
}

/// Equal bits, or both NaN.
bool isSame(float x, float y) {
  return toBits(x) == toBits(y) || (std::isnan(x) && std::isnan(y));
}

struct Gates {
  int64_t M, N, K;
  bool transB;
  std::vector<uint16_t> A, gate, up;

  Gates(int64_t M, int64_t N, int64_t K, bool transB)
      : M(M), N(N), K(K), transB(transB), A(M * K), gate(N * K), up(N * K) {}
  /// Normally distributed sums, some of them large.
  static Gates random(int64_t M, int64_t N, int64_t K, bool transB) {
    Gates x(M, N, K, transB);
    std::mt19937 random(static_cast<unsigned>(M * 7 + N * 3 + K));
    std::normal_distribution<float> normal;
    const auto deviation = static_cast<float>(8 / std::sqrt(K));
    for (auto *numbers : {&x.A, &x.gate, &x.up})
      for (uint16_t &number : *numbers)
        number = toBFloat(normal(random) * (numbers == &x.A ? 1 : deviation));
    return x;
  }
  int64_t ldb() const { return transB ? K : N; }
  int32_t flags(int32_t unit) const {
    return unit | (transB ? DIFFATTN_GEMM_TRANSPOSE_B : 0);
  }
  void run(int32_t unit, int32_t rounding, int32_t dtC, void *C, int64_t ldc,
           int64_t first, int64_t rows, int64_t threads = 1,
           diffattn_weight *gateWeight = nullptr,
           diffattn_weight *upWeight = nullptr) const {
    diffattn_rt_gated_gemm(dtC, rows, N, K, A.data() + first * K, K,
                           gate.data(), ldb(), up.data(), ldb(), flags(unit),
                           rounding, C, ldc, gateWeight, upWeight, threads);
  }
  std::vector<float> run(int32_t unit, int32_t rounding) const {
    std::vector<float> C(M * N, NAN);
    run(unit, rounding, DIFFATTN_F32, C.data(), N, 0, M);
    return C;
  }
  /// A times one of the weights alone.
  std::vector<float> sums(const std::vector<uint16_t> &weight) const {
    std::vector<float> C(M * N, NAN);
    diffattn_rt_gemm(DIFFATTN_BF16, DIFFATTN_BF16, DIFFATTN_F32, M, N, K,
                     A.data(), K, weight.data(), ldb(),
                     flags(kEmulated | DIFFATTN_GEMM_IN_ORDER), C.data(), N,
                     0.0f, nullptr, 1);
    return C;
  }
};

class GatedGemm : public testing::TestWithParam<bool> {
protected:
  void SetUp() override {
    if (!hasEmulation())
      GTEST_SKIP() << "this CPU has no AVX2, which the emulation needs";
    fillWorkspace();
  }
};

INSTANTIATE_TEST_SUITE_P(TransB, GatedGemm, testing::Bool());

TEST_P(GatedGemm, IsTwoProductsAndAChainOfScalars) {
  for (int64_t K : {1, 33, 1100})
    for (int64_t N : {1, 37}) {
      const Gates x = Gates::random(35, N, K, GetParam());
      const auto g = x.sums(x.gate), u = x.sums(x.up);
      for (int32_t rounding = 0; rounding <= kAllRoundings; ++rounding) {
        const auto C = x.run(kEmulated, rounding);
        for (size_t i = 0; i < C.size(); ++i)
          ASSERT_TRUE(isSame(C[i], gated(g[i], u[i], rounding)))
              << "K " << K << ", N " << N << ", rounding " << rounding
              << ", of " << g[i] << " and " << u[i] << ": " << C[i];
      }
    }
}

/// Every number of bf16 as g, numbers of many digits, and large ones. Gates'
/// weights make infinities of numbers by which other weights stay finite.
TEST_P(GatedGemm, EveryGate) {
  const std::vector<float> factors = {1.0f,     -1.0f, 0x1p100f, -0x1p100f,
                                      0x1p-40f, 3.0f,  0.0f};
  const auto count = static_cast<int64_t>(factors.size());
  Gates x(1 << 16, count * 2, 1, GetParam());
  for (size_t i = 0; i < x.A.size(); ++i)
    x.A[i] = static_cast<uint16_t>(i);
  for (int64_t j = 0; j < x.N; ++j) {
    x.gate[j] = toBFloat(factors[j % count]);
    x.up[j] = toBFloat(j < count ? -0x1p-60f : 1.5f);
  }
  const auto g = x.sums(x.gate), u = x.sums(x.up);
  for (int32_t rounding : {0, 1, 17, 31}) {
    const auto C = x.run(kEmulated, rounding);
    for (size_t i = 0; i < C.size(); ++i)
      ASSERT_TRUE(isSame(C[i], gated(g[i], u[i], rounding)))
          << "rounding " << rounding << ", of " << g[i] << " and " << u[i]
          << ": " << C[i];
  }
}

/// f32 numbers come as three bf16 whose sum they are; a third of them lies
/// where the power of two in the exponential changes. Judged by f64 too.
TEST_P(GatedGemm, GatesOfManyDigits) {
  Gates x(1 << 16, 1, 4, GetParam());
  std::mt19937 random(1);
  std::uniform_real_distribution<float> near(-16, 16), far(-110, 110);
  for (int64_t i = 0; i < x.M; ++i) {
    float rest = i % 2 ? near(random) : far(random);
    if (i % 3 == 0) {
      const auto half = static_cast<int64_t>(random() % 101) * 2 - 101;
      const float edge = static_cast<float>(half) / 2 * 0.6931472f;
      rest = fromBits(toBits(edge) + random() % 9 - 4);
    }
    for (int part = 0; part < 3; ++part) {
      const float head = fromBits(toBits(rest) & 0xffff0000u);
      x.A[i * 4 + part] = toBFloat(head);
      rest -= head;
    }
    x.A[i * 4 + 3] = toBFloat(1.0f);
  }
  x.gate = {0x3f80, 0x3f80, 0x3f80, 0};
  x.up = {0, 0, 0, 0x3f80};
  const auto g = x.sums(x.gate);
  const auto C = x.run(kEmulated, 0), steps = x.run(kEmulated, kAllRoundings);
  for (size_t i = 0; i < C.size(); ++i) {
    ASSERT_TRUE(isSame(C[i], gated(g[i], 1.0f, 0))) << g[i];
    ASSERT_TRUE(isSame(steps[i], gated(g[i], 1.0f, kAllRoundings))) << g[i];
    // Beyond, the exponential is cut off, and the result with it.
    if (g[i] < -87.0f)
      continue;
    const double exact = g[i] / (1.0 + std::exp(-double(g[i])));
    ASSERT_NEAR(C[i], exact, std::fabs(exact) * 0x1p-21) << g[i];
  }
}

TEST_P(GatedGemm, IsRoundedOnceToItsType) {
  const Gates x = Gates::random(33, 40, 70, GetParam());
  const auto C = x.run(kEmulated, 0);
  std::vector<uint16_t> brief(C.size());
  std::vector<_Float16> half(C.size());
  x.run(kEmulated, 0, DIFFATTN_BF16, brief.data(), x.N, 0, x.M);
  x.run(kEmulated, 0, DIFFATTN_F16, half.data(), x.N, 0, x.M);
  for (size_t i = 0; i < C.size(); ++i) {
    ASSERT_EQ(brief[i], toBFloat(C[i]));
    ASSERT_EQ(half[i], static_cast<_Float16>(C[i]));
  }
}

TEST_P(GatedGemm, ARowIsTheSameAnywhere) {
  for (int64_t N : {1, 70})
    for (int64_t K : {47, 1060}) {
      const Gates x = Gates::random(300, N, K, GetParam());
      const auto all = x.run(kEmulated, 17);
      diffattn_weight gate{const_cast<uint16_t *>(x.gate.data()),
                           nullptr,
                           N,
                           K,
                           DIFFATTN_BF16,
                           0},
          up{const_cast<uint16_t *>(x.up.data()),
             nullptr,
             N,
             K,
             DIFFATTN_BF16,
             0};
      using Weights = std::pair<diffattn_weight *, diffattn_weight *>;
      for (int64_t first : {0, 5})
        for (int64_t M : {1, 2, 16, 17, 33, 257})
          for (int64_t threads : {1, 2})
            for (auto [g, u] :
                 {Weights(nullptr, nullptr), Weights(&gate, &up),
                  Weights(&gate, nullptr), Weights(nullptr, &up)}) {
              std::vector<float> part(M * N);
              x.run(kEmulated, 17, DIFFATTN_F32, part.data(), N, first, M,
                    threads, g, u);
              ASSERT_EQ(memcmp(part.data(), &all[first * N],
                               part.size() * sizeof(float)),
                        0)
                  << "N " << N << ", K " << K << ", " << M << " rows from "
                  << first << ", " << threads << " threads";
            }
      for (diffattn_weight *weight : {&gate, &up}) {
        EXPECT_NE(weight->packed, nullptr);
        diffattn_rt_weight_release(weight);
      }
    }
}

// The panels are those of a product with the weight alone.
TEST_P(GatedGemm, AWeightIsPackedOnce) {
  const Gates x = Gates::random(40, 50, 70, GetParam());
  diffattn_weight gate{const_cast<uint16_t *>(x.gate.data()),
                       nullptr,
                       x.N,
                       x.K,
                       DIFFATTN_BF16,
                       0};
  diffattn_weight up = gate;
  up.data = const_cast<uint16_t *>(x.up.data());
  diffattn_rt_counters_reset();
  std::vector<float> C(x.M * x.N), sums(x.M * x.N);
  for (int64_t M : {1, 9, 40})
    x.run(kEmulated, 0, DIFFATTN_F32, C.data(), x.N, 0, M, 1, &gate, &up);
  diffattn_rt_gemm(DIFFATTN_BF16, DIFFATTN_BF16, DIFFATTN_F32, x.M, x.N, x.K,
                   x.A.data(), x.K, x.up.data(), x.ldb(),
                   x.flags(kEmulated | DIFFATTN_GEMM_IN_ORDER), sums.data(),
                   x.N, 0.0f, &up, 1);
  diffattn_counters count;
  diffattn_rt_counters(&count);
  EXPECT_EQ(count.packs, 2);
  EXPECT_EQ(C, x.run(kEmulated, 0));
  EXPECT_EQ(sums, x.sums(x.up));
  diffattn_rt_weight_release(&gate);
  diffattn_rt_weight_release(&up);
}

TEST_P(GatedGemm, NothingElseIsReadOrWritten) {
  const int64_t M = 33, N = 45, K = 50, ldc = 50;
  Gates x = Gates::random(M, N, K, GetParam());
  x.A[3 * K + 7] = 0x7fc0; // NaN, in one row alone
  x.up[0] = 0x7fc0;        // and in column 0 alone
  const auto want = x.run(kEmulated, 1);
  const Guarded<uint16_t> A(x.A), gate(x.gate), up(x.up);
  std::vector<float> C((M + 1) * ldc, 5.0f);
  diffattn_rt_gated_gemm(DIFFATTN_F32, M, N, K, A.data(), K, gate.data(),
                         x.ldb(), up.data(), x.ldb(), x.flags(kEmulated), 1,
                         C.data(), ldc, nullptr, nullptr, 1);
  for (int64_t m = 0; m <= M; ++m)
    for (int64_t n = 0; n < ldc; ++n) {
      const float c = C[m * ldc + n];
      if (m == M || n >= N) {
        EXPECT_EQ(c, 5.0f) << m << ", " << n;
        continue;
      }
      EXPECT_TRUE(isSame(c, want[m * N + n])) << m << ", " << n;
      EXPECT_EQ(std::isfinite(c), m != 3 && n != 0) << m << ", " << n;
    }
}

TEST_P(GatedGemm, SizesOfNothing) {
  const Gates x = Gates::random(3, 4, 2, GetParam());
  std::vector<float> C(3 * 5, 7.0f), want = C;
  for (auto [M, N] : {std::pair(0, 4), std::pair(3, 0)})
    diffattn_rt_gated_gemm(DIFFATTN_F32, M, N, 2, x.A.data(), 2, x.gate.data(),
                           x.ldb(), x.up.data(), x.ldb(), x.flags(kEmulated), 0,
                           C.data(), 5, nullptr, nullptr, 1);
  EXPECT_EQ(C, want);
  diffattn_rt_gated_gemm(DIFFATTN_F32, 3, 4, 0, x.A.data(), 2, x.gate.data(),
                         x.ldb(), x.up.data(), x.ldb(), x.flags(kEmulated), 0,
                         C.data(), 5, nullptr, nullptr, 1);
  for (int64_t i = 0; i < 15; ++i)
    EXPECT_EQ(C[i], i % 5 < 4 ? 0.0f : 7.0f);
}

TEST_P(GatedGemm, WhatCannotBeIsRefused) {
  struct Call {
    int32_t dtC, flags, rounding;
  };
  for (Call call :
       {Call{DIFFATTN_F64, kEmulated, 0}, Call{DIFFATTN_F32, kEmulated, 32},
        Call{DIFFATTN_F32, kEmulated, -1}, Call{DIFFATTN_F32, 0, 0},
        Call{-1, kEmulated, 0}}) {
    const int32_t failed = diffattn_rt_call(
        [](void *given) {
          const auto *call = static_cast<Call *>(given);
          double C[4];
          const uint16_t A[4] = {};
          diffattn_rt_gated_gemm(call->dtC, 1, 1, 1, A, 1, A, 1, A, 1,
                                 call->flags, call->rounding, C, 1, nullptr,
                                 nullptr, 1);
        },
        &call);
    EXPECT_EQ(failed, 1) << call.dtC << ", " << call.flags << ", "
                         << call.rounding;
    EXPECT_NE(std::string(diffattn_rt_error()).find("expected"),
              std::string::npos);
  }
}

TEST(NativeGatedGemm, IsWhatIsEmulated) {
  if (!hasAmx())
    GTEST_SKIP() << "not compared: this machine has no AMX";
  for (bool transB : {false, true})
    for (int64_t M : {1, 17, 48, 300})
      for (int64_t K : {1, 64, 1100})
        for (int32_t rounding : {0, 17, 31}) {
          const Gates x = Gates::random(M, 70, K, transB);
          const auto native = x.run(kNative, rounding),
                     emulated = x.run(kEmulated, rounding);
          ASSERT_TRUE(std::equal(native.begin(), native.end(), emulated.begin(),
                                 isSame))
              << "M " << M << ", K " << K << ", rounding " << rounding;
        }
}

} // namespace
