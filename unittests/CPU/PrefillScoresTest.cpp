//===- PrefillScoresTest.cpp - scores and exponentials against double -----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Phase.h"

#include "DiffAttn/Semantics/AttentionMath.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(),
                kLowest = -std::numeric_limits<float>::max();

class PrefillScoresTest : public CpuPhaseTest {};
INSTANTIATE_TEST_SUITE_P(, PrefillScoresTest,
                         ::testing::ValuesIn(getCaseKinds()),
                         [](const auto &kind) { return kind.param.getName(); });

/// The factor of scores after the product: 1 unless they are exponents of two
/// then.
double getUnit(const CpuCase &c) {
  if (c.spec.editsEveryScore())
    return 1;
  return c.spec.getAtom().scalesQueries ? kLog2E : 1 / c.spec.scores.scale;
}

/// The relative tolerance of exponentials of a type: polynomials are of degree
/// 3 where products round their results to bf16.
double getTolerance(const CpuCase &c) {
  return c.spec.getAtom().exponentDegree == 3 ? 4e-4 : 3e-5;
}

/// The exponential of key `key` of a KV block in lane `lane`.
float getWeight(const CpuCase &c, const char *weights, int64_t key,
                int64_t lane) {
  const int64_t stride = c.spec.prefill.getQBlockSize();
  return c.spec.getAtom().usesTiles
             ? readNumber(weights, 2 * (key / 2 * stride + lane) + key % 2,
                          /*isBf16=*/true)
             : readNumber(weights, key * stride + lane, /*isBf16=*/false);
}

/// Sets `newMaxima` as a KV block finds it.
void emitNewMaxima(ScoringBuilder &p, int map) {
  p.scoring.forEachVector(p.item, [&](Value lane) {
    p.b.store(p.b.load(p.b.vector, p.s.maxima[map], lane), p.s.newMaxima, lane);
  });
}

/// A phase that scores keys of a map, and edits them. Inputs: the first key and
/// their number.
Phase makeScores(CpuCase &c, int map, bool edits) {
  return Phase(c, [&](PhaseBuilder &phase) {
    ScoringBuilder p(phase, c.spec);
    emitBegin(p.scoring, p.item, p.s);
    KvBlock kvBlock{p.getInput(0), p.getInput(1), p.b.boolean(true)};
    // The bias is packed with the scores of the first map.
    for (int scored = 0; scored <= map; ++scored) {
      MapScores place = p.scoring.getMapScores(p.s, scored, p.b.index(0));
      emitNewMaxima(p, scored);
      p.scoring.scoreKeys(p.item, p.s, kvBlock, p.heads.base[scored], place);
      if (edits)
        p.scoring.editScores(p.item, p.s, kvBlock, place);
      if (scored == map)
        p.expose(place.scores);
    }
    p.expose(p.s.newMaxima);
  });
}

/// The factor of scores that are not edited, as products leave them.
double getRawUnit(const CpuCase &c) {
  if (!c.spec.getAtom().scalesQueries)
    return 1 / c.spec.scores.scale;
  return c.spec.foldsLog2E() ? kLog2E : 1;
}

/// The expected scores of a row, edited, for all keys.
std::vector<double> getScores(const CpuCase &c, const QueryBlock &block,
                              int map, int64_t row) {
  return reference::mapRow(c.getArguments(), map, block.batch, block.head,
                           block.firstRow + row)
      .logits;
}

/// Keys [first, first + n) of one map.
struct ScoredKeys {
  int64_t first, n;
  int map;
};

void checkBlock(const CpuCase &c, const Phase &phase, const QueryBlock &block,
                const ScoredKeys &keys, bool edits) {
  const float *scores = phase.getPointer<float>(0);
  // Raw scores are those of cases without masks.
  const double unit = edits ? getUnit(c) : getRawUnit(c);
  for (int64_t row = 0; row < block.rows; ++row) {
    const std::vector<double> expectedScores =
        getScores(c, block, keys.map, row);
    float highest = kLowest;
    for (int64_t i = 0; i < keys.n; ++i) {
      const float score = scores[i * c.spec.prefill.getQBlockSize() + row];
      const double expected = unit * expectedScores[keys.first + i];
      if (std::isinf(expected))
        ASSERT_EQ(score, -kInf);
      else
        ASSERT_NEAR(score, expected, 2e-5 * (1 + std::abs(expected)))
            << "row " << row << ", key " << keys.first + i;
      highest = std::max(highest, score);
    }
    ASSERT_EQ(phase.getPointer<float>(1)[row], highest) << row;
  }
}

