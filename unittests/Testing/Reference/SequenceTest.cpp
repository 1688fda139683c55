//===- SequenceTest.cpp - packed sequences and pages in the oracle --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Fixtures.h"

#include "gtest/gtest.h"

#include <algorithm>
#include <array>
#include <limits>

using namespace fixtures;

namespace {
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// [1,N] integers as [rows, N / rows].
View table(Pool &pool, std::vector<int64_t> values, int64_t rows) {
  View view = pool.integers(std::move(values));
  return view.split(0, view.sizes[0] / rows);
}

void expectSame(const std::vector<double> &a, const std::vector<double> &b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_DOUBLE_EQ(a[i], b[i]) << "at " << i;
}

/// Where queries and keys are packed alike, positions within segments are those
/// of the sequences: another reading of the same.
TEST(Sequences, PackedAreSegmentsWithTheirOwnPositions) {
  Pool pool;
  AttentionArguments packed = v1(pool, 9, 2, 1, 4, 1), segmented = packed;
  packed.cuSeqlensQ = packed.cuSeqlensK = pool.integers({0, 4, 4, 5, 9});
  View ids = table(pool, {7, 7, 7, 7, 2, 5, 5, 5, 5}, 1);
  segmented.qSegments = segmented.kvSegments = ids;
  ASSERT_EQ(check(packed), "");
  ASSERT_EQ(check(segmented), "");
  expectSame(run(packed), run(segmented));
}

TEST(Sequences, EachIsComputedAlone) {
  Pool pool;
  AttentionArguments a = v2(pool, 8, 2, 2, 4);
  // Other numbers of keys than of queries, and positions of their own.
  a.cuSeqlensQ = pool.integers({0, 3, 8});
  a.cuSeqlensK = pool.integers({0, 6, 8});
  a.qOffset = pool.integers({1, -2});
  ASSERT_EQ(check(a), "");
  std::vector<double> whole = run(a), parts;
  for (auto [q, nq, k, nk, offset] :
       {std::array<int64_t, 5>{0, 3, 0, 6, 1}, {3, 5, 6, 2, -2}}) {
    AttentionArguments one = v2(pool, 8, 2, 2, 4);
    for (View *view : {&one.q1, &one.q2})
      *view = view->sliced(2, q, nq);
    for (View *view : {&one.k1, &one.k2, &one.v})
      *view = view->sliced(2, k, nk);
    one.lambda = one.lambda.sliced(1, q, nq);
    one.qOffset = pool.integers({offset});
    std::vector<double> part = run(one);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  expectSame(whole, parts);
}

TEST(Sequences, LogarithmsOfSumsAreOfEach) {
  Pool pool;
  AttentionArguments packed = v1(pool, 9, 2, 1, 4, 1), segmented = packed;
  packed.cuSeqlensQ = packed.cuSeqlensK = pool.integers({0, 4, 4, 5, 9});
  segmented.qSegments = segmented.kvSegments =
      table(pool, {7, 7, 7, 7, 2, 5, 5, 5, 5}, 1);
  packed.sink = segmented.sink =
      pool.make({2}, [](int64_t head) { return head ? 0.3 : -1.0; });
  ASSERT_EQ(check(packed), "");
  const AttentionResult one = attention(packed), other = attention(segmented);
  expectSame(one.output, other.output);
  expectSame(one.lse1, other.lse1);
  expectSame(one.lse2, other.lse2);
}

/// Pages of two keys, out of order, with NaN in what no key needs.
TEST(Sequences, PagesAreDenseKeys) {
  Pool pool;
  AttentionArguments dense = v1(pool, 5, 2, 2, 2, 1), paged = dense;
  const std::array<int64_t, 3> pages = {3, 0, 2};
  auto intoPages = [&](const View &view) {
    return pool.make({4, view.sizes[1], 2, view.sizes[3]}, [&](int64_t i) {
      int64_t c = i % view.sizes[3], row = i / view.sizes[3] % 2,
              h = i / view.sizes[3] / 2 % view.sizes[1],
              page = i / view.sizes[3] / 2 / view.sizes[1];
      auto at = std::find(pages.begin(), pages.end(), page);
      int64_t key = (at - pages.begin()) * 2 + row;
      return key < 5 ? view.at({0, h, key, c}) : kNaN;
    });
  };
  paged.k1 = intoPages(dense.k1);
  paged.k2 = intoPages(dense.k2);
  paged.v = intoPages(dense.v);
  paged.blockTable = table(pool, {3, 0, 2, -9}, 1);
  paged.kvLen = pool.integers({5});
  ASSERT_EQ(check(paged), "");
  expectSame(run(paged), run(dense));
  // Packed queries with pages of their own: the same twice.
  paged.cuSeqlensQ = pool.integers({0, 5, 5});
  paged.blockTable = table(pool, {3, 0, 2, -9, -9, -9, -9, -9}, 2);
  paged.kvLen = pool.integers({5, 0});
  ASSERT_EQ(check(paged), "");
  expectSame(run(paged), run(dense));
}

TEST(Sequences, WhatIsRefused) {
  Pool pool;
  auto packed = [&](std::vector<int64_t> q, std::vector<int64_t> k) {
    AttentionArguments a = v1(pool, 4, 1, 1, 2, 1);
    a.cuSeqlensQ = pool.integers(std::move(q));
    a.cuSeqlensK = pool.integers(std::move(k));
    return a;
  };
  EXPECT_EQ(check(packed({0, 2, 4}, {0, 3, 4})), "");
  EXPECT_EQ(check(packed({1, 4}, {0, 4})),
            "expected cu_seqlens_q to begin with 0, but got 1");
  EXPECT_EQ(check(packed({0, 3, 2, 4}, {0, 0, 0, 4})),
            "expected cu_seqlens_q not to fall below 3, but got 2");
  EXPECT_EQ(check(packed({0, 4}, {0, 5})),
            "expected cu_seqlens_k to end with 4, but got 5");
  EXPECT_EQ(check(packed({0, 4}, {0, 2, 4})),
            "expected cu_seqlens_k of length 2, but got 3");
  AttentionArguments a = packed({0, 4}, {0, 4});
  a.qOffset = pool.integers({1, 2});
  EXPECT_EQ(check(a), "expected q_offset of shape [1]");
  a = packed({0, 4}, {0, 4});
  a.kvLen = pool.integers({4});
  EXPECT_EQ(check(a), "expected no kv_len with cu_seqlens_k");
  a = packed({0, 4}, {0, 4});
  a.integral = true;
  EXPECT_EQ(check(a), "expected no bias, segments and integral with "
                      "cu_seqlens_q and block_table");
  a = packed({0, 4}, {0, 4});
  a.cuSeqlensK = View();
  EXPECT_EQ(check(a),
            "expected cu_seqlens_q with either cu_seqlens_k or block_table");
  a = v1(pool, 4, 1, 1, 2, 1);
  a.blockTable = table(pool, {1, 0}, 1);
  EXPECT_EQ(check(a), "expected kv_len of shape [1]");
  a.kvLen = pool.integers({1});
  EXPECT_EQ(check(a),
            "expected pages from 0 and below 1 in block_table, but got 1");
  a.blockTable = table(pool, {0, 0, 0, 0}, 2);
  EXPECT_EQ(check(a), "expected block_table of shape [1,M]");
}
} // namespace
