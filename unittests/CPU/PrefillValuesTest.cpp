//===- PrefillValuesTest.cpp - products with the values against double ----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Phase.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class PrefillValuesTest : public CpuPhaseTest {};
INSTANTIATE_TEST_SUITE_P(, PrefillValuesTest,
                         ::testing::ValuesIn(getCaseKinds()),
                         [](const auto &kind) { return kind.param.getName(); });

/// P of a key of a KV block and a row, where the product reads it.
float getProbability(const CpuCase &c, const char *p, int64_t key,
                     int64_t row) {
  const ProductAtom &atom = c.spec.getAtom();
  const int64_t stride = c.spec.prefill.getQBlockSize();
  const bool isBf16 = atom.pack == 2;
  if (atom.usesTiles) // [row / 16][key / 32][row % 16][key % 32]
    return readNumber(p,
                      row / 16 * 16 * CpuCase::kKvBlockSize + key / 32 * 512 +
                          row % 16 * 32 + key % 32,
                      isBf16);
  return readNumber(
      p, (key / atom.pack * stride + row) * atom.pack + key % atom.pack,
      isBf16);
}

/// The relative tolerance of weights of keys: where products take bf16, they
/// are rounded to it, which has 8 bits, as are exponentials by tiles.
double getTolerance(const CpuCase &c) {
  if (c.spec.getAtom().pack == 1)
    return 4e-5;
  return c.spec.getAtom().usesTiles ? 1.0 / 128 : 1.0 / 256;
}

/// The weights of keys [first, first + n) in a row of a case without masks.
struct Weights {
  Weights(const CpuCase &c, const QueryBlock &block, int64_t row, int64_t first,
          int64_t n) {
    const reference::AttentionArguments &a = c.getArguments();
    for (int map : {0, 1}) {
      const std::vector<double> weights =
          reference::mapRow(a, map, block.batch, block.head,
                            block.firstRow + row, first, first + n)
              .weights;
      maps[map].assign(weights.begin() + first, weights.begin() + first + n);
    }
    lambda = reference::lambdaAt(a, block.batch, block.head, block.head,
                                 block.firstRow + row);
  }
  double lambda;
  std::vector<double> maps[2];

  double getDifference(int64_t i) const {
    return maps[0][i] - lambda * maps[1][i];
  }
  double getSum(int64_t i) const { return maps[0][i] + lambda * maps[1][i]; }
};

//===----------------------------------------------------------------------===//
// One KV block
//===----------------------------------------------------------------------===//

/// Scores a KV block, whose keys are all seen. Returns the places of its
/// exponentials.
std::array<MapScores, 2> emitWholeBlock(ValuesBuilder &p,
                                        const KvBlock &kvBlock) {
  emitBegin(p.scoring, p.item, p.s);
  p.values.clear(p.s);
  std::array<MapScores, 2> places;
  for (int map : {0, 1}) {
    places[map] = p.scoring.getMapScores(p.s, map, p.b.index(0));
    p.scoring.forEachVector(p.item, [&](Value lane) {
      p.b.store(p.b.load(p.b.vector, p.s.maxima[map], lane), p.s.newMaxima,
                lane);
    });
    p.scoring.scoreKeys(p.item, p.s, kvBlock, p.keyHeads.base[map],
                        places[map]);
    p.scoring.exponentiate(p.item, p.s, kvBlock.n, places[map],
                           p.b.boolean(false));
  }
  p.values.finishSums(p.item, p.s);
  return places;
}

/// P and the product of the KV block of keys [input 0, input 0 + input 1).
Phase makeProduct(CpuCase &c) {
  return Phase(c, [&](PhaseBuilder &builder) {
    ValuesBuilder p(builder, c.spec);
    KvBlock kvBlock{p.getInput(0), p.getInput(1), p.b.boolean(false)};
    auto [first, second] = emitWholeBlock(p, kvBlock);
    p.values.combine(p.item, p.s,
                     {first.weights, second.weights, p.s.sums[0], p.s.sums[1]},
                     kvBlock.n);
    p.values.multiply(
        p.item, p.s, {kvBlock, p.valueHead.base, p.valueHead.columns},
        {p.s.probabilities, p.s.output[0], {first.weights, second.weights}});
    for (Value value : {p.s.probabilities, p.s.output[0], p.s.valuePanelStride})
      p.expose(value);
  });
}

