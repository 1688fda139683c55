//===- PropertyTest.cpp - properties of every variant ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Fixtures.h"

#include "gtest/gtest.h"

#include <algorithm>
#include <limits>

using namespace fixtures;

namespace {

void expectNear(const std::vector<double> &a, const std::vector<double> &b,
                double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], tolerance) << "at " << i;
}

/// V1 without its norm.
AttentionArguments plainV1(Pool &pool, int64_t tokens, double lambda) {
  AttentionArguments a = v1(pool, tokens, 2, 2, 2, 1);
  a.lambda = pool.scalar(lambda);
  a.rmsNorm = false;
  a.normWeight = View();
  a.outScale = 1.0;
  return a;
}

/// softmax(scale q k^T) v with a causal mask, written without the oracle.
std::vector<double> softmaxAttention(const View &q, const View &k,
                                     const View &v, double scale) {
  int64_t heads = q.sizes[1], t = q.sizes[2], d = q.sizes[3], dv = v.sizes[3];
  int64_t perKey = heads / k.sizes[1], perValue = heads / v.sizes[1];
  std::vector<double> out(t * heads * dv, 0.0);
  for (int64_t i = 0; i < t; ++i)
    for (int64_t h = 0; h < heads; ++h) {
      double sum = 0.0;
      for (int64_t j = 0; j <= i; ++j) {
        double dot = 0.0;
        for (int64_t x = 0; x < d; ++x)
          dot += q.at({0, h, i, x}) * k.at({0, h / perKey, j, x});
        double weight = std::exp(scale * dot);
        sum += weight;
        for (int64_t c = 0; c < dv; ++c)
          out[(i * heads + h) * dv + c] +=
              weight * v.at({0, h / perValue, j, c});
      }
      for (int64_t c = 0; c < dv; ++c)
        out[(i * heads + h) * dv + c] /= sum;
    }
  return out;
}

TEST(Property, P1_LambdaZeroIsAttentionOnMap1) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 5, 0.0);
  expectNear(run(a), softmaxAttention(a.q1, a.k1, a.v, a.scale), 1e-14);
}

TEST(Property, P1_OneMapIsSoftmaxAttention) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 5, 0.0);
  std::vector<double> expected = softmaxAttention(a.q1, a.k1, a.v, a.scale);
  a.q2 = a.k2 = a.lambda = View();
  ASSERT_EQ(check(a), "");
  expectNear(run(a), expected, 1e-14);
}

TEST(Property, P1_OneMapHasNeitherLambdaNorMean) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 5, 0.3);
  a.q2 = a.k2 = View();
  EXPECT_EQ(check(a), "expected neither lambda nor integral with one map, but "
                      "got one");
}

TEST(Property, P2_ConstantValuesGiveOneMinusLambda) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 5, 0.3);
  a.v = pool.make({1, 2, 5, 4}, [](int64_t) { return 1.0; });
  for (double value : run(a))
    EXPECT_NEAR(value, 0.7, 1e-14);
}

TEST(Property, P3_IdenticalMaps) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 5, 0.3);
  a.q2 = a.q1;
  a.k2 = a.k1;
  std::vector<double> expected = softmaxAttention(a.q1, a.k1, a.v, a.scale);
  for (double &value : expected)
    value *= 0.7;
  expectNear(run(a), expected, 1e-14);
  // Normed without eps, the result does not depend on lambda below 1.
  a.rmsNorm = true;
  a.normEps = 0.0;
  std::vector<double> normed = run(a);
  a.lambda = pool.scalar(-4.0);
  expectNear(run(a), normed, 1e-12);
}

TEST(Property, P4_FirstRowOfCausalIsTheFirstValue) {
  Pool pool;
  for (double lambda : {0.3, 0.999, 1.0, 1.5, -0.25}) {
    AttentionArguments a = plainV1(pool, 4, lambda);
    std::vector<double> out = run(a);
    for (int64_t i = 0; i < 8; ++i)
      EXPECT_NEAR(out[i], (1.0 - lambda) * a.v.at({0, i / 4, 0, i % 4}), 1e-15);
  }
}

TEST(Property, P5_ChunksOfQueriesAreRowsOfTheWhole) {
  Pool pool;
  AttentionArguments a = v1(pool, 6, 2, 1, 2, 1);
  std::vector<double> whole = run(a), chunks;
  for (auto [begin, size] :
       {std::pair<int64_t, int64_t>{0, 2}, {2, 3}, {5, 1}}) {
    AttentionArguments part = a;
    part.q1 = a.q1.sliced(2, begin, size);
    part.q2 = a.q2.sliced(2, begin, size);
    part.kvLen = pool.integers({begin + size});
    std::vector<double> rows = run(part);
    chunks.insert(chunks.end(), rows.begin(), rows.end());
    // q_offset over all keys puts the queries at the same place.
    part.kvLen = View();
    part.qOffset = pool.integers({begin});
    expectNear(run(part), rows, 1e-14);
  }
  expectNear(chunks, whole, 1e-14);
}

