//===- GemmTest.cpp - Matrix products against a plain loop ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "gtest/gtest.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

/// A matrix of any type with row padding; small integers over 4, so that sums
/// are exact in f32 and a wrong index cannot hide in a tolerance.
struct Matrix {
  int32_t dtype;
  int64_t rows, cols, ld;
  std::vector<char> bytes;

  Matrix(int32_t dtype, int64_t rows, int64_t cols, unsigned seed,
         int64_t pad = 3)
      : dtype(dtype), rows(rows), cols(cols), ld(cols + pad),
        bytes((rows * ld + 1) * size(), char(0x7f)) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        set(i, j, (int(random() % 17) - 8) / 4.0);
  }
  int64_t size() const {
    return dtype == DIFFATTN_F64 ? 8 : dtype == DIFFATTN_F32 ? 4 : 2;
  }
  char *at(int64_t i, int64_t j) { return &bytes[(i * ld + j) * size()]; }
  void set(int64_t i, int64_t j, double x) {
    float f = float(x);
    uint32_t u;
    memcpy(&u, &f, 4);
    uint16_t b = u >> 16;
    _Float16 h = _Float16(f);
    switch (dtype) {
    case DIFFATTN_F64:
      memcpy(at(i, j), &x, 8);
      break;
    case DIFFATTN_F32:
      memcpy(at(i, j), &f, 4);
      break;
    case DIFFATTN_F16:
      memcpy(at(i, j), &h, 2);
      break;
    default:
      memcpy(at(i, j), &b, 2);
    }
  }
  std::vector<double> values() {
    std::vector<double> all;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        all.push_back(get(i, j));
    return all;
  }
  double get(int64_t i, int64_t j) {
    double d;
    float f;
    _Float16 h;
    uint16_t b;
    switch (dtype) {
    case DIFFATTN_F64:
      memcpy(&d, at(i, j), 8);
      return d;
    case DIFFATTN_F32:
      memcpy(&f, at(i, j), 4);
      return f;
    case DIFFATTN_F16:
      memcpy(&h, at(i, j), 2);
      return double(h);
    default: {
      memcpy(&b, at(i, j), 2);
      uint32_t u = uint32_t(b) << 16;
      memcpy(&f, &u, 4);
      return f;
    }
    }
  }
};

struct Backend : testing::TestWithParam<int32_t> {
  void SetUp() override {
    ASSERT_EQ(diffattn_rt_set_gemm_backend(GetParam()), 0);
  }
  void TearDown() override { diffattn_rt_set_gemm_backend(DIFFATTN_GEMM_AUTO); }
};

void check(int32_t dtA, int32_t dtB, int32_t dtC, int64_t M, int64_t N,
           int64_t K, bool transB, float beta, bool asWeight,
           int64_t threads = 0) {
  SCOPED_TRACE(testing::Message()
               << "types " << dtA << dtB << dtC << " M " << M << " N " << N
               << " K " << K << " transB " << transB << " beta " << beta
               << " weight " << asWeight);
  Matrix a(dtA, M, K, 1), c(dtC, M, N, 3);
  Matrix b(dtB, transB ? N : K, transB ? K : N, 2, asWeight ? 0 : 5);
  Matrix before = c;
  std::vector<double> av = a.values(), bv = b.values(), cv = c.values();
  diffattn_weight w{b.bytes.data(), nullptr, b.rows, b.cols, dtB, 0};
  for (int repeat = 0; repeat < (asWeight ? 2 : 1); ++repeat) {
    c = before;
    diffattn_rt_gemm(dtA, dtB, dtC, M, N, K, a.bytes.data(), a.ld,
                     b.bytes.data(), b.ld, transB, c.bytes.data(), c.ld, beta,
                     asWeight ? &w : nullptr, threads);
    int mismatches = 0;
    for (int64_t i = 0; i < M && mismatches < 3; ++i) {
      for (int64_t j = 0; j < N && mismatches < 3; ++j) {
        double want = beta == 0 ? 0 : beta * cv[i * N + j];
        for (int64_t k = 0; k < K; ++k)
          want += av[i * K + k] * (transB ? bv[j * K + k] : bv[k * N + j]);
        double bound = dtC == DIFFATTN_BF16  ? std::fabs(want) / 128
                       : dtC == DIFFATTN_F16 ? std::fabs(want) / 1024
                                             : 0;
        if (!(std::fabs(c.get(i, j) - want) <= bound)) {
          ++mismatches;
          ADD_FAILURE() << "at " << i << "," << j << " expected " << want
                        << ", but got " << c.get(i, j);
        }
      }
      // Memory beside C is untouched.
      EXPECT_EQ(memcmp(c.at(i, N), before.at(i, N), 3 * c.size()), 0);
    }
  }
  diffattn_rt_weight_release(&w);
  EXPECT_EQ(w.packed, nullptr);
}

