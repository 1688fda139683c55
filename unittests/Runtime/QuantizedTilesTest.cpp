//===- QuantizedTilesTest.cpp - Quantized weights by AMX's tiles ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TileNumbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <random>

using namespace tile_tests;

namespace {

constexpr int32_t kEmulated = DIFFATTN_GEMM_EMULATED_TILES,
                  kNative = DIFFATTN_GEMM_BF16_TILES;

/// A number of `dtype` that is near `value`, as f32.
float roundTo(int32_t dtype, float value) {
  if (dtype == DIFFATTN_F16)
    return static_cast<_Float16>(value);
  return dtype == DIFFATTN_BF16 ? fromBits(uint32_t(toBFloat(value)) << 16)
                                : value;
}

/// Numbers of an array of `dtype`, side by side.
std::vector<char> stored(int32_t dtype, const std::vector<float> &numbers) {
  std::vector<char> bytes;
  auto append = [&](auto number) {
    auto *from = reinterpret_cast<const char *>(&number);
    bytes.insert(bytes.end(), from, from + sizeof number);
  };
  for (float number : numbers)
    if (dtype == DIFFATTN_F16)
      append(static_cast<_Float16>(number));
    else if (dtype == DIFFATTN_BF16)
      append(toBFloat(number));
    else
      append(number);
  return bytes;
}

struct Weight {
  int64_t N, K, group, bits;
  std::vector<int> integers;
  std::vector<int8_t> bytes;
  std::vector<float> scales;

  Weight(int64_t N, int64_t K, int64_t group, int64_t bits)
      : N(N), K(K), group(group), bits(bits) {
    std::mt19937 random(static_cast<unsigned>(N * 7 + K * 3 + bits));
    const int most = bits == 8 ? 127 : 7;
    std::uniform_int_distribution<int> integer(-most - 1, most);
    std::uniform_real_distribution<float> scale(0.5f, 2.0f);
    for (int64_t i = 0; i < N * K; ++i)
      integers.push_back(integer(random));
    for (int64_t i = 0; i < N * K / group; ++i)
      scales.push_back(scale(random));
    pack();
  }
  void pack() {
    bytes.clear();
    const int64_t each = 8 / bits;
    for (int64_t i = 0; i < N * K; i += each)
      bytes.push_back(static_cast<int8_t>(
          each == 1 ? integers[i] : (integers[i] & 15) | integers[i + 1] * 16));
  }
  int integer(int64_t n, int64_t k) const { return integers[n * K + k]; }
  float scale(int64_t n, int64_t k) const {
    return scales[n * (K / group) + k / group];
  }
};

/// M rows of K numbers of `dtype`.
struct Rows {
  int64_t M, K;
  int32_t dtype;
  std::vector<float> numbers;

  /// Normally distributed numbers times 2^scale.
  Rows(int64_t M, int64_t K, int32_t dtype, int scale = 0)
      : M(M), K(K), dtype(dtype) {
    std::mt19937 random(static_cast<unsigned>(M + K));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < M * K; ++i)
      numbers.push_back(roundTo(dtype, std::ldexp(normal(random), scale)));
  }
  float at(int64_t m, int64_t k) const { return numbers[m * K + k]; }

  std::vector<float> multiply(const Weight &w, int32_t flags, int64_t first,
                              int64_t rows, int64_t threads = 1) const {
    std::vector<float> C(rows * w.N, NAN);
    const std::vector<char> A = stored(dtype, numbers);
    diffattn_rt_quantized_gemm(
        dtype, DIFFATTN_F32, static_cast<int32_t>(w.bits), w.group, rows, w.N,
        K, A.data() + first * static_cast<int64_t>(A.size()) / M, K,
        w.bytes.data(), w.scales.data(), flags, C.data(), w.N, 0.0f, threads);
    return C;
  }
  std::vector<float> multiply(const Weight &w, int32_t flags) const {
    return multiply(w, flags, 0, M);
  }

  /// The documented sum of the tiles: of up to 256 numbers of a group, 32 at a
  /// time, first with the highest 8 digits of each number of A, then with the
  /// next ones; then times the scale.
  float chain(const Weight &w, int64_t m, int64_t n) const {
    const int parts = dtype == DIFFATTN_F32 ? 3 : dtype == DIFFATTN_F16 ? 2 : 1;
    float total = 0;
    for (int64_t group = 0; group < K; group += w.group)
      for (int64_t run = group; run < group + w.group; run += 256) {
        const int64_t end = std::min(run + 256, group + w.group);
        float sum = 0;
        for (int64_t k0 = run; k0 < end; k0 += 32)
          for (int part = 0; part < parts; ++part) {
            float sums[2] = {0, 0};
            for (int64_t k = k0; k < std::min(end, k0 + 32); ++k) {
              float head = 0, rest = at(m, k);
              for (int i = 0; i <= part; ++i, rest -= head)
                head = fromBits(toBits(rest) & 0xffff0000u);
              float &to = sums[(k - k0) % 2];
              to = flush(std::fma(flush(head), float(w.integer(n, k)), to));
            }
            sum = flush(flush(sum) + flush(sums[0] + sums[1]));
          }
        total = std::fma(sum, w.scale(n, run), total);
      }
    return total;
  }
};