TEST(Property, P6_HalvesAreAPermutationOfAdjacentHeads) {
  Pool pool;
  AttentionArguments adjacent = v1(pool, 3, 4, 2, 2, 1), halves = adjacent;
  // Block 2j of the adjacent order is block j of the halves, 2j+1 is j + H.
  View q = pool.gather(pool.heads(3, 8, 2, kTagQ), {0, 2, 4, 6, 1, 3, 5, 7});
  View k = pool.gather(pool.heads(3, 4, 2, kTagK), {0, 2, 1, 3});
  halves.q1 = q.sliced(1, 0, 4);
  halves.q2 = q.sliced(1, 4, 4);
  halves.k1 = k.sliced(1, 0, 2);
  halves.k2 = k.sliced(1, 2, 2);
  EXPECT_EQ(run(adjacent), run(halves));
}

TEST(Property, P7_WideWindowIsCausal) {
  Pool pool;
  AttentionArguments a = v1(pool, 5, 2, 2, 2, 1);
  std::vector<double> causal = run(a);
  a.left = 5;
  EXPECT_EQ(run(a), causal);
  a.isCausal = false;
  a.right = 0;
  EXPECT_EQ(run(a), causal);
}

TEST(Property, P8_NormedOutputIgnoresTheSizeOfValues) {
  Pool pool;
  AttentionArguments a = v1(pool, 4, 2, 2, 2, 1);
  a.normEps = 0.0;
  std::vector<double> out = run(a);
  a.v = pool.make({1, 4, 2, 4}, [](int64_t i) { return 37.0 * wave(i, kTagV); })
            .transposed(1, 2);
  expectNear(run(a), out, 1e-12);
}

TEST(Property, P9_ClosedLambdaIsAttentionOnEvenHeads) {
  Pool pool;
  AttentionArguments a = v2(pool, 4, 4, 2, 2);
  a.lambda = pool.make({1, 4, 4}, [](int64_t) { return -1e4; });
  expectNear(run(a), softmaxAttention(a.q1, a.k1, a.v, a.scale), 1e-14);
}

TEST(Property, P10_GroupsOfOneArePairs) {
  Pool pool;
  EXPECT_EQ(run(grouped(pool, 4, 2, 1, 2, 2, 2)), run(v2(pool, 4, 2, 2, 2)));
  AttentionArguments pairs = v1(pool, 4, 2, 2, 2, 1), groups = pairs;
  AttentionArguments g = grouped(pool, 4, 2, 1, 2, 4, 2);
  groups.q1 = g.q1;
  groups.q2 = g.q2;
  EXPECT_EQ(run(groups), run(pairs));
}

TEST(Property, P11_LargeLogitsStayFinite) {
  Pool pool;
  for (double size : {1e2, 1e4, 1e8}) {
    AttentionArguments a = v1(pool, 5, 2, 2, 2, 1);
    a.scale *= size;
    for (double value : run(a))
      EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(Property, HiddenKeysChangeNothing) {
  Pool pool;
  AttentionArguments a = v1(pool, 4, 2, 2, 2, 1);
  std::vector<double> out = run(a);
  auto poison = [&](double tag, int64_t heads, int64_t width) {
    return pool
        .make({1, 7, heads, width},
              [=](int64_t i) {
                return i < 4 * heads * width ? wave(i, tag) : kNaN;
              })
        .transposed(1, 2);
  };
  View k = poison(kTagK, 4, 2);
  a.k1 = everySecond(k, 0);
  a.k2 = everySecond(k, 1);
  a.v = poison(kTagV, 2, 4);
  a.kvLen = pool.integers({4});
  EXPECT_EQ(run(a), out);
  // A bias, boolean or of -inf, hides the same keys.
  a.kvLen = View();
  a.qOffset = pool.integers({0});
  a.isCausal = true;
  static const uint8_t seen[7] = {1, 1, 1, 1, 0, 0, 0};
  a.bias = View(seen, Element::Bool, {1, 1, 1, 7});
  EXPECT_EQ(run(a), out);
  a.isCausal = false;
  a.bias = pool.make({1, 1, 4, 7},
                     [](int64_t i) { return i % 7 <= i / 7 ? 0.0 : -kInf; });
  EXPECT_EQ(run(a), out);
}

TEST(Property, KeysBehindTheValidOnesAreHidden) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 3, 0.3);
  a.isCausal = false;
  AttentionArguments all = a;
  for (View *view : {&all.k1, &all.k2, &all.v})
    *view = view->sliced(2, 0, 2);
  a.kvLen = pool.integers({2});
  EXPECT_EQ(run(a), run(all));
}