TEST_P(Backend, F32Shapes) {
  // Every height of a tile, and more than one; whole panels and parts of one;
  // more than one block of k.
  for (int64_t M : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 200})
    for (int64_t N : {1, 15, 259})
      for (int64_t K : {1, 17, 530})
        for (bool transB : {false, true})
          check(DIFFATTN_F32, DIFFATTN_F32, DIFFATTN_F32, M, N, K, transB,
                M % 2 ? 0.0f : 1.0f, transB);
}

TEST_P(Backend, Types) {
  const int32_t types[] = {DIFFATTN_F32, DIFFATTN_F16, DIFFATTN_BF16};
  for (int32_t a : types)
    for (int32_t b : types)
      for (int32_t c : types)
        for (int64_t M : {3, 40})
          for (float beta : {0.0f, 0.5f}) {
            check(a, b, c, M, 70, 45, true, beta, false);
            check(a, b, c, M, 70, 45, false, beta, false);
            check(a, b, c, M, 70, 45, true, beta, true);
          }
}

TEST_P(Backend, F64) {
  for (int64_t M : {1, 7, 50})
    for (bool transB : {false, true})
      check(DIFFATTN_F64, DIFFATTN_F64, DIFFATTN_F64, M, 33, 70, transB, 1.0f,
            false);
}

TEST_P(Backend, EmptySums) {
  check(DIFFATTN_F32, DIFFATTN_F32, DIFFATTN_F32, 3, 4, 0, true, 0.0f, false);
  check(DIFFATTN_F32, DIFFATTN_F32, DIFFATTN_F32, 30, 4, 0, true, 1.0f, false);
  check(DIFFATTN_F32, DIFFATTN_F32, DIFFATTN_F32, 30, 70, 0, false, 0.0f,
        false);
  check(DIFFATTN_F32, DIFFATTN_F32, DIFFATTN_F32, 0, 4, 5, true, 0.0f, false);
}

TEST_P(Backend, BetaZeroDoesNotReadC) {
  for (int64_t M : {2, 40}) {
    std::vector<float> a(M * 8, 1), b(8 * 8, 1), c(M * 8, NAN);
    diffattn_rt_gemm(0, 0, 0, M, 8, 8, a.data(), 8, b.data(), 8, 1, c.data(), 8,
                     0.0f, nullptr, 0);
    for (float x : c)
      EXPECT_EQ(x, 8.0f);
  }
}

TEST_P(Backend, Batches) {
  for (int64_t M : {1, 5, 20})
    for (bool shareA : {false, true})
      for (bool shareB : {false, true}) {
        const int64_t batch = 3, N = 19, K = 13;
        Matrix a(DIFFATTN_F32, (shareA ? 1 : batch) * M, K, 1);
        Matrix b(DIFFATTN_F32, (shareB ? 1 : batch) * N, K, 2);
        Matrix c(DIFFATTN_F32, batch * M, N, 3);
        diffattn_rt_batch_gemm(0, 0, 0, M, N, K, a.bytes.data(), a.ld,
                               b.bytes.data(), b.ld, 1, c.bytes.data(), c.ld,
                               0.0f, 0, batch, shareA ? 0 : M * a.ld,
                               shareB ? 0 : N * b.ld, M * c.ld);
        for (int64_t x = 0; x < batch; ++x)
          for (int64_t i = 0; i < M; ++i)
            for (int64_t j = 0; j < N; ++j) {
              double want = 0;
              for (int64_t k = 0; k < K; ++k)
                want += a.get((shareA ? 0 : x * M) + i, k) *
                        b.get((shareB ? 0 : x * N) + j, k);
              ASSERT_EQ(c.get(x * M + i, j), want);
            }
      }
}

