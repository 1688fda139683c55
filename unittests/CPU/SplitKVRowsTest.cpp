//===- SplitKVRowsTest.cpp - blocks of keys of one row come together ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SplitKVRows.h"

#include "Phase.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

constexpr float kLowest = -std::numeric_limits<float>::max();

/// A call's memory, and its layout.
struct SplitKVMemoryOfCall : SplitKVCall {
  using SplitKVCall::m;
  using SplitKVCall::paddedBlocks;
  using SplitKVCall::paddedValueDim;
  using SplitKVCall::SplitKVCall;
};

CallSizes getCallSizes(KernelBuilder &b, const CpuCase &c) {
  Value heads = b.index(c.sizes.heads);
  return {b.index(c.sizes.batch),
          heads,
          heads,
          heads,
          heads,
          heads,
          b.index(c.sizes.queries),
          b.index(c.sizes.keys),
          b.index(c.sizes.headDim),
          b.index(c.sizes.valueDim)};
}

/// Parts of the memory: maxima and sums of the maps, factors, scores, outputs;
/// then the numbers of blocks, padded, and of columns, padded, and of bytes.
enum Exposed {
  kMaxima,
  kSums = 2,
  kFactors = 4,
  kScores,
  kOutputs,
  kBlocks,
  kColumns,
  kBytes
};

class SplitKVRowsTest : public CpuPhaseTest {
protected:
  SplitKVRowsTest()
      : c(context, GetParam(), {2, 3, 2, kKeys, 8, 21}),
        memory(1 << 20, std::numeric_limits<float>::quiet_NaN()) {
    AttentionShape shape;
    shape.elementType = c.q[0].element;
    shape.headDim = c.sizes.headDim;
    shape.valueDim = c.sizes.valueDim;
    c.spec.splitKV = selectCpuSplitKV(shape, c.target);
    layout = std::make_unique<Phase>(c, [&](PhaseBuilder &p) {
      SplitKVMemoryOfCall call(p.b, c.spec, getCallSizes(p.b, c), p.context);
      for (Value part :
           {call.m.maxima[0], call.m.maxima[1], call.m.sums[0], call.m.sums[1],
            call.m.factors, call.m.scores, call.m.outputs, call.paddedBlocks,
            call.paddedValueDim, call.getSizes().stateBytes})
        p.expose(part);
    });
    layout->callMemory = memory.data();
    layout->run(0);
  }

  int64_t getBlocks() const {
    return llvm::divideCeil(kKeys, c.spec.splitKV.getKvSplitSize());
  }
  /// Queries of all heads and batches.
  int64_t getRows() const {
    return c.sizes.batch * c.sizes.heads * c.sizes.queries;
  }
  /// Row `row` of a part that has a number for each block.
  float *getHeader(int64_t part, int64_t row) const {
    return layout->getPointer<float>(part) + row * layout->getNumber(kBlocks);
  }
  /// The output of a block of keys of a query. A group has one head.
  float *getOutput(int64_t row, int64_t block) const {
    const int64_t head = row / c.sizes.queries, query = row % c.sizes.queries;
    const int64_t item = head * getBlocks() + block;
    return layout->getPointer<float>(kOutputs) +
           (item * c.sizes.queries + query) * layout->getNumber(kColumns);
  }
  void fillHeaders();

  static constexpr int64_t kKeys = 10000;
  CpuCase c;
  std::vector<float> memory;
  std::unique_ptr<Phase> layout;
};
INSTANTIATE_TEST_SUITE_P(, SplitKVRowsTest, ::testing::ValuesIn(getCaseKinds()),
                         [](const auto &kind) { return kind.param.getName(); });

/// Each third block has no key that a query sees.
void SplitKVRowsTest::fillHeaders() {
  std::uniform_real_distribution<float> maxima(-20, 20), sums(1, 500);
  for (int map : {0, 1})
    for (int64_t row = 0; row < getRows(); ++row)
      for (int64_t block = 0; block < getBlocks(); ++block) {
        const bool isSeen = (row + block) % 3 > 0;
        getHeader(kMaxima + map, row)[block] =
            isSeen ? maxima(random) : kLowest;
        getHeader(kSums + map, row)[block] = isSeen ? sums(random) : 0;
      }
}

