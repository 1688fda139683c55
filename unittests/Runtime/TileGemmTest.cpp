//===- TileGemmTest.cpp - Products by AMX's tiles, and emulated ones ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TileNumbers.h"

#include <gtest/gtest.h>

#include <random>

using namespace tile_tests;

namespace {

constexpr int32_t kInOrder = DIFFATTN_GEMM_IN_ORDER,
                  kEmulated = kInOrder | DIFFATTN_GEMM_EMULATED_TILES,
                  kNative = kInOrder | DIFFATTN_GEMM_BF16_TILES;

/// C[M,N] = A[M,K] * op(B) of bf16, with C of f32.
struct Operands {
  int64_t M, N, K;
  bool transB;
  std::vector<uint16_t> A, B;

  /// Normally distributed numbers times 2^scale.
  Operands(int64_t M, int64_t N, int64_t K, bool transB, int scale = 0)
      : M(M), N(N), K(K), transB(transB), A(M * K), B(N * K) {
    std::mt19937 random(static_cast<unsigned>(M * 7 + N * 3 + K));
    std::normal_distribution<float> normal;
    for (auto *numbers : {&A, &B})
      for (uint16_t &number : *numbers)
        number = toBFloat(std::ldexp(normal(random), scale));
  }
  float a(int64_t m, int64_t k) const {
    return fromBits(uint32_t(A[m * K + k]) << 16);
  }
  float b(int64_t k, int64_t n) const {
    return fromBits(uint32_t(transB ? B[n * K + k] : B[k * N + n]) << 16);
  }
  std::vector<float> multiply(int32_t flags, int64_t first, int64_t rows,
                              int64_t threads = 1,
                              diffattn_weight *weight = nullptr, float beta = 0,
                              float initial = NAN) const {
    std::vector<float> C(rows * N, initial);
    diffattn_rt_gemm(DIFFATTN_BF16, DIFFATTN_BF16, DIFFATTN_F32, rows, N, K,
                     &A[first * K], K, B.data(), transB ? K : N,
                     flags | (transB ? DIFFATTN_GEMM_TRANSPOSE_B : 0), C.data(),
                     N, beta, weight, threads);
    return C;
  }
  std::vector<float> multiply(int32_t flags) const {
    return multiply(flags, 0, M);
  }
  /// The documented result of TDPBF16PS, 32 elements of k at a time.
  float chain(int64_t m, int64_t n) const {
    float sum = 0;
    for (int64_t k0 = 0; k0 < K; k0 += 32) {
      float parts[2] = {0, 0};
      for (int64_t k = k0; k < std::min(K, k0 + 32); ++k)
        parts[k % 2] =
            flush(std::fma(flush(a(m, k)), flush(b(k, n)), parts[k % 2]));
      sum = flush(flush(sum) + flush(parts[0] + parts[1]));
    }
    return sum;
  }
};

bool equalBits(const std::vector<float> &x, const std::vector<float> &y) {
  return x.size() == y.size() &&
         memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

class TileGemm : public testing::TestWithParam<bool> {
protected:
  void SetUp() override {
    if (!hasEmulation())
      GTEST_SKIP() << "this CPU has no AVX2, which the emulation needs";
    fillWorkspace();
  }
};

INSTANTIATE_TEST_SUITE_P(TransB, TileGemm, testing::Bool());

// Also where numbers, or products of them, are subnormal.
TEST_P(TileGemm, IsTheChainOfTheInstruction) {
  for (int scale : {0, -60, -70, -125, 60})
    for (int64_t K : {1, 2, 31, 32, 33, 95, 1100}) {
      const Operands x(19, 37, K, GetParam(), scale);
      const auto C = x.multiply(kEmulated);
      for (int64_t m = 0; m < x.M; ++m)
        for (int64_t n = 0; n < x.N; ++n)
          ASSERT_EQ(toBits(C[m * x.N + n]), toBits(x.chain(m, n)))
              << "scale " << scale << ", K " << K << ", at " << m << ", " << n;
    }
}

TEST_P(TileGemm, ARowIsTheSameAnywhere) {
  for (int64_t N : {1, 70})
    for (int64_t K : {30, 47, 1060}) {
      const Operands x(300, N, K, GetParam());
      const auto all = x.multiply(kEmulated);
      diffattn_weight w{
          const_cast<uint16_t *>(x.B.data()), nullptr, N, K, DIFFATTN_BF16, 0};
      for (int64_t first : {0, 5})
        for (int64_t M : {1, 2, 15, 16, 17, 33, 257})
          for (int64_t threads : {1, 2})
            for (diffattn_weight *weight : {&w, (diffattn_weight *)nullptr}) {
              const auto part =
                  x.multiply(kEmulated, first, M, threads, weight);
              ASSERT_EQ(memcmp(part.data(), &all[first * N],
                               part.size() * sizeof(float)),
                        0)
                  << "N " << N << ", K " << K << ", " << M << " rows from "
                  << first << ", " << threads << " threads";
            }
      EXPECT_NE(w.packed, nullptr);
      diffattn_rt_weight_release(&w);
    }
}

TEST_P(TileGemm, AWeightIsPackedOnce) {
  const Operands x(40, 50, 70, GetParam());
  diffattn_weight w{
      const_cast<uint16_t *>(x.B.data()), nullptr, x.N, x.K, DIFFATTN_BF16, 0};
  diffattn_rt_counters_reset();
  for (int64_t M : {1, 9, 40})
    x.multiply(kEmulated, 0, M, 1, &w);
  diffattn_counters count;
  diffattn_rt_counters(&count);
  EXPECT_EQ(count.packs, 1);
  // Others find a layout there that is not theirs, and read the weight itself.
  EXPECT_TRUE(equalBits(x.multiply(kInOrder, 0, 40, 1, &w),
                        x.multiply(kInOrder, 0, 40)));
  diffattn_rt_weight_release(&w);
  w.flags = DIFFATTN_WEIGHT_NO_PACK;
  EXPECT_TRUE(equalBits(x.multiply(kEmulated, 0, 40, 1, &w),
                        x.multiply(kEmulated, 0, 40)));
  EXPECT_EQ(w.packed, nullptr);
}

// Rows and columns of tiles that the product does not have are computed too,
// and must not be seen.
TEST_P(TileGemm, NothingElseIsReadOrWritten) {
  const int64_t M = 33, N = 45, K = 50, ldc = 50;
  Operands x(M, N, K, GetParam());
  x.A[3 * K + 7] = 0x7fc0; // NaN, in one row alone
  x.B[0] = 0x7f80;         // infinity, in column 0 alone
  const Guarded<uint16_t> A(x.A), B(x.B);
  std::vector<float> C((M + 1) * ldc, 5.0f);
  diffattn_rt_gemm(DIFFATTN_BF16, DIFFATTN_BF16, DIFFATTN_F32, M, N, K,
                   A.data(), K, B.data(), GetParam() ? K : N,
                   kEmulated | (GetParam() ? DIFFATTN_GEMM_TRANSPOSE_B : 0),
                   C.data(), ldc, 0.0f, nullptr, 1);
  for (int64_t m = 0; m <= M; ++m)
    for (int64_t n = 0; n < ldc; ++n) {
      const float c = C[m * ldc + n];
      if (m == M || n >= N)
        EXPECT_EQ(c, 5.0f) << m << ", " << n;
      else
        EXPECT_EQ(std::isfinite(c), m != 3 && n != 0) << m << ", " << n;
    }
}

TEST_P(TileGemm, AddsToCAndRoundsOnce) {
  const Operands x(18, 40, 64, GetParam());
  const auto product = x.multiply(kEmulated);
  const auto sums = x.multiply(kEmulated, 0, 18, 1, nullptr, 1.0f, 3.0f);
  std::vector<uint16_t> rounded(product.size());
  diffattn_rt_gemm(DIFFATTN_BF16, DIFFATTN_BF16, DIFFATTN_BF16, x.M, x.N, x.K,
                   x.A.data(), x.K, x.B.data(), GetParam() ? x.K : x.N,
                   kEmulated | (GetParam() ? DIFFATTN_GEMM_TRANSPOSE_B : 0),
                   rounded.data(), x.N, 0.0f, nullptr, 1);
  for (size_t i = 0; i < product.size(); ++i) {
    EXPECT_EQ(sums[i], product[i] + 3.0f);
    EXPECT_EQ(rounded[i], toBFloat(product[i]));
  }
}

TEST_P(TileGemm, ManyProductsAtOnce) {
  const int64_t M = 5, N = 33, K = 40, batch = 3;
  const Operands x(M * batch, N, K, GetParam());
  const Operands y(M, N * batch, K, /*transB=*/true);
  std::vector<float> C(batch * M * N);
  // One B for all.
  diffattn_rt_batch_gemm(DIFFATTN_BF16, DIFFATTN_BF16, DIFFATTN_F32, M, N, K,
                         x.A.data(), K, x.B.data(), GetParam() ? K : N,
                         kEmulated |
                             (GetParam() ? DIFFATTN_GEMM_TRANSPOSE_B : 0),
                         C.data(), N, 0.0f, 2, batch, M * K, 0, M * N);
  EXPECT_TRUE(equalBits(C, x.multiply(kEmulated)));
  // One A, and parts of a B.
  diffattn_rt_batch_gemm(DIFFATTN_BF16, DIFFATTN_BF16, DIFFATTN_F32, M, N, K,
                         y.A.data(), K, y.B.data(), K,
                         kEmulated | DIFFATTN_GEMM_TRANSPOSE_B, C.data(), N,
                         0.0f, 2, batch, 0, N * K, M * N);
  const auto all = y.multiply(kEmulated);
  for (int64_t i = 0; i < batch; ++i)
    for (int64_t m = 0; m < M; ++m)
      for (int64_t n = 0; n < N; ++n)
        ASSERT_EQ(C[(i * M + m) * N + n], all[m * y.N + i * N + n]);
}

TEST_P(TileGemm, SizesOfNothing) {
  const Operands x(3, 4, 2, GetParam());
  std::vector<float> C(12, 7.0f);
  diffattn_rt_gemm(DIFFATTN_BF16, DIFFATTN_BF16, DIFFATTN_F32, 3, 4, 0,
                   x.A.data(), 2, x.B.data(), GetParam() ? 2 : 4, kEmulated,
                   C.data(), 4, 0.0f, nullptr, 1);
  EXPECT_EQ(C, std::vector<float>(12, 0.0f));
}

TEST(NativeTileGemm, IsWhatIsEmulated) {
  if (!hasAmx())
    GTEST_SKIP() << "not compared: this machine has no AMX";
  for (int scale : {0, -60, -70, -125, 60})
    for (bool transB : {false, true})
      for (int64_t M : {1, 15, 16, 17, 32, 48, 300})
        for (int64_t K : {1, 31, 64, 1100}) {
          const Operands x(M, 70, K, transB, scale);
          ASSERT_TRUE(equalBits(x.multiply(kNative), x.multiply(kEmulated)))
              << "scale " << scale << ", M " << M << ", K " << K;
        }
}

} // namespace