TEST_P(Backend, SumsDoNotDependOnThreads) {
  for (int64_t M : {1, 8, 300}) {
    const int64_t N = 700, K = 900;
    std::vector<float> a(M * K), b(N * K);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (float &x : a)
      x = normal(random);
    for (float &x : b)
      x = normal(random);
    std::vector<std::vector<float>> results;
    for (int64_t threads : {1, 2, 3}) {
      results.emplace_back(M * N);
      diffattn_rt_gemm(0, 0, 0, M, N, K, a.data(), K, b.data(), K, 1,
                       results.back().data(), N, 0.0f, nullptr, threads);
    }
    for (int r : {1, 2})
      EXPECT_EQ(memcmp(results[0].data(), results[r].data(), M * N * 4), 0);
  }
}

TEST_P(Backend, NaNStaysInItsRow) {
  const int64_t M = 20, N = 8, K = 16;
  std::vector<float> a(M * K, 1), b(N * K, 1);
  a[3 * K + 2] = NAN;
  std::vector<uint16_t> c(M * N);
  diffattn_rt_gemm(0, 0, DIFFATTN_BF16, M, N, K, a.data(), K, b.data(), K, 1,
                   c.data(), N, 0.0f, nullptr, 0);
  for (int64_t i = 0; i < M * N; ++i)
    EXPECT_EQ((c[i] & 0x7fff) > 0x7f80, i / N == 3);
}

std::vector<int32_t> backends() {
  std::vector<int32_t> all = {DIFFATTN_GEMM_AUTO, DIFFATTN_GEMM_OWN,
                              DIFFATTN_GEMM_OWN_256, DIFFATTN_GEMM_OWN_128};
  if (std::string(diffattn_rt_gemm_library()) != "none")
    all.push_back(DIFFATTN_GEMM_LIBRARY);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Backend, testing::ValuesIn(backends()));

TEST(Gemm, PacksAWeightOnceAndOnlyForManyRows) {
  // Our own code reads a weight where it lies.
  const int64_t once = std::string(diffattn_rt_gemm_library()) != "none";
  const int64_t N = 64, K = 32;
  std::vector<float> a(50 * K, 1), b(N * K, 1), c(50 * N);
  diffattn_weight w{b.data(), nullptr, N, K, DIFFATTN_F32, 0};
  diffattn_rt_counters_reset();
  diffattn_counters count;
  auto run = [&](int64_t M) {
    diffattn_rt_gemm(0, 0, 0, M, N, K, a.data(), K, b.data(), K, 1, c.data(), N,
                     0.0f, &w, 0);
    diffattn_rt_counters(&count);
  };
  run(8);
  EXPECT_EQ(count.packs, 0);
  run(9);
  EXPECT_EQ(count.packs, once);
  run(50);
  EXPECT_EQ(count.packs, once);
  EXPECT_EQ(count.gemm_calls, 3);
  diffattn_rt_weight_release(&w);
  w.flags = DIFFATTN_WEIGHT_NO_PACK;
  run(50);
  EXPECT_EQ(count.packs, once);
  EXPECT_EQ(w.packed, nullptr);
}

/// Random numbers whose sums round, of any type.
std::vector<char> randomMatrix(int32_t dtype, int64_t count, unsigned seed) {
  Matrix one(dtype, 1, 1, 0);
  std::vector<char> bytes(count * one.size());
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) {
    one.set(0, 0, normal(random));
    memcpy(&bytes[i * one.size()], one.at(0, 0), one.size());
  }
  return bytes;
}

