//===- PrefillMasksTest.cpp - keys of a block of queries, enumerated ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Phase.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

class PrefillMasksTest : public CpuPhaseTest {
protected:
  void check(CpuCase &c);
};
INSTANTIATE_TEST_SUITE_P(, PrefillMasksTest,
                         ::testing::ValuesIn(getCaseKinds()),
                         [](const auto &kind) { return kind.param.getName(); });

/// A KV block as a kernel visits it, and the keys that rows take of it.
struct Visit {
  int64_t number, first, n, isPartial, low, lowSlope, high, highSlope;

  int64_t getLow(int64_t row) const {
    return std::max<int64_t>(low + row * lowSlope, 0);
  }
  int64_t getHigh(int64_t row) const {
    return std::min(high + row * highSlope, n);
  }
  /// Whether the row takes key `key`, counted from the first of all.
  bool takes(int64_t row, int64_t key) const {
    return key - first >= getLow(row) && key - first < getHigh(row);
  }
};

/// Numbers of the exposed count of visits and of the visits.
constexpr int64_t kCount = 8, kVisits = 16;

/// Exposes the ranges of keys, then the KV blocks in the order of visits.
void emitVisits(ScoringBuilder &p) {
  KernelBuilder &b = p.b;
  KeyPartition keys = p.scoring.cutKeys(p.item, p.s);
  p.scoring.relateKvBlocks(p.item, p.s, keys);
  for (Value value :
       {keys.visible.low, keys.visible.high, keys.blocks, p.s.lows, p.s.highs})
    p.expose(value);
  Value count = b.at(p.exposed, b.i64, b.index(kCount));
  p.scoring.forKvBlocks(p.s, keys, [&](Value number) {
    KvBlock kvBlock = p.scoring.getKvBlock(p.s, keys, number);
    RowRange range = p.scoring.getRowRange(p.item, kvBlock);
    Value isPartial = b.index(0);
    if (kvBlock.partial)
      isPartial = b.select(kvBlock.partial, b.index(1), b.index(0));
    const Value numbers[] = {number,     kvBlock.first,  kvBlock.n,
                             isPartial,  range.low,      range.lowSlope,
                             range.high, range.highSlope};
    Value visit = b.load(b.i64, count, b.i64, b.index(0));
    Value to = b.at(p.exposed, b.i64,
                    b.add(b.mul(visit, std::size(numbers)), kVisits));
    for (auto [i, value] : llvm::enumerate(numbers))
      b.store(value, to, b.i64, b.index(i));
    b.store(b.add(visit, 1), count, b.i64, b.index(0));
  });
}

/// One block of queries, and a phase's ranges of its keys.
struct BlockCheck {
  const CpuCase &c;
  const Phase &phase;
  int64_t batch, firstRow, rows;

  int64_t getSeenLow() const { return phase.getNumber(0); }
  int64_t getSeenHigh() const { return phase.getNumber(1); }
  ArrayRef<Visit> getVisits() const {
    return ArrayRef<Visit>(phase.getExposed<const Visit>(kVisits),
                           phase.getNumber(kCount));
  }

  void checkRanges() const;
  void checkCover() const;
  void checkRelations() const;
  void checkRowRanges() const;
};

/// Whether `is` holds of some pair, or of all, of a row and a key of `visit`.
template <typename Is>
bool anyPair(const BlockCheck &block, const Visit &visit, Is is) {
  for (int64_t row = 0; row < block.rows; ++row)
    for (int64_t key = visit.first; key < visit.first + visit.n; ++key)
      if (is(row, key))
        return true;
  return false;
}

/// Each query has the range of the keys that it sees by its position, and the
/// block that of all.
void BlockCheck::checkRanges() const {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t key = 0; key < c.sizes.keys; ++key) {
      const bool isVisible = c.isInRange(batch, firstRow + row, key);
      if (isVisible)
        EXPECT_TRUE(key >= getSeenLow() && key < getSeenHigh());
      if (!c.spec.hasPositionMask())
        continue;
      ASSERT_EQ(isVisible, key >= phase.getPointer<int32_t>(3)[row] &&
                               key < phase.getPointer<int32_t>(4)[row])
          << "row " << firstRow + row << ", key " << key;
    }
}

