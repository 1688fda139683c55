//===- BackwardTest.cpp - the oracle's gradients --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Against differences of the forward oracle over random configurations, against
// a worked example, and what must hold exactly.
//
//===----------------------------------------------------------------------===//
#include "Fixtures.h"

#include "DiffAttn/Testing/Reference/AttentionBackward.h"

#include "gtest/gtest.h"

#include <random>

using namespace fixtures;

namespace {
double weightedSum(const std::vector<double> &output, const View &dOut) {
  double sum = 0.0;
  for (size_t i = 0; i < output.size(); ++i)
    sum += output[i] * static_cast<const double *>(dOut.data)[i];
  return sum;
}

/// The operands that have gradients, with these.
std::vector<std::pair<View *, const Gradient *>>
pairsOf(AttentionArguments &a, const AttentionGradients &g) {
  std::vector<std::pair<View *, const Gradient *>> pairs = {
      {&a.q1, &g.q1}, {&a.k1, &g.k1}, {&a.q2, &g.q2},
      {&a.k2, &g.k2}, {&a.v, &g.v},   {&a.lambda, &g.lambda}};
  if (a.normWeight)
    pairs.push_back({&a.normWeight, &g.normWeight});
  if (a.gate)
    pairs.push_back({&a.gate, &g.gate});
  if (a.bias && a.bias.element != Element::Bool)
    pairs.push_back({&a.bias, &g.bias});
  return pairs;
}

class RandomCase {
public:
  explicit RandomCase(unsigned seed) : random(seed) {
    const int64_t batch = any({1, 2}), hn = any({1, 2}), r = any({1, 1, 2, 3}),
                  hs = hn * r, tq = any({1, 3, 4}), tk = any({1, 4, 6}),
                  d = any({1, 2, 3}), dv = any({1, 2, 4});
    a.q1 = floats({batch, hs, tq, d});
    a.q2 = floats({batch, hn, tq, d});
    a.k1 = floats({batch, divisor(hs), tk, d});
    a.k2 = floats({batch, divisor(hn), tk, d});
    a.v = floats({batch, divisor(hs), tk, dv});
    const std::vector<std::vector<int64_t>> shapes = {
        {}, {hs}, {batch, tq, hs}, {batch, tq, hn}};
    a.lambda = floats(shapes[any({0, 1, 2, 3})]);
    a.lambdaSigmoid = any({0, 1});
    a.scale = 0.7;
    a.isCausal = any({0, 1});
    if (any({0, 0, 1})) {
      a.left = any({-1, 1, 2});
      a.right = any({-1, 0, 1});
    }
    if (any({0, 0, 1}))
      a.softcap = 1.7;
    a.outScale = any({0, 1}) ? 1.0 : 0.7;
    a.rmsNorm = any({0, 1});
    a.epsOutside = any({0, 1});
    a.normEps = 1e-3;
    if (a.rmsNorm && any({0, 1}))
      a.normWeight = floats({dv});
    if (any({0, 0, 1}))
      a.gate = floats({batch, hs, tq, dv});
    if (any({0, 1}))
      a.kvLen = integers(batch, 0, tk + 1);
    if (any({0, 1}))
      a.qOffset = integers(batch, -2, 4);
    if (any({0, 0, 1})) {
      const bool holes = any({0, 1});
      a.bias = pool.make({any({0, 1}) ? batch : 1, any({0, 1}) ? hn : 1,
                          any({0, 1}) ? tq : 1, tk},
                         [&](int64_t) {
                           return holes && any({0, 0, 0, 1}) ? -kInf : number();
                         });
    }
    if (any({0, 0, 1})) {
      a.qSegments = segments(batch, tq);
      a.kvSegments = segments(batch, tk);
    }
    dOut = floats({batch, hs, tq, dv});
  }