TEST(Property, SegmentsAreIndependent) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 7, 0.3);
  const std::vector<int64_t> ids = {3, 3, -1, -1, -1, 8, 8};
  a.qSegments = pool.integers(ids);
  a.qSegments.sizes.insert(a.qSegments.sizes.begin(), 1);
  a.qSegments.strides.insert(a.qSegments.strides.begin(), 0);
  a.kvSegments = a.qSegments;
  const std::vector<double> out = run(a);
  const int64_t perToken = static_cast<int64_t>(out.size()) / 7;
  for (auto [first, count] :
       {std::pair<int64_t, int64_t>{0, 2}, {2, 3}, {5, 2}}) {
    AttentionArguments part = a;
    part.qSegments = part.kvSegments = View();
    for (View *view : {&part.q1, &part.k1, &part.q2, &part.k2, &part.v})
      *view = view->sliced(2, first, count);
    const std::vector<double> alone = run(part);
    ASSERT_EQ(static_cast<int64_t>(alone.size()), count * perToken);
    for (int64_t i = 0; i < count * perToken; ++i)
      EXPECT_EQ(alone[i], out[first * perToken + i]);
  }
  // A number that no key has.
  a.qSegments = pool.integers({4, 5, 6, 7, 9, 10, 11});
  a.qSegments.sizes.insert(a.qSegments.sizes.begin(), 1);
  a.qSegments.strides.insert(a.qSegments.strides.begin(), 0);
  expectNear(run(a), std::vector<double>(out.size(), 0.0), 0.0);
  a.kvSegments = View();
  EXPECT_EQ(
      check(a),
      "expected q_segments and kv_segments together, but got one of them");
}

TEST(Property, PositionsNeitherWrapNorRound) {
  constexpr int64_t highest = std::numeric_limits<int64_t>::max();
  Pool pool;
  AttentionArguments a = plainV1(pool, 5, 0.3);
  a.isCausal = false;
  std::vector<double> all = run(a), none(all.size(), 0.0);
  a.isCausal = true;
  for (int64_t far : {int64_t(1) << 31, (int64_t(1) << 53) + 1, highest}) {
    a.qOffset = pool.integers({far});
    expectNear(run(a), all, 0.0);
    a.qOffset = pool.integers({-far - 1});
    expectNear(run(a), none, 0.0);
  }
  // A window that reaches from the farthest position to key 1 and no further.
  a.isCausal = false;
  a.qOffset = pool.integers({highest});
  a.left = highest - 1;
  std::vector<double> far = run(a);
  a.qOffset = pool.integers({1});
  a.left = 0;
  expectNear(far, run(a), 0.0);
  // A length beyond the keys moves the last query there.
  AttentionArguments b = plainV1(pool, 5, 0.3);
  b.isCausal = true;
  b.kvLen = pool.integers({highest});
  expectNear(run(b), all, 0.0);
}

TEST(Property, EpsilonInsideAndOutsideOfTheRoot) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 2, 0.0);
  a.v = pool.make({1, 2, 2, 4},
                  [](int64_t i) { return i % 2 ? 4.0 : -4.0; }); // rms 4
  a.rmsNorm = true;
  a.normEps = 9.0;
  for (double value : run(a))
    EXPECT_NEAR(std::fabs(value), 4.0 / 5.0, 1e-14);
  a.epsOutside = true;
  for (double value : run(a))
    EXPECT_NEAR(std::fabs(value), 4.0 / 13.0, 1e-14);
}

TEST(Property, ScoresThatOverflowDownwardsGiveZero) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 2, 0.3);
  a.q1 = a.q2 = pool.make({1, 2, 2, 2}, [](int64_t) { return 1e200; });
  a.k1 = a.k2 = pool.make({1, 2, 2, 2}, [](int64_t) { return -1e200; });
  EXPECT_EQ(run(a), std::vector<double>(16, 0.0));
}