struct OrderCase {
  int32_t dtype, backend;
  bool transB, pairs;
};

struct InOrder : testing::TestWithParam<OrderCase> {
  void SetUp() override {
    ASSERT_EQ(diffattn_rt_set_gemm_backend(GetParam().backend), 0);
  }
  void TearDown() override { diffattn_rt_set_gemm_backend(DIFFATTN_GEMM_AUTO); }
};

// A row of C is one result for every number of rows, place among them, number
// of threads, and whether the weight is packed or read where it lies.
TEST_P(InOrder, ARowIsTheSameAnywhere) {
  const int32_t dtype = GetParam().dtype;
  const bool transB = GetParam().transB, pairs = GetParam().pairs;
  const int32_t flags = DIFFATTN_GEMM_IN_ORDER |
                        (transB ? DIFFATTN_GEMM_TRANSPOSE_B : 0) |
                        (pairs ? DIFFATTN_GEMM_BF16_PAIRS : 0);
  const int64_t most = 198, size = dtype == DIFFATTN_F32 ? 4 : 2;
  for (int64_t N : {1, 70})
    for (int64_t K : {30, 47, 1060}) {
      SCOPED_TRACE(testing::Message() << "N " << N << " K " << K);
      auto a = randomMatrix(dtype, most * K, 1);
      auto b = randomMatrix(dtype, N * K, 2);
      diffattn_weight w{b.data(), nullptr, N, K, dtype, 0};
      auto multiply = [&](int64_t first, int64_t M, int64_t threads,
                          diffattn_weight *weight) {
        std::vector<char> c(M * N * size);
        diffattn_rt_gemm(dtype, dtype, dtype, M, N, K, &a[first * K * size], K,
                         b.data(), transB ? K : N, flags, c.data(), N, 0.0f,
                         weight, threads);
        return c;
      };
      auto all = multiply(0, most, 1, nullptr);
      for (int64_t first : {0, 5})
        for (int64_t M : {1, 2, 5, 7, 8, 14, 15, 33})
          for (int64_t threads : {1, 2})
            for (diffattn_weight *weight : {&w, (diffattn_weight *)nullptr}) {
              auto part = multiply(first, M, threads, weight);
              ASSERT_EQ(
                  memcmp(part.data(), &all[first * N * size], part.size()), 0)
                  << M << " rows from " << first << ", " << threads
                  << " threads, " << (weight ? "packed" : "where it lies");
            }
      EXPECT_NE(w.packed, nullptr);
      diffattn_rt_weight_release(&w);
    }
}