void checkScores(CpuCase &c, bool edits, ArrayRef<int> maps) {
  for (int map : maps) {
    Phase phase = makeScores(c, map, edits);
    for (const ScoredKeys &keys :
         {ScoredKeys{0, 32, map}, {32, 13, map}, {44, 1, map}})
      forEachQueryBlock(c, phase,
                        [&](const QueryBlock &block) {
                          checkBlock(c, phase, block, keys, edits);
                        },
                        {keys.first, keys.n});
  }
}

TEST_P(PrefillScoresTest, RawScoresAreScaledProducts) {
  for (auto [queries, headDim] : {std::pair(3, 1), {75, 37}, {75, 64}}) {
    CpuCase c(context, GetParam(), {1, 2, queries, 45, headDim, 4});
    checkScores(c, /*edits=*/false, {0, 1});
  }
}

TEST_P(PrefillScoresTest, EditedScoresAreThoseOfTheMasks) {
  const CaseSizes sizes{2, 2, 57, 45, 8, 4};
  CpuCase windowed(context, GetParam(), sizes);
  windowed.addWindow(20, 7);
  checkScores(windowed, /*edits=*/true, 1);
  CpuCase capped(context, GetParam(), sizes);
  capped.setSoftcap(1.5f);
  capped.addWindow(-1, 0);
  checkScores(capped, /*edits=*/true, 1);
  CpuCase flagged(context, GetParam(), sizes);
  std::vector<uint8_t> flags(2 * 57 * 45);
  for (uint8_t &flag : flags)
    flag = random() % 3 > 0;
  flagged.addBooleanMask(flags);
  checkScores(flagged, /*edits=*/true, 1);
  CpuCase segmented(context, GetParam(), sizes);
  std::vector<int64_t> ids[2] = {std::vector<int64_t>(2 * 57),
                                 std::vector<int64_t>(2 * 45)};
  for (std::vector<int64_t> &list : ids)
    for (int64_t &id : list)
      id = random() % 3;
  segmented.addSegments(ids[0], ids[1]);
  checkScores(segmented, /*edits=*/true, 1);
  CpuCase biased(context, GetParam(), sizes);
  Tensor bias(biased.q[0].element, {2, 2, 57, 45});
  bias.fill(random);
  bias.set({0, 1, 3, 5}, -kInf);
  biased.addBias(bias);
  biased.setSoftcap(1.5f);
  checkScores(biased, /*edits=*/true, {0, 1});
}

//===----------------------------------------------------------------------===//
// Exponentials
//===----------------------------------------------------------------------===//

/// Parts that are exposed of each map, behind the first seen key.
enum MapPart { kMaxima, kSums, kFactors, kHistory, kScores, kParts };
/// Number of the first exposed pair of first key and number of keys of a KV
/// block.
constexpr int64_t kBlocks = 32, kMaxBlocks = 32;

void emitScores(ScoringBuilder &p) {
  KeyPartition keys = emitBegin(p.scoring, p.item, p.s);
  p.expose(keys.visible.low);
  for (int map : {0, 1})
    for (Value part : {p.s.maxima[map], p.s.sums[map], p.s.factors[map],
                       p.s.history[map], p.s.scores[map]})
      p.expose(part ? part : p.scratch);
  p.scoring.forKvBlocks(p.s, keys, [&](Value number) {
    p.scoring.scoreKvBlock(p.item, p.s, p.heads, keys, number);
    KvBlock kvBlock = p.scoring.getKvBlock(p.s, keys, number);
    Value to = p.b.at(p.exposed, p.b.i64, p.b.add(p.b.mul(number, 2), kBlocks));
    p.b.store(kvBlock.first, to, p.b.i64, p.b.index(0));
    p.b.store(kvBlock.n, to, p.b.i64, p.b.index(1));
  });
}

/// One row of a block of queries by one map, followed over its KV blocks.
class RowCheck {
public:
  RowCheck(const CpuCase &c, const Phase &phase, const QueryBlock &block,
           int map, int64_t row)
      : c(c), phase(phase), map(map), row(row),
        scores(getScores(c, block, map, row)) {}

  void run();

private:
  bool isTwoPass() const {
    return c.spec.prefill.getTwoPassKeys() >= c.sizes.keys;
  }
  float getPart(MapPart part, int64_t number = 0) const {
    const int64_t stride = c.spec.prefill.getQBlockSize();
    return phase.getPointer<float>(1 + map * kParts +
                                   part)[number * stride + row];
  }
  /// Maxima are in the unit of scores, but for those of no key.
  void expectMaximum(float maximum) const;
  void take(int64_t number, int64_t first, int64_t n);
  /// The exponentials of the KV block that begins with `first`, relative to the
  /// maximum of its time.
  void checkWeights(int64_t first, int64_t n) const;

  const CpuCase &c;
  const Phase &phase;
  const int map;
  const int64_t row;
  /// With the bias; minus infinity where a key is hidden.
  const std::vector<double> scores;
  double before = kLowest, highest = kLowest, sum = 0;
};