bool sameBits(const float *x, const float *y, int64_t count) {
  return memcmp(x, y, count * sizeof(float)) == 0;
}

/// Parameters: the type of A and the bits of an integer.
class QuantizedTiles
    : public testing::TestWithParam<std::tuple<int32_t, int64_t>> {
protected:
  void SetUp() override {
    if (!hasEmulation())
      GTEST_SKIP() << "this CPU has no AVX2, which the emulation needs";
    fillWorkspace();
  }
  const int32_t dtype = std::get<0>(GetParam());
  const int64_t bits = std::get<1>(GetParam());
};

INSTANTIATE_TEST_SUITE_P(
    All, QuantizedTiles,
    testing::Combine(testing::Values(DIFFATTN_F32, DIFFATTN_F16, DIFFATTN_BF16),
                     testing::Values(4, 8)));

// Groups of less than a step of tiles, that end within one, of a whole row, and
// of more than is summed at once; also where numbers are subnormal.
TEST_P(QuantizedTiles, IsTheChainOfTheInstruction) {
  for (int scale : {0, -118, -126, 100})
    for (auto [group, groups] :
         {std::pair{8, 3}, {24, 5}, {32, 40}, {104, 1}, {128, 3}, {528, 2}}) {
      if (dtype == DIFFATTN_F16 && scale)
        continue;
      const Weight w(37, group * groups, group, bits);
      const Rows x(19, w.K, dtype, scale);
      const auto C = x.multiply(w, kEmulated);
      for (int64_t m = 0; m < x.M; ++m)
        for (int64_t n = 0; n < w.N; ++n)
          ASSERT_EQ(toBits(C[m * w.N + n]), toBits(x.chain(w, m, n)))
              << "scale " << scale << ", group " << group << ", at " << m
              << ", " << n;
    }
}

// Neither A nor the weight is rounded to bf16, which would cost 2^-9.
TEST_P(QuantizedTiles, LosesNoDigits) {
  const Weight w(33, 512, 64, bits);
  const Rows x(20, w.K, dtype);
  const auto C = x.multiply(w, kEmulated);
  for (int64_t m = 0; m < x.M; ++m)
    for (int64_t n = 0; n < w.N; ++n) {
      double exact = 0, magnitude = 0;
      for (int64_t k = 0; k < w.K; ++k) {
        const double term =
            double(x.at(m, k)) * w.integer(n, k) * w.scale(n, k);
        exact += term;
        magnitude += std::abs(term);
      }
      ASSERT_LE(std::abs(C[m * w.N + n] - exact), 3e-7 * magnitude)
          << m << ", " << n;
    }
}

// Also with more rows and columns than one work item has.
TEST_P(QuantizedTiles, ARowIsTheSameAnywhere) {
  for (auto [N, K, group] :
       {std::tuple{1, 40, 8}, {70, 288, 288}, {290, 48, 24}}) {
    const Weight w(N, K, group, bits);
    const Rows x(530, K, dtype);
    const auto all = x.multiply(w, kEmulated);
    for (int64_t first : {0, 5})
      for (int64_t M : {1, 2, 16, 17, 33, 514})
        for (int64_t threads : {1, 2}) {
          const auto part = x.multiply(w, kEmulated, first, M, threads);
          ASSERT_TRUE(sameBits(part.data(), &all[first * N], M * N))
              << "N " << N << ", K " << K << ", " << M << " rows from " << first
              << ", " << threads << " threads";
        }
  }
}