/// KV blocks follow each other within the keys that are seen, and every pair
/// that is visible lies in one of them.
void BlockCheck::checkCover() const {
  int64_t lastNumber = -1, end = getSeenLow();
  std::vector<bool> isVisited(c.sizes.keys);
  for (const Visit &visit : getVisits()) {
    EXPECT_GT(visit.number, lastNumber);
    EXPECT_LT(visit.number, phase.getNumber(2));
    EXPECT_GE(visit.first, end);
    EXPECT_GE(visit.n, 1);
    EXPECT_LE(visit.n, CpuCase::kKvBlockSize);
    lastNumber = visit.number;
    end = visit.first + visit.n;
    ASSERT_LE(end, getSeenHigh());
    std::fill_n(isVisited.begin() + visit.first, visit.n, true);
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t key = 0; key < c.sizes.keys; ++key)
      if (c.isVisible(batch, firstRow + row, key))
        ASSERT_TRUE(isVisited[key]) << "row " << row << ", key " << key;
}

/// A block that is not partial is seen by every query as a whole. With a
/// boolean mask alone the converse holds as well, and no block is visited for
/// nothing.
void BlockCheck::checkRelations() const {
  const bool isExact =
      c.spec.bias().present() && c.spec.scores.masks.size() == 1;
  for (const Visit &visit : getVisits()) {
    auto isVisible = [&](int64_t row, int64_t key) {
      return c.isVisible(batch, firstRow + row, key);
    };
    const bool hidesSome = anyPair(
        *this, visit, [&](auto row, auto key) { return !isVisible(row, key); });
    if (isExact) {
      EXPECT_EQ(visit.isPartial, hidesSome) << visit.first;
      EXPECT_TRUE(anyPair(*this, visit, isVisible)) << visit.first;
    } else if (hidesSome) {
      EXPECT_TRUE(visit.isPartial) << visit.first;
    }
  }
}

/// Products take just the keys that a row sees by its position.
void BlockCheck::checkRowRanges() const {
  for (const Visit &visit : getVisits())
    EXPECT_FALSE(anyPair(*this, visit, [&](int64_t row, int64_t key) {
      return visit.takes(row, key) != c.isInRange(batch, firstRow + row, key);
    })) << visit.first;
}

void PrefillMasksTest::check(CpuCase &c) {
  Phase phase(c, [&](PhaseBuilder &p) {
    ScoringBuilder scoring(p, c.spec);
    emitVisits(scoring);
  });
  forEachQueryBlock(c, phase, [&](const QueryBlock &block) {
    BlockCheck check{c, phase, block.batch, block.firstRow, block.rows};
    check.checkRanges();
    check.checkCover();
    check.checkRelations();
    check.checkRowRanges();
  });
}

TEST_P(PrefillMasksTest, PositionsCutKeysIntoRanges) {
  for (auto [queries, keys] : {std::pair(1, 1), {50, 50}, {130, 200}, {90, 40}})
    for (auto [left, right] : {std::pair(-1, -1),
                               {-1, 0},
                               {20, -1},
                               {0, 0},
                               {-1, 30},
                               {33, 70},
                               {500, 500}}) {
      CpuCase c(context, GetParam(), {1, 1, queries, keys, 4, 4});
      if (left >= 0 || right >= 0)
        c.addWindow(left, right);
      check(c);
    }
}

TEST_P(PrefillMasksTest, LengthsOfBatchesEndTheKeys) {
  CpuCase c(context, GetParam(), {4, 1, 60, 100, 4, 4});
  c.addKvLength({100, 63, 1, 0});
  check(c);
  c.addWindow(25, 0);
  check(c);
}

/// Runs of one segment, of random lengths.
std::vector<int64_t> makeSegments(std::mt19937 &random, int64_t count) {
  std::vector<int64_t> result(count);
  int64_t segment = -1;
  for (int64_t i = 0; i < count; ++i)
    result[i] = segment += random() % 40 == 0;
  return result;
}

TEST_P(PrefillMasksTest, SegmentsLeaveBlocksOut) {
  CpuCase c(context, GetParam(), {2, 1, 200, 200, 4, 4});
  std::vector<int64_t> segments = makeSegments(random, 400);
  c.addSegments(segments, segments);
  check(c);
  c.addWindow(-1, 0);
  check(c);
}

TEST_P(PrefillMasksTest, BooleanMasksLeaveBlocksOut) {
  const int64_t queries = 100, keys = 150;
  std::vector<uint8_t> flags(2 * queries * keys);
  // In each tile of 64 queries and 32 keys, none, all or some are visible.
  for (size_t i = 0; i < flags.size(); ++i) {
    const int64_t kind = (i / keys / 64 + i % keys / 32) % 3;
    flags[i] = kind == 0 ? 0 : kind == 1 ? 1 : random() % 2;
  }
  CpuCase c(context, GetParam(), {2, 1, queries, keys, 4, 4});
  c.addBooleanMask(flags);
  check(c);
}

} // namespace