void checkProbabilities(const CpuCase &c, const Phase &phase,
                        const QueryBlock &block, int64_t first, int64_t n) {
  const ProductAtom &atom = c.spec.getAtom();
  const char *p = phase.getPointer<char>(0);
  for (int64_t row = 0; row < block.rows; ++row) {
    Weights weights(c, block, row, first, n);
    for (int64_t i = 0; i < n; ++i)
      ASSERT_NEAR(getProbability(c, p, i, row), weights.getDifference(i),
                  getTolerance(c) * weights.getSum(i))
          << "row " << row << ", key " << first + i;
    // Products read zeros beyond the last key.
    const int64_t end = llvm::alignTo(n, atom.usesTiles ? 32 : atom.pack);
    for (int64_t i = n; i < end; ++i)
      ASSERT_EQ(getProbability(c, p, i, row), 0.0f) << i;
  }
}

/// The output is the sum over keys of P, as it was stored, times values.
void checkOutput(const CpuCase &c, const Phase &phase, const QueryBlock &block,
                 int64_t first, int64_t n) {
  const float *output = phase.getPointer<float>(1);
  for (int64_t row = 0; row < block.rows; ++row)
    for (int64_t column = 0; column < c.sizes.valueDim; ++column) {
      double sum = 0, bound = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double term =
            getProbability(c, phase.getPointer<char>(0), i, row) *
            double(c.v.get({block.batch, block.head, first + i, column}));
        sum += term;
        bound += std::abs(term);
      }
      ASSERT_NEAR(output[row * phase.getNumber(2) + column], sum,
                  1e-6 + 1e-5 * bound)
          << "row " << row << ", column " << column;
    }
}

TEST_P(PrefillValuesTest, ABlockIsCombinedAndMultiplied) {
  for (int64_t valueDim : {1, 53, 128}) {
    CpuCase c(context, GetParam(), {1, 2, 61, 45, 8, valueDim});
    Phase phase = makeProduct(c);
    for (auto [first, n] : {std::pair<int64_t, int64_t>(0, 32), {32, 13}})
      forEachQueryBlock(c, phase,
                        [&, first = first, n = n](const QueryBlock &block) {
                          checkProbabilities(c, phase, block, first, n);
                          checkOutput(c, phase, block, first, n);
                        },
                        {first, n});
  }
}

TEST_P(PrefillValuesTest, NumbersThatAreNotFiniteAreFound) {
  for (int64_t valueDim : {1, 16, 53}) {
    CpuCase c(context, GetParam(), {1, 1, 5, 90, 4, valueDim});
    c.v.set({0, 0, 10, 0}, std::numeric_limits<float>::quiet_NaN());
    c.v.set({0, 0, 60, valueDim - 1}, -kInfinity);
    Phase phase(c, [&](PhaseBuilder &builder) {
      ValuesBuilder p(builder, c.spec);
      KvBlock kvBlock{p.getInput(0), p.getInput(1), Value()};
      Value hasNonFinite = p.values.hasNonFinite(
          {kvBlock, p.valueHead.base, p.valueHead.columns});
      p.expose(p.b.select(hasNonFinite, p.b.index(1), p.b.index(0)));
    });
    auto isDetected = [&](int64_t first, int64_t n) {
      phase.run(0, {first, n});
      return phase.getNumber(0) == 1;
    };
    EXPECT_FALSE(isDetected(0, 10));
    EXPECT_TRUE(isDetected(0, 11));
    EXPECT_TRUE(isDetected(10, 1));
    EXPECT_FALSE(isDetected(11, 49));
    EXPECT_TRUE(isDetected(11, 50));
    EXPECT_FALSE(isDetected(61, 29));
    EXPECT_FALSE(isDetected(10, 0));
  }
}