void RowCheck::expectMaximum(float maximum) const {
  const double expected = highest * getUnit(c);
  if (highest == kLowest)
    ASSERT_EQ(maximum, kLowest);
  else
    ASSERT_NEAR(maximum, expected, 2e-5 * (1 + std::abs(expected)));
}

void RowCheck::checkWeights(int64_t first, int64_t n) const {
  const int64_t position = isTwoPass() ? first - phase.getNumber(0) : 0;
  const int64_t pack = c.spec.getAtom().usesTiles ? 2 : 1;
  const char *weights = phase.getPointer<char>(1 + map * kParts + kScores) +
                        4 * position / pack * c.spec.prefill.getQBlockSize();
  // bf16 has 8 bits.
  const double tolerance = pack == 2 ? 4.5e-3 : getTolerance(c);
  for (int64_t i = 0; i < n; ++i) {
    const double score = scores[first + i],
                 expected = std::exp(score - highest);
    const float weight = getWeight(c, weights, i, row);
    if (score != -kInf)
      ASSERT_NEAR(weight, expected, tolerance * expected + 1e-30)
          << "row " << row << ", key " << first + i;
    else
      ASSERT_EQ(weight, 0.0f) << "row " << row << ", key " << first + i;
  }
}

void RowCheck::take(int64_t number, int64_t first, int64_t n) {
  before = highest;
  for (int64_t key = first; key < first + n; ++key)
    highest = std::max(highest, scores[key]);
  sum *= std::exp(before - highest);
  for (int64_t key = first; key < first + n; ++key)
    sum += std::exp(scores[key] - highest);
  if (!isTwoPass())
    return;
  expectMaximum(getPart(kHistory, number));
  checkWeights(first, n);
}

void RowCheck::run() {
  const auto *blocks = phase.getExposed<const std::array<int64_t, 2>>(kBlocks);
  int64_t last = -1;
  for (int64_t number = 0; number < kMaxBlocks; ++number)
    if (const auto [first, n] = blocks[number]; n) {
      take(number, first, n);
      last = number;
    }
  expectMaximum(getPart(kMaxima));
  ASSERT_NEAR(getPart(kSums), sum, getTolerance(c) * sum) << row;
  if (last < 0)
    return;
  ASSERT_NEAR(getPart(kFactors), std::exp(before - highest), 1e-5) << row;
  if (!isTwoPass())
    checkWeights(blocks[last][0], blocks[last][1]);
}

void checkExponentials(CpuCase &c) {
  Phase phase(c, [&](PhaseBuilder &builder) {
    ScoringBuilder p(builder, c.spec);
    emitScores(p);
  });
  forEachQueryBlock(c, phase, [&](const QueryBlock &block) {
    for (int map : {0, 1})
      for (int64_t row = 0; row < block.rows; ++row)
        RowCheck(c, phase, block, map, row).run();
  });
}

TEST_P(PrefillScoresTest, ExponentialsFollowTheMaximaOfKvBlocks) {
  const CaseSizes sizes{2, 2, 75, 139, 16, 4};
  CpuCase plain(context, GetParam(), sizes);
  checkExponentials(plain);
  // All KV blocks have a place, or share one.
  for (int64_t twoPassKeys : {4096, 0}) {
    CpuCase causal(context, GetParam(), sizes, twoPassKeys);
    causal.addWindow(60, 0);
    causal.addKvLength({139, 12}); // 63 queries of batch 1 see no key
    checkExponentials(causal);
  }
  CpuCase capped(context, GetParam(), sizes);
  capped.setSoftcap(2.0f);
  checkExponentials(capped);
  CpuCase segmented(context, GetParam(), sizes);
  std::vector<int64_t> ids(2 * 139);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = i / 50;
  segmented.addSegments(std::vector<int64_t>(ids.begin(), ids.begin() + 150),
                        ids);
  checkExponentials(segmented);
}

TEST_P(PrefillScoresTest, ExponentialsAreThoseOfSizesFromTheContext) {
  for (int64_t twoPassKeys : {4096, 0}) {
    CpuCase c(context, GetParam(), {2, 2, 75, 139, 19, 4}, twoPassKeys);
    c.addWindow(-1, 0);
    c.forgetSizes();
    checkExponentials(c);
  }
}

TEST_P(PrefillScoresTest, ExponentialsOfPagedKeysAreThoseOfDenseOnes) {
  for (int64_t pageRows : {4, 70}) {
    CpuCase c(context, GetParam(), {2, 2, 50, 140, 19, 4});
    c.addWindow(-1, 0);
    c.movePages(pageRows);
    checkExponentials(c);
  }
}

} // namespace