// Where columns end within a tile, where groups end within a step, and both.
TEST_P(QuantizedTiles, NothingElseIsReadOrWritten) {
  const int64_t M = 35, ldc = 50;
  const float most = dtype == DIFFATTN_F32   ? FLT_MAX
                     : dtype == DIFFATTN_F16 ? 65504.0f
                                             : fromBits(0x7f7f0000);
  for (auto [N, K, group] :
       {std::tuple{45, 72, 24}, {45, 64, 32}, {48, 72, 24}}) {
    Weight w(N, K, group, bits);
    Rows x(M, w.K, dtype);
    // In f32, only digits that bf16 lacks tell this NaN from infinity.
    x.numbers[3 * w.K + 7] =
        fromBits(dtype == DIFFATTN_F32 ? 0x7f800001 : 0x7fc00000);
    x.numbers[4 * w.K + 9] = INFINITY;
    for (int64_t k = 0; k < w.K; ++k)
      x.numbers[5 * w.K + k] = k ? 0.0f : most;
    for (int64_t n = 0; n < w.N; ++n)
      w.integers[n * w.K] = n % 2 ? 1 : -1;
    w.pack();
    std::fill(w.scales.begin(), w.scales.end(), 1.0f);
    w.scales[0] = INFINITY; // of column 0 alone
    const Guarded<char> A(stored(dtype, x.numbers));
    const Guarded<int8_t> B(w.bytes);
    const Guarded<float> scales(w.scales);
    std::vector<float> C((M + 1) * ldc, 5.0f);
    diffattn_rt_quantized_gemm(dtype, DIFFATTN_F32, static_cast<int32_t>(bits),
                               w.group, M, w.N, w.K, A.data(), w.K, B.data(),
                               scales.data(), kEmulated, C.data(), ldc, 0.0f,
                               1);
    for (int64_t m = 0; m <= M; ++m)
      for (int64_t n = 0; n < ldc; ++n) {
        const float c = C[m * ldc + n];
        if (m == M || n >= w.N)
          EXPECT_EQ(c, 5.0f) << m << ", " << n;
        else
          EXPECT_EQ(std::isfinite(c), m != 3 && m != 4 && n != 0)
              << m << ", " << n;
      }
    for (int64_t n = 1; n < w.N; ++n) {
      EXPECT_TRUE(std::isnan(C[3 * ldc + n])) << n;
      EXPECT_EQ(std::isnan(C[4 * ldc + n]), w.integer(n, 9) == 0) << n;
      EXPECT_EQ(C[5 * ldc + n], n % 2 ? most : -most) << n;
    }
  }
}

TEST_P(QuantizedTiles, AddsToCAndRoundsOnce) {
  const Weight w(40, 64, 16, bits);
  const Rows x(18, w.K, dtype);
  const auto A = stored(dtype, x.numbers);
  const auto product = x.multiply(w, kEmulated);
  auto run = [&](int32_t dtC, void *C, float beta) {
    diffattn_rt_quantized_gemm(dtype, dtC, static_cast<int32_t>(bits), w.group,
                               x.M, w.N, w.K, A.data(), w.K, w.bytes.data(),
                               w.scales.data(), kEmulated, C, w.N, beta, 1);
  };
  std::vector<float> sums(product.size(), 3.0f);
  std::vector<uint16_t> rounded(product.size());
  std::vector<_Float16> halves(product.size());
  run(DIFFATTN_F32, sums.data(), 1.0f);
  run(DIFFATTN_BF16, rounded.data(), 0.0f);
  run(DIFFATTN_F16, halves.data(), 0.0f);
  for (size_t i = 0; i < product.size(); ++i) {
    EXPECT_EQ(sums[i], product[i] + 3.0f);
    EXPECT_EQ(rounded[i], toBFloat(product[i]));
    EXPECT_EQ(halves[i], static_cast<_Float16>(product[i]));
  }
}

TEST(QuantizedTilesCall, RefusesWhatItCannotDo) {
  struct Call {
    int32_t dtype, bits;
    int64_t group, K;
    int32_t flags;
  };
  auto messageOf = [](Call call) -> std::string {
    auto run = [](void *arg) {
      auto *call = static_cast<Call *>(arg);
      std::vector<char> none(1 << 12);
      diffattn_rt_quantized_gemm(call->dtype, DIFFATTN_F32, call->bits,
                                 call->group, 1, 1, call->K, none.data(), 64,
                                 none.data(), none.data(), call->flags,
                                 none.data(), 1, 0.0f, 1);
    };
    return diffattn_rt_call(run, &call) ? diffattn_rt_error() : "";
  };
  for (Call call : {Call{DIFFATTN_F64, 8, 8, 64, kEmulated},
                    {DIFFATTN_F32, 5, 8, 64, kEmulated},
                    {DIFFATTN_F32, 8, 0, 64, kEmulated},
                    {DIFFATTN_F32, 8, 12, 60, kEmulated},
                    {DIFFATTN_F32, 8, 24, 64, kEmulated},
                    {DIFFATTN_F32, 8, 8, 0, kEmulated}})
    EXPECT_EQ(
        messageOf(call).find("expected f32, f16 or bf16, integers of 4 or "
                             "8 bits, and groups"),
        0u);
  EXPECT_EQ(messageOf({DIFFATTN_F32, 8, 8, 64, 0})
                .find("expected a CPU with AMX's tiles"),
            0u);
}

TEST_P(QuantizedTiles, NativeIsWhatIsEmulated) {
  if (!hasAmx())
    GTEST_SKIP() << "not compared: this machine has no AMX";
  for (int scale : {0, -118, -126, 100})
    for (int64_t M : {1, 15, 16, 17, 48, 530})
      for (int64_t group : {8, 40, 120, 360}) {
        const Weight w(70, 360, group, bits);
        const Rows x(M, w.K, dtype, scale);
        const auto native = x.multiply(w, kNative),
                   emulated = x.multiply(w, kEmulated);
        ASSERT_TRUE(sameBits(native.data(), emulated.data(), M * w.N))
            << "scale " << scale << ", M " << M << ", group " << group;
      }
}

} // namespace