  AttentionArguments a;
  View dOut;

private:
  int64_t any(const std::vector<int64_t> &choices) {
    return choices[random() % choices.size()];
  }
  int64_t divisor(int64_t n) {
    int64_t part = 1 + random() % n;
    while (n % part)
      --part;
    return part;
  }
  double number() { return std::normal_distribution<double>()(random); }
  View floats(const std::vector<int64_t> &sizes) {
    return pool.make(sizes, [&](int64_t) { return number(); });
  }
  View integers(int64_t count, int64_t least, int64_t most) {
    std::vector<int64_t> values(count);
    for (int64_t &value : values)
      value = least + static_cast<int64_t>(random() % (most - least + 1));
    return pool.integers(values);
  }
  View segments(int64_t batch, int64_t length) {
    View flat = integers(batch * length, 0, 1);
    return View(flat.data, Element::I64, {batch, length});
  }
  std::mt19937 random;
  Pool pool;
};

TEST(Backward, DifferencesOfTheForwardOracle) {
  constexpr double step = 1e-5;
  for (unsigned seed = 0; seed < 300; ++seed) {
    RandomCase one(seed);
    AttentionArguments &a = one.a;
    ASSERT_EQ(check(a), "");
    const AttentionGradients gradients = attentionBackward(a, one.dOut);
    int operand = 0;
    for (auto [view, gradient] : pairsOf(a, gradients)) {
      auto *data = static_cast<double *>(const_cast<void *>(view->data));
      for (size_t i = 0; i < gradient->values.size(); ++i) {
        const double kept = data[i];
        if (std::isinf(kept)) { // a hidden key of a bias
          EXPECT_EQ(gradient->values[i], 0.0) << "seed " << seed;
          continue;
        }
        data[i] = kept + step;
        const double above = weightedSum(attention(a).output, one.dOut);
        data[i] = kept - step;
        const double below = weightedSum(attention(a).output, one.dOut);
        data[i] = kept;
        const double expected = (above - below) / (2.0 * step);
        EXPECT_NEAR(gradient->values[i], expected,
                    2e-6 * (1.0 + gradient->magnitudes[i]))
            << "seed " << seed << ", operand " << operand << ", element " << i;
        EXPECT_LE(std::fabs(gradient->values[i]),
                  gradient->magnitudes[i] * (1.0 + 1e-12))
            << "seed " << seed << ", operand " << operand << ", element " << i;
      }
      ++operand;
    }
    if (testing::Test::HasFailure())
      break;
  }
}

double absoluteSum(const std::vector<double> &values) {
  double sum = 0.0;
  for (double value : values)
    sum += std::fabs(value);
  return sum;
}

/// Example A of GoldenTest.cpp; the loss is the sum of outputs times a wave.
TEST(Backward, A_V1) {
  Pool pool;
  AttentionArguments a = v1(pool, 3, 2, 2, 2, 1);
  const AttentionGradients g = attentionBackward(a, pool.heads(3, 2, 4, 0.9));
  EXPECT_NEAR(g.lambda.values[0], -0.0002119997, 1e-9);
  EXPECT_NEAR(absoluteSum(g.q1.values) + absoluteSum(g.q2.values), 0.4550069,
              1e-7);
  EXPECT_NEAR(absoluteSum(g.k1.values) + absoluteSum(g.k2.values), 0.6582233,
              1e-7);
  EXPECT_NEAR(absoluteSum(g.v.values), 4.1766754, 1e-7);
  double weight = 0.0;
  for (double value : g.normWeight.values)
    weight += value;
  EXPECT_NEAR(weight, 10.5410813, 1e-7);
}

/// Adding one vector to all keys changes no map.
TEST(Backward, GradientsOfKeysAddUpToZero) {
  Pool pool;
  AttentionArguments a = v1(pool, 7, 4, 2, 3, 1);
  const AttentionGradients g = attentionBackward(a, pool.heads(7, 4, 6, 0.9));
  for (const Gradient *gradient : {&g.k1, &g.k2})
    for (int64_t head = 0; head < 2; ++head)
      for (int64_t x = 0; x < 3; ++x) {
        double sum = 0.0;
        for (int64_t j = 0; j < 7; ++j)
          sum += gradient->values[(head * 7 + j) * 3 + x];
        EXPECT_NEAR(sum, 0.0, 1e-14);
      }
}

TEST(Backward, WithoutLambdaMapTwoHasNoGradient) {
  Pool pool;
  AttentionArguments a = v1(pool, 5, 2, 2, 2, 1);
  a.lambda = pool.scalar(0.0);
  const AttentionGradients g = attentionBackward(a, pool.heads(5, 2, 4, 0.9));
  EXPECT_EQ(absoluteSum(g.q2.values), 0.0);
  EXPECT_EQ(absoluteSum(g.k2.values), 0.0);
  EXPECT_NE(g.lambda.values[0], 0.0);
}

/// A hidden key takes no part, whatever it holds, and gets 0; a row without
/// keys gives nothing, with eps 0 too; and a bad gradient is seen.
TEST(Backward, HiddenKeysAndBadNumbers) {
  for (bool outside : {false, true}) {
    Pool pool;
    AttentionArguments a = v1(pool, 4, 2, 2, 2, 1);
    a.epsOutside = outside;
    a.normEps = 0.0;
    a.kvLen = pool.integers({3}); // the first query stands before all keys
    const View dOut = pool.heads(4, 2, 4, 0.9);
    const AttentionGradients g = attentionBackward(a, dOut);
    auto hide = [&](const View &view, double value) {
      return pool.make(view.sizes, [&](int64_t i) {
        const int64_t width = view.sizes[3], x = i % width, j = i / width % 4,
                      head = i / (4 * width);
        return j == 3 ? value : view.at({0, head, j, x});
      });
    };
    AttentionArguments other = a;
    other.k1 = hide(a.k1, kNaN);
    other.k2 = hide(a.k2, kInf);
    other.v = hide(a.v, kNaN);
    const AttentionGradients same = attentionBackward(other, dOut);
    auto expected = pairsOf(a, g), got = pairsOf(other, same);
    for (size_t n = 0; n < expected.size(); ++n)
      EXPECT_EQ(expected[n].second->values, got[n].second->values);
    for (int64_t head = 0; head < 2; ++head)
      for (int64_t x = 0; x < 2; ++x) {
        EXPECT_EQ(g.k1.values[(head * 4 + 3) * 2 + x], 0.0);
        EXPECT_EQ(g.q1.values[head * 4 * 2 + x], 0.0);
      }
    const View bad = pool.make({1, 2, 4, 4}, [&](int64_t i) {
      return i == 2 * 4 ? kInf : 1.0; // query 2 of head 0
    });
    const AttentionGradients seen = attentionBackward(a, bad);
    EXPECT_FALSE(std::isfinite(seen.q1.values[2 * 2]));
    EXPECT_FALSE(std::isfinite(seen.v.values[0]));
    EXPECT_TRUE(std::isfinite(seen.q1.values[1 * 2]));
    const View unseen = pool.make({1, 2, 4, 4}, [&](int64_t i) {
      return i < 4 ? kNaN : 1.0; // query 0 of head 0, which sees no key
    });
    const AttentionGradients finite = attentionBackward(a, unseen);
    for (auto [view, gradient] : pairsOf(a, finite))
      for (double value : gradient->values)
        EXPECT_TRUE(std::isfinite(value));
  }
}
} // namespace