TEST(Property, RowsWithoutKeysAreZero) {
  Pool pool;
  AttentionArguments a = v1(pool, 4, 2, 2, 2, 1);
  a.gate = pool.heads(4, 2, 4, kTagGate);
  a.qOffset = pool.integers({-2});
  for (double eps : {1e-5, 0.0}) {
    a.normEps = eps;
    std::vector<double> out = run(a);
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_EQ(out[i] == 0.0, i < 16) << "at " << i;
  }
  // No key at all, and no query at all.
  AttentionArguments none = v1(pool, 4, 2, 2, 2, 1);
  for (View *view : {&none.k1, &none.k2, &none.v})
    *view = view->sliced(2, 0, 0);
  EXPECT_EQ(check(none), "");
  EXPECT_EQ(run(none), std::vector<double>(32, 0.0));
  for (View *view : {&none.q1, &none.q2})
    *view = view->sliced(2, 0, 0);
  EXPECT_TRUE(run(none).empty());
}

/// A sink of each head, for both maps alike, as a key without a value, whose
/// score is a bias.
TEST(Property, ASinkIsAKeyWithoutAValue) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 5, 0.3);
  const View sinks =
      pool.make({2}, [](int64_t head) { return head ? -0.4 : 0.7; });
  AttentionArguments b = a;
  for (View *view : {&b.k1, &b.k2, &b.v}) {
    const View before = *view;
    *view = pool.make({1, 2, 6, before.sizes[3]}, [&](int64_t i) {
      const int64_t width = before.sizes[3], row = i / width % 6;
      return row < 5 ? before.at({0, i / width / 6, row, i % width}) : 0.0;
    });
  }
  b.bias = pool.make({1, 2, 1, 6}, [&](int64_t i) {
    return i % 6 == 5 ? sinks.at({i / 6}) : 0.0;
  });
  a.isCausal = b.isCausal = false;
  a.sink = a.sink2 = sinks;
  ASSERT_EQ(check(a), "");
  const AttentionResult with = attention(a), as = attention(b);
  expectNear(with.output, as.output, 1e-14);
  expectNear(with.lse1, as.lse1, 1e-14);
  expectNear(with.lse2, as.lse2, 1e-14);
  EXPECT_EQ(with.lse1.size(), 10u);
}

TEST(Property, SinksOfMinusInfinityChangeNothing) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 4, 0.3);
  const AttentionResult before = attention(a);
  a.sink = a.sink2 = pool.make({2}, [](int64_t) { return -kInf; });
  const AttentionResult after = attention(a);
  EXPECT_EQ(before.output, after.output);
  EXPECT_EQ(before.lse1, after.lse1);
  EXPECT_EQ(before.lse2, after.lse2);
}

TEST(Property, SinksLeaveRowsWithoutKeys) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 4, 0.3);
  a.sink = a.sink2 = pool.make({2}, [](int64_t) { return 0.5; });
  a.kvLen = pool.integers({0});
  const AttentionResult result = attention(a);
  EXPECT_EQ(result.output, std::vector<double>(32, 0.0));
  EXPECT_EQ(result.lse1, std::vector<double>(8, -kInf));
  EXPECT_EQ(result.lse2, std::vector<double>(8, -kInf));
}

TEST(Property, NaNStaysWhereItIsSeen) {
  Pool pool;
  AttentionArguments a = v1(pool, 4, 2, 2, 2, 1);
  auto withNaN = [&](int64_t tokens, int64_t heads, int64_t width, double tag,
                     int64_t where) {
    return pool
        .make({1, tokens, heads, width},
              [=](int64_t i) { return i == where ? kNaN : wave(i, tag); })
        .transposed(1, 2);
  };
  auto nanRows = [&](const AttentionArguments &args) {
    std::vector<double> out = run(args);
    std::vector<std::pair<int64_t, int64_t>> rows; // (token, head)
    for (int64_t row = 0; row < 8; ++row)
      if (std::isnan(out[row * 4]))
        rows.emplace_back(row / 2, row % 2);
    return rows;
  };
  using Rows = std::vector<std::pair<int64_t, int64_t>>;
  AttentionArguments q = a;
  q.q2 = everySecond(withNaN(4, 4, 2, kTagQ, 2 * 8 + 2),
                     1); // token 2, head 1: map 2 of pair 0
  EXPECT_EQ(nanRows(q), (Rows{{2, 0}}));
  AttentionArguments k = a;
  k.k1 = everySecond(withNaN(4, 4, 2, kTagK, 1 * 8 + 5),
                     0); // token 1, head 2: map 1 of pair 1
  EXPECT_EQ(nanRows(k), (Rows{{1, 1}, {2, 1}, {3, 1}}));
  AttentionArguments v = a;
  v.v = withNaN(4, 2, 4, kTagV, 2 * 8); // token 2, head 0
  EXPECT_EQ(nanRows(v), (Rows{{2, 0}, {3, 0}}));
}