TEST_P(SplitKVRowsTest, PartsOfTheMemoryAreApart) {
  const int64_t rows = getRows(), blocks = layout->getNumber(kBlocks);
  EXPECT_GE(blocks, getBlocks());
  EXPECT_GE(layout->getNumber(kColumns), c.sizes.valueDim);
  const int64_t counts[] = {rows * blocks,
                            rows * blocks,
                            rows * blocks,
                            rows * blocks,
                            2 * rows * blocks,
                            2 * rows * getBlocks() *
                                c.spec.splitKV.getKvSplitSize(),
                            rows * getBlocks() * c.sizes.valueDim};
  const char *begin = reinterpret_cast<const char *>(memory.data());
  auto getBegin = [&](int64_t i) {
    return layout->getPointer<char>(i) - begin;
  };
  auto getEnd = [&](int64_t i) { return getBegin(i) + 4 * counts[i]; };
  for (int64_t i = 0; i <= kOutputs; ++i) {
    EXPECT_GE(getBegin(i), 0);
    EXPECT_EQ(getBegin(i) % 64, 0);
    EXPECT_LE(getEnd(i), layout->getNumber(kBytes));
    for (int64_t j = 0; j < i; ++j)
      EXPECT_TRUE(getEnd(i) <= getBegin(j) || getEnd(j) <= getBegin(i))
          << i << " and " << j;
  }
}

TEST_P(SplitKVRowsTest, FactorsTurnExponentialsOfBlocksIntoWeights) {
  fillHeaders();
  Phase phase(c, [&](PhaseBuilder &p) {
    SplitKVRows(p.b, c.spec, getCallSizes(p.b, c), p.context)
        .emitFactors(p.index);
  });
  phase.callMemory = memory.data();
  // Maxima are in the unit of scores, of which this makes powers of two.
  const double factor = c.spec.exponentFactor().value_or(1);
  auto exponential = [&](double x) { return std::exp2(factor * x); };
  for (int64_t row = 0; row < getRows(); ++row) {
    phase.run(row);
    for (int map : {0, 1}) {
      const float *maxima = getHeader(kMaxima + map, row),
                  *sums = getHeader(kSums + map, row);
      const double highest = *std::max_element(maxima, maxima + getBlocks());
      double sum = 0;
      for (int64_t block = 0; block < getBlocks(); ++block)
        sum += sums[block] * exponential(maxima[block] - highest);
      // Lambda is 0.5.
      const double weight = (map ? -0.5 : 1) / sum;
      for (int64_t block = 0; block < getBlocks(); ++block) {
        const double expected = exponential(maxima[block] - highest) * weight;
        ASSERT_NEAR(getHeader(kFactors, 2 * row + map)[block], expected,
                    3e-5 * std::abs(expected) + 1e-30)
            << "row " << row << ", map " << map << ", block " << block;
      }
    }
  }
}

TEST_P(SplitKVRowsTest, OutputsOfBlocksAreAddedWhereAKeyIsSeen) {
  fillHeaders();
  Tensor result(Float32Type::get(&context), {2, 3, 2, 21});
  c.setOutput(result);
  // Blocks without a visible key keep the output that lay in memory.
  std::normal_distribution<float> normal;
  for (int64_t row = 0; row < getRows(); ++row)
    for (int64_t block = 0; block < getBlocks(); ++block)
      if (getHeader(kSums, row)[block] != 0)
        for (int64_t i = 0; i < layout->getNumber(kColumns); ++i)
          getOutput(row, block)[i] = normal(random);
  Phase phase(c, [&](PhaseBuilder &p) {
    SplitKVRows(p.b, c.spec, getCallSizes(p.b, c), p.context)
        .emitMerge(p.index, p.scratch);
  });
  phase.callMemory = memory.data();
  for (int64_t row = 0; row < getRows(); ++row) {
    phase.run(row);
    for (int64_t column = 0; column < c.sizes.valueDim; ++column) {
      double sum = 0;
      for (int64_t block = 0; block < getBlocks(); ++block)
        if (getHeader(kSums, row)[block] != 0)
          sum += getOutput(row, block)[column];
      ASSERT_NEAR(result.get({row / 6, row / 2 % 3, row % 2, column}), sum,
                  1e-5 * getBlocks())
          << "row " << row << ", column " << column;
    }
  }
}

} // namespace