std::vector<OrderCase> orderCases() {
  std::vector<OrderCase> all;
  for (int32_t dtype : {DIFFATTN_F32, DIFFATTN_F16, DIFFATTN_BF16})
    for (int32_t backend :
         {DIFFATTN_GEMM_AUTO, DIFFATTN_GEMM_OWN_256, DIFFATTN_GEMM_OWN_128})
      for (bool transB : {false, true})
        all.push_back({dtype, backend, transB, false});
  for (bool transB : {false, true})
    all.push_back({DIFFATTN_BF16, DIFFATTN_GEMM_AUTO, transB, true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, InOrder, testing::ValuesIn(orderCases()));

TEST(Gemm, InOrderIsChainsOfMultiplyAdds) {
  const int64_t M = 9, N = 101, K = 1300, depth = 512;
  auto a = randomMatrix(DIFFATTN_F32, M * K, 1);
  auto b = randomMatrix(DIFFATTN_F32, N * K, 2);
  auto *af = reinterpret_cast<float *>(a.data()),
       *bf = reinterpret_cast<float *>(b.data());
  std::vector<float> c(M * N);
  diffattn_rt_gemm(0, 0, 0, M, N, K, af, K, bf, K,
                   DIFFATTN_GEMM_TRANSPOSE_B | DIFFATTN_GEMM_IN_ORDER, c.data(),
                   N, 0.0f, nullptr, 0);
  const bool fused = __builtin_cpu_supports("fma");
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j) {
      float total = 0, sum = 0;
      for (int64_t k = 0; k < K; ++k) {
        // The product is rounded where the CPU cannot fuse.
        volatile float product = af[i * K + k] * bf[j * K + k];
        sum =
            fused ? std::fma(af[i * K + k], bf[j * K + k], sum) : sum + product;
        if ((k + 1) % depth && k + 1 < K)
          continue;
        total = k < depth ? sum : total + sum;
        sum = 0;
      }
      ASSERT_EQ(c[i * N + j], total) << i << ", " << j;
    }
}

// Terms that are all equal are all rounded alike where they are added to a sum
// that is large beside them.
TEST(Gemm, EqualTermsKeepTheirDigits) {
  const int64_t N = 33, K = 1 << 16;
  for (int64_t M : {1, 40}) {
    std::vector<float> a(M * K, 0.7f), b(N * K, 0.3f), c(M * N);
    diffattn_rt_gemm(0, 0, 0, M, N, K, a.data(), K, b.data(), K,
                     DIFFATTN_GEMM_TRANSPOSE_B | DIFFATTN_GEMM_IN_ORDER,
                     c.data(), N, 0.0f, nullptr, 0);
    const double expected = double(0.7f) * double(0.3f) * K;
    for (float element : c)
      ASSERT_NEAR(element / expected, 1, 2e-5) << M << " rows";
  }
}

TEST(Gemm, InOrderPacksAWeightOnceForAnyNumberOfRows) {
  const int64_t N = 64, K = 32;
  std::vector<float> a(50 * K, 1), b(N * K, 1), c(50 * N);
  diffattn_weight w{b.data(), nullptr, N, K, DIFFATTN_F32, 0};
  diffattn_rt_counters_reset();
  diffattn_counters count;
  for (int64_t M : {1, 9, 50}) {
    diffattn_rt_gemm(0, 0, 0, M, N, K, a.data(), K, b.data(), K,
                     DIFFATTN_GEMM_TRANSPOSE_B | DIFFATTN_GEMM_IN_ORDER,
                     c.data(), N, 0.0f, &w, 0);
    diffattn_rt_counters(&count);
    EXPECT_EQ(count.packs, 1);
    EXPECT_EQ(c[0], K);
  }
  // The library finds another's layout there and reads the weight itself.
  diffattn_rt_gemm(0, 0, 0, 50, N, K, a.data(), K, b.data(), K,
                   DIFFATTN_GEMM_TRANSPOSE_B, c.data(), N, 0.0f, &w, 0);
  EXPECT_EQ(c[50 * N - 1], K);
  diffattn_rt_weight_release(&w);
  w.flags = DIFFATTN_WEIGHT_NO_PACK;
  diffattn_rt_gemm(0, 0, 0, 50, N, K, a.data(), K, b.data(), K,
                   DIFFATTN_GEMM_TRANSPOSE_B | DIFFATTN_GEMM_IN_ORDER, c.data(),
                   N, 0.0f, &w, 0);
  EXPECT_EQ(w.packed, nullptr);
  EXPECT_EQ(c[50 * N - 1], K);
}

TEST(Gemm, OtherTypesAreErrors) {
  EXPECT_EQ(diffattn_rt_call(
                [](void *) {
                  int64_t x = 0;
                  diffattn_rt_gemm(DIFFATTN_I64, DIFFATTN_F32, DIFFATTN_F32, 1,
                                   1, 1, &x, 1, &x, 1, 0, &x, 1, 0.0f, nullptr,
                                   0);
                },
                nullptr),
            1);
  EXPECT_NE(std::string(diffattn_rt_error()).find("expected a matrix product"),
            std::string::npos);
  EXPECT_EQ(diffattn_rt_set_gemm_backend(99), 1);
}

} // namespace
