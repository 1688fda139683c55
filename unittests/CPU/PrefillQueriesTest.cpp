//===- PrefillQueriesTest.cpp - a block of queries before the keys --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Phase.h"

#include "DiffAttn/Semantics/AttentionMath.h"

#include <cmath>
#include <cstring>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

class PrefillQueriesTest : public CpuPhaseTest {};
INSTANTIATE_TEST_SUITE_P(, PrefillQueriesTest,
                         ::testing::ValuesIn(getCaseKinds()),
                         [](const auto &kind) { return kind.param.getName(); });

TEST_P(PrefillQueriesTest, AnItemIsABlockOfOneHead) {
  CpuCase c(context, GetParam(), {2, 3, 100, 8, 4, 4});
  Phase phase(c, [&](PhaseBuilder &p) {
    ScoringBuilder scoring(p, c.spec);
    const PrefillItem &item = scoring.item;
    for (Value value : {item.batch, item.heads.signal, item.heads.noise,
                        item.firstRow, item.rows, item.vectors})
      scoring.expose(value);
  });
  forEachQueryBlock(c, phase, [&](const QueryBlock &block) {
    const int64_t lanes = c.spec.prefill.getLanes();
    const int64_t expected[] = {block.batch, block.head,
                                block.head,  block.firstRow,
                                block.rows,  (block.rows + lanes - 1) / lanes};
    for (auto [i, number] : llvm::enumerate(expected))
      EXPECT_EQ(phase.getNumber(i), number) << i;
  });
}

/// Number `column` of lane `lane` of packed queries, as f32.
float getPacked(const CpuCase &c, const char *queries, int64_t column,
                int64_t lane) {
  const ProductAtom &atom = c.spec.getAtom();
  const int64_t stride = c.spec.prefill.getQBlockSize();
  return readNumber(queries,
                    atom.pack * (column / atom.pack * stride + lane) +
                        column % atom.pack,
                    /*isBf16=*/atom.pack == 2);
}

TEST_P(PrefillQueriesTest, QueriesAreColumnsOfLanes) {
  for (int64_t headDim : {1, 8, 37, 64})
    for (bool hasSoftcap : {false, true}) {
      CpuCase c(context, GetParam(), {2, 2, 61, 8, headDim, 4});
      if (hasSoftcap)
        c.setSoftcap(3.0f);
      Phase phase(c, [&](PhaseBuilder &p) {
        ScoringBuilder scoring(p, c.spec);
        scoring.scoring.packQueries(scoring.item, scoring.s);
        for (Value queries : scoring.s.queries)
          scoring.expose(queries);
      });
      const ProductAtom &atom = c.spec.getAtom();
      // Softcap takes scores themselves, not exponents of two.
      float scale = 1.0f;
      if (atom.scalesQueries)
        scale = hasSoftcap ? 0.25f : 0.25f * kLog2E;
      const int64_t padded =
          llvm::alignTo(headDim, atom.usesTiles ? 32 : atom.pack);
      forEachQueryBlock(c, phase, [&](const QueryBlock &block) {
        const int64_t lanes =
            llvm::alignTo(block.rows, c.spec.prefill.getLanes());
        for (int map : {0, 1})
          for (int64_t lane = 0; lane < lanes; ++lane)
            for (int64_t column = 0; column < padded; ++column) {
              // Lanes past the last query repeat it.
              const int64_t row =
                  std::min(lane, block.rows - 1) + block.firstRow;
              const float query =
                  column < headDim
                      ? c.q[map].get({block.batch, block.head, row, column})
                      : 0.0f;
              ASSERT_EQ(getPacked(c, phase.getPointer<char>(map), column, lane),
                        query * scale)
                  << "lane " << lane << ", column " << column;
            }
      });
    }
}

TEST_P(PrefillQueriesTest, LambdaIsActivatedForEachQuery) {
  for (bool isSigmoid : {false, true}) {
    CpuCase c(context, GetParam(), {2, 2, 61, 8, 4, 4});
    // [batch][head][query]
    Tensor lambda(Float32Type::get(&context), {2, 2, 61, 1});
    lambda.fill(random);
    c.setLambda(lambda, isSigmoid);
    Phase phase(c, [&](PhaseBuilder &p) {
      ScoringBuilder scoring(p, c.spec);
      scoring.scoring.packLambda(scoring.item, scoring.s);
      scoring.expose(scoring.s.lambda);
    });
    forEachQueryBlock(c, phase, [&](const QueryBlock &block) {
      for (int64_t row = 0; row < block.rows; ++row) {
        const double expected =
            reference::lambdaAt(c.getArguments(), block.batch, block.head,
                                block.head, block.firstRow + row);
        EXPECT_NEAR(phase.getPointer<float>(0)[row], expected, 1e-6);
      }
    });
  }
}

} // namespace
