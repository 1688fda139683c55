//===- GoldenTest.cpp - the oracle against worked examples ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Worked examples of every variant, A to K, made once by an independent program
// in f64: the first and last four values, their sum and the sum of their
// absolute values, to seven decimals.
//
//===----------------------------------------------------------------------===//
#include "Fixtures.h"

#include "gtest/gtest.h"

#include <array>

using namespace fixtures;

namespace {
struct Golden {
  size_t count;
  std::array<double, 4> first, last;
  double sum, absoluteSum;
};

void expectGolden(const std::vector<double> &out, const Golden &golden) {
  ASSERT_EQ(out.size(), golden.count);
  double sum = 0.0, absoluteSum = 0.0;
  for (double value : out) {
    sum += value;
    absoluteSum += std::fabs(value);
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(out[i], golden.first[i], 6e-8) << "value " << i;
    EXPECT_NEAR(out[out.size() - 4 + i], golden.last[i], 6e-8)
        << "value " << i << " of the end";
  }
  EXPECT_NEAR(sum, golden.sum, 6e-8);
  EXPECT_NEAR(absoluteSum, golden.absoluteSum, 6e-8);
}

const Golden kGoldenB = {48,
                         {0.8135910, 0.9423308, 0.6080552, 0.0349388},
                         {0.3007192, -0.3826919, -0.8345525, -0.8532029},
                         0.1342202,
                         29.7943042};

TEST(Golden, A_V1) {
  Pool pool;
  EXPECT_NEAR(reparam(2, 1), 0.3556895872, 5e-11);
  expectGolden(run(v1(pool, 3, 2, 2, 2, 1)),
               {24,
                {0.8135910, 0.9423308, 0.6080552, 0.0349388},
                {0.3109371, -0.3738470, -0.8312483, -0.8563064},
                0.5630499,
                14.8766661});
}

TEST(Golden, B_V1GroupedKeys) {
  Pool pool;
  expectGolden(run(v1(pool, 3, 4, 2, 2, 1)), kGoldenB);
}

/// The key heads of unilm's naive file, which repeats the flat list of heads.
AttentionArguments naiveKeys(Pool &pool) {
  AttentionArguments a = v1(pool, 3, 4, 2, 2, 1);
  View k = pool.heads(3, 4, 2, kTagK);
  a.k1 =
      pool.gather(k, {0, 1, 2, 3}); // head j of map m reads key head (2j+m)/2
  a.k2 = pool.gather(k, {0, 1, 2, 3});
  return a;
}

TEST(Golden, BPrime_V1NaiveKeyHeads) {
  Pool pool;
  expectGolden(run(naiveKeys(pool)),
               {48,
                {0.8135910, 0.9423308, 0.6080552, 0.0349388},
                {-0.0620605, -0.6561957, -0.8931255, -0.6949880},
                -0.6212230,
                29.6275232});
}

TEST(Golden, Property14_BDiffersFromBPrime) {
  Pool pool;
  std::vector<double> b = run(v1(pool, 3, 4, 2, 2, 1)),
                      prime = run(naiveKeys(pool));
  double largest = 0.0;
  for (size_t i = 0; i < b.size(); ++i)
    largest = std::max(largest, std::fabs(b[i] - prime[i]));
  EXPECT_GT(largest, 0.1);
}

/// Halves of the heads paired; V heads h and h + half side by side.
AttentionArguments diffLlama(Pool &pool) {
  AttentionArguments a = v1(pool, 3, 4, 2, 2, 1);
  View q = pool.heads(3, 8, 2, kTagQ), k = pool.heads(3, 4, 2, kTagK);
  a.q1 = q.sliced(1, 0, 4);
  a.q2 = q.sliced(1, 4, 4);
  a.k1 = k.sliced(1, 0, 2);
  a.k2 = k.sliced(1, 2, 2);
  a.v = pool.joined(pool.heads(3, 4, 2, kTagV), {0, 1}, {2, 3});
  a.normWeight = View();
  return a;
}

TEST(Golden, C_DiffLlama) {
  Pool pool;
  expectGolden(run(diffLlama(pool)),
               {48,
                {0.6239853, 0.7353602, -0.4537178, -0.7248787},
                {0.7141022, 0.5016984, -0.6959708, -0.6445076},
                1.0866141,
                28.6657167});
}

TEST(Golden, D_V2) {
  Pool pool;
  expectGolden(run(v2(pool, 3, 4, 2, 2)),
               {24,
                {0.2377250, 0.2801564, 0.2353001, 0.2772987},
                {0.0022468, -0.0106312, 0.0673486, 0.0292450},
                1.5636380,
                6.6851549});
}

TEST(Golden, E_GroupedDifferential) {
  Pool pool;
  AttentionArguments a = grouped(pool, 3, 2, 2, 2, 4, 2);
  View k = pool.heads(3, 4, 2, kTagK);
  a.k1 = everySecond(k, 0);
  a.k2 = everySecond(k, 1);
  a.lambda = pool.scalar(reparam(2, -1));
  a.lambdaSigmoid = false;
  a.rmsNorm = true;
  a.normWeight = pool.normWeight(4);
  a.outScale = 1.0 - lambdaInit(-1);
  expectGolden(run(a), {48,
                        {1.2749115, 1.4766490, 0.9528332, 0.0547497},
                        {-0.4453971, -1.2320497, -1.3707010, -0.8676830},
                        -0.0092228,
                        46.3686589});
}

TEST(Golden, F_GroupedLatent) {
  Pool pool;
  AttentionArguments a = grouped(pool, 3, 2, 2, 3, 2, 4);
  a.gate = pool.heads(3, 4, 2, kTagGate);
  expectGolden(run(a), {24,
                        {0.1720733, 0.1997113, 0.1424149, 0.1210298},
                        {-0.5444641, -0.1849187, 0.0429881, -0.0155416},
                        2.2933496,
                        4.6782397});
}

TEST(Golden, G_LambdaPerNoiseHead) {
  Pool pool;
  expectGolden(run(grouped(pool, 3, 2, 2, 2, 2, 2)),
               {24,
                {0.2377250, 0.2801564, 0.2377250, 0.2801564},
                {0.2158681, 0.0781968, -0.4632196, -0.2129236},
                0.5710495,
                6.4819996});
}

// The joint norm over all heads stays outside the op.
TEST(Golden, H_Edifice) {
  Pool pool;
  AttentionArguments a;
  View q = pool.heads(3, 4, 2, kTagQ), k = pool.heads(3, 4, 2, kTagK);
  a.q1 = q.sliced(1, 0, 2);
  a.q2 = q.sliced(1, 2, 2);
  a.k1 = k.sliced(1, 0, 2);
  a.k2 = k.sliced(1, 2, 2);
  a.v = pool.heads(3, 2, 2, kTagV);
  a.lambda = pool.scalar(0.2);
  a.scale = 1.0 / std::sqrt(2.0);
  a.isCausal = true;
  std::vector<double> out = run(a);
  for (size_t token = 0; token < 3; ++token) {
    double squares = 0.0;
    for (size_t c = 0; c < 4; ++c)
      squares += out[token * 4 + c] * out[token * 4 + c];
    for (size_t c = 0; c < 4; ++c)
      out[token * 4 + c] *=
          (1.0 + 0.1 * wave(c, kTagNorm)) / (std::sqrt(squares / 4) + 1e-6);
  }
  expectGolden(out, {12,
                     {1.2624038, 1.4621622, 0.9434854, 0.0542126},
                     {0.8150617, 1.4510611, 1.0938384, 0.6805933},
                     6.7013949,
                     11.6019172});
}

AttentionArguments windowed(Pool &pool) {
  AttentionArguments a = v1(pool, 4, 2, 1, 2, 3);
  a.left = 1;
  return a;
}

TEST(Golden, I_Window) {
  Pool pool;
  expectGolden(run(windowed(pool)),
               {32,
                {0.5604083, 0.6490854, 0.4188335, 0.0240661},
                {0.1987127, 0.5430862, 0.6019857, 0.3793070},
                6.2370819,
                13.5069133});
}

TEST(Golden, IPrime_DecodeOfTheLastToken) {
  Pool pool;
  AttentionArguments a = windowed(pool);
  a.q1 = a.q1.sliced(2, 3, 1);
  a.q2 = a.q2.sliced(2, 3, 1);
  expectGolden(run(a), {8,
                        {-0.0045145, -0.4265537, -0.6139247, -0.4993986},
                        {0.1987127, 0.5430862, 0.6019857, 0.3793070},
                        0.1787001,
                        3.2674831});
}

TEST(Golden, J_CrossWithLambdaOne) {
  Pool pool;
  AttentionArguments a;
  View q = pool.heads(3, 4, 2, kTagQ), k = pool.heads(4, 4, 2, kTagK);
  a.q1 = q.sliced(1, 0, 2);
  a.q2 = q.sliced(1, 2, 2);
  a.k1 = k.sliced(1, 0, 2);
  a.k2 = k.sliced(1, 2, 2);
  a.v = pool.heads(4, 2, 2, kTagV);
  a.lambda = pool.scalar(1.0);
  a.scale = 1.0 / std::sqrt(2.0);
  expectGolden(run(a), {12,
                        {-0.0035504, 0.0023659, -0.0283646, -0.0219577},
                        {0.0215087, 0.0522809, -0.0202009, -0.0006673},
                        0.0517386,
                        0.2699515});
}

TEST(Golden, K_Dint) {
  Pool pool;
  AttentionArguments a = v1(pool, 3, 2, 2, 2, 1);
  a.isCausal = false;
  a.integral = true;
  expectGolden(run(a), {24,
                        {0.5466860, 0.8981692, 0.7925623, 0.3374341},
                        {0.2012059, -0.4654155, -0.8617768, -0.8189259},
                        0.9829872,
                        14.7067346});
}
} // namespace