TEST(Property, OrderOfKeysDoesNotMatterWithoutMask) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 4, 0.4);
  a.isCausal = false;
  std::vector<double> out = run(a);
  auto reversed = [&](const View &view) {
    View r = view.sliced(2, 3, 4);
    r.strides[2] = -r.strides[2];
    return r;
  };
  a.k1 = reversed(a.k1);
  a.k2 = reversed(a.k2);
  a.v = reversed(a.v);
  expectNear(run(a), out, 1e-14);
}

TEST(Property, SoftcapComesBeforeBias) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 3, 0.0);
  a.softcap = 0.5;
  a.scale = 1e6; // every capped score is 0.5 or -0.5
  a.bias =
      pool.make({1, 1, 1, 3}, [](int64_t j) { return j == 0 ? 100.0 : 0.0; });
  std::vector<double> out = run(a);
  // The bias decides although the cap is far below it.
  for (int64_t token = 0; token < 3; ++token)
    for (int64_t i = 0; i < 8; ++i)
      EXPECT_NEAR(out[token * 8 + i], a.v.at({0, i / 4, 0, i % 4}), 1e-14);
}

TEST(Property, MagnitudeBoundsTheOutput) {
  Pool pool;
  AttentionArguments a = v1(pool, 5, 2, 1, 2, 1);
  a.gate = pool.heads(5, 2, 4, kTagGate);
  AttentionResult result = attention(a);
  for (size_t i = 0; i < result.output.size(); ++i)
    EXPECT_LE(std::fabs(result.output[i]), result.magnitude[i]);
  EXPECT_GT(result.scoreMagnitude, 0.0);
}

TEST(Property, FlatMagnitudeIsTheMagnitudeOfEqualWeights) {
  Pool pool;
  for (bool isIntegral : {false, true})
    for (bool isPacked : {false, true}) {
      if (isIntegral && isPacked) // not combined
        continue;
      AttentionArguments a = v1(pool, 5, 2, 1, 2, 1);
      a.integral = isIntegral;
      if (isPacked)
        a.cuSeqlensQ = a.cuSeqlensK = pool.integers({0, 2, 5});
      ASSERT_EQ(check(a), "");
      AttentionResult result = attention(a);
      double largest = 0.0;
      for (size_t i = 0; i < result.output.size(); ++i) {
        EXPECT_GE(result.flatMagnitude[i], result.magnitude[i] * (1 - 1e-14));
        largest =
            std::max(largest, result.flatMagnitude[i] / result.magnitude[i]);
      }
      EXPECT_GT(largest, 1.01);
      a.scale = 0.0;
      result = attention(a);
      for (size_t i = 0; i < result.output.size(); ++i)
        EXPECT_NEAR(result.flatMagnitude[i], result.magnitude[i],
                    1e-14 * result.magnitude[i]);
    }
}

TEST(Property, LargestBiasIsOfTheKeysThatTheRowSees) {
  Pool pool;
  AttentionArguments a = plainV1(pool, 3, 0.0);
  EXPECT_EQ(attention(a).largestBias, std::vector<double>(6, 0.0));
  a.isCausal = true;
  a.bias = pool.make({1, 1, 1, 3},
                     [](int64_t j) { return j == 2 ? 5.0 : -1e30 + j; });
  // Two heads; the last key is seen by the last row alone.
  EXPECT_EQ(attention(a).largestBias,
            (std::vector<double>{-1e30, -1e30, 5.0, -1e30, -1e30, 5.0}));
  a.kvLen = pool.integers({0});
  EXPECT_EQ(attention(a).largestBias, std::vector<double>(6, -INFINITY));
}

TEST(Property, CheckNamesTheFirstFault) {
  Pool pool;
  AttentionArguments a = v1(pool, 4, 2, 2, 2, 1);
  EXPECT_EQ(check(a), "");
  AttentionArguments b = a;
  b.v = a.v.sliced(2, 0, 3);
  EXPECT_EQ(check(b), "expected v of shape [1,2,4,4], but got [1,2,3,4]");
  b = v1(pool, 4, 3, 3, 2, 1);
  b.k1 = b.k1.sliced(1, 0, 2);
  EXPECT_EQ(check(b),
            "expected heads of k1 to divide heads of q1, but got 2 and 3");
  b = a;
  b.sink = pool.make({3}, [](int64_t) { return 0.0; });
  EXPECT_EQ(check(b), "expected sink of shape [2], but got [3]");
  b = a;
  b.sink2 = pool.make({2}, [](int64_t) { return 0.0; });
  b.q2 = b.k2 = b.lambda = View();
  EXPECT_EQ(check(b), "expected two maps with sink2, but got one");
}
} // namespace