//===----------------------------------------------------------------------===//
// All KV blocks
//===----------------------------------------------------------------------===//

/// The output of a block of queries before its rows end.
Phase makeOutput(CpuCase &c) {
  return Phase(c, [&](PhaseBuilder &builder) {
    ValuesBuilder p(builder, c.spec);
    const bool isOnline = getKeyPaths(c.spec).online;
    KeyPartition keys = emitBegin(p.scoring, p.item, p.s);
    p.values.clear(p.s);
    p.scoring.forKvBlocks(p.s, keys, [&](Value number) {
      p.scoring.scoreKvBlock(p.item, p.s, p.keyHeads, keys, number);
      if (isOnline)
        p.values.mergeKvBlock(p.item, p.s, p.valueHead, keys, number);
    });
    p.values.finishSums(p.item, p.s);
    if (isOnline)
      p.values.finishOnline(p.item, p.s);
    else
      p.scoring.forKvBlocks(p.s, keys, [&](Value number) {
        p.values.combineKvBlock(p.item, p.s, p.valueHead, keys, number);
      });
    p.expose(p.s.output[0]);
    p.expose(p.s.valuePanelStride);
  });
}

void checkOutputs(CpuCase &c) {
  Phase phase = makeOutput(c);
  const reference::AttentionResult expected =
      reference::attention(c.getArguments());
  forEachQueryBlock(c, phase, [&](const QueryBlock &block) {
    for (int64_t row = 0; row < block.rows; ++row)
      for (int64_t column = 0; column < c.sizes.valueDim; ++column) {
        const int64_t head = block.batch * c.sizes.heads + block.head,
                      query = head * c.sizes.queries + block.firstRow + row,
                      i = query * c.sizes.valueDim + column;
        const float output =
            phase.getPointer<float>(0)[row * phase.getNumber(1) + column];
        if (!std::isfinite(expected.output[i]))
          ASSERT_FALSE(std::isfinite(output)) << "row " << row;
        else
          ASSERT_NEAR(output, expected.output[i],
                      1e-6 + getTolerance(c) * expected.magnitude[i])
              << "row " << row << ", column " << column;
      }
  });
}

TEST_P(PrefillValuesTest, OutputsAreThoseOfBothMaps) {
  const CaseSizes sizes{2, 2, 61, 100, 16, 21};
  for (int64_t twoPassKeys : {4096, 0}) {
    CpuCase c(context, GetParam(), sizes, twoPassKeys);
    c.addWindow(40, 0);
    c.addKvLength({100, 12}); // 49 queries of batch 1 see no key
    checkOutputs(c);
  }
  CpuCase paged(context, GetParam(), sizes);
  paged.movePages(20);
  checkOutputs(paged);
}

TEST_P(PrefillValuesTest, OutputsOfOneMap) {
  const CaseSizes sizes{2, 2, 61, 100, 16, 21};
  for (bool isWindow : {false, true}) {
    CpuCase c(context, GetParam(), sizes);
    c.dropSecondMap();
    if (isWindow) {
      c.addWindow(40, 0);
      c.addKvLength({99, 12}); // an odd number of keys; rows without any
    }
    checkOutputs(c);
  }
  CpuCase paged(context, GetParam(), sizes);
  paged.movePages(20);
  paged.dropSecondMap();
  checkOutputs(paged);
}

TEST_P(PrefillValuesTest, WhatIsNotFiniteReachesNoRowThatDoesNotSeeIt) {
  for (int64_t twoPassKeys : {4096, 0}) {
    CpuCase c(context, GetParam(), {1, 2, 61, 100, 16, 21}, twoPassKeys);
    c.addWindow(40, 0);
    for (int64_t head : {0, 1}) {
      c.v.set({0, head, 20, 0}, kInfinity);
      c.v.set({0, head, 77, 0}, std::numeric_limits<float>::quiet_NaN());
    }
    checkOutputs(c);
    if (twoPassKeys)
      continue;
    c.dropSecondMap();
    checkOutputs(c);
  }
}

} // namespace
