//===- MaskTest.cpp - masks against plain enumeration ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "NumericMasks.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Testing/Reference/Attention.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"

#include "gtest/gtest.h"

#include <cmath>
#include <random>

using namespace mlir;
using namespace mlir::diffattn;

namespace {
constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(),
                  kHighest = std::numeric_limits<int64_t>::max();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// The masks of an op, as written, and the numbers of its operands.
struct Case {
  MaskNumbers numbers;
  bool causal = false;
  std::optional<std::pair<int64_t, int64_t>> window;
};

std::string describe(const Case &c) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << c.numbers.queries << " queries, " << c.numbers.keys << " keys";
  if (c.numbers.kvLen)
    os << ", kv_len " << *c.numbers.kvLen;
  if (c.numbers.qOffset)
    os << ", q_offset " << *c.numbers.qOffset;
  if (c.causal)
    os << ", causal";
  if (c.window)
    os << ", window " << c.window->first << " " << c.window->second;
  if (!c.numbers.qSegments.empty())
    os << ", segments";
  if (!c.numbers.bias.empty())
    os << (c.numbers.biasIsBoolean ? ", boolean mask" : ", bias");
  return text;
}

/// Whether each query sees each key by the reference: [query][key].
std::vector<bool> getVisiblePairs(const Case &c) {
  using reference::Element;
  const MaskNumbers &n = c.numbers;
  reference::AttentionArguments arguments;
  arguments.q1.sizes = {1, 1, n.queries, 1};
  arguments.k1.sizes = {1, 1, n.keys, 1};
  auto integers = [](const int64_t *data, std::vector<int64_t> sizes) {
    return reference::View(data, Element::I64, std::move(sizes));
  };
  if (n.kvLen)
    arguments.kvLen = integers(&*n.kvLen, {1});
  if (n.qOffset)
    arguments.qOffset = integers(&*n.qOffset, {1});
  if (!n.qSegments.empty()) {
    arguments.qSegments = integers(n.qSegments.data(), {1, n.queries});
    arguments.kvSegments = integers(n.kvSegments.data(), {1, n.keys});
  }
  const std::vector<uint8_t> flags(n.bias.begin(), n.bias.end());
  const std::vector<int64_t> ofPairs = {1, 1, n.queries, n.keys};
  if (n.biasIsBoolean)
    arguments.bias = reference::View(flags.data(), Element::Bool, ofPairs);
  else if (!n.bias.empty())
    arguments.bias = reference::View(n.bias.data(), Element::F64, ofPairs);
  arguments.isCausal = c.causal;
  if (c.window)
    std::tie(arguments.left, arguments.right) = *c.window;
  std::vector<bool> pairs;
  for (int64_t i = 0; i < n.queries; ++i)
    for (int64_t j = 0; j < n.keys; ++j) {
      double bias;
      pairs.push_back(reference::isVisible(arguments, 0, 0, i, j, bias));
    }
  return pairs;
}

class MaskTest : public ::testing::Test {
protected:
  MaskTest() { context.loadDialect<DiffAttnDialect, func::FuncDialect>(); }

  /// The masks of an attention with the case's operands and attributes.
  SmallVector<MaskAttrInterface> getMasks(const Case &c, bool online = false) {
    std::string text;
    llvm::raw_string_ostream os(text);
    const MaskNumbers &n = c.numbers;
    const bool givesOffset = n.qOffset || online;
    std::string bias =
        n.biasIsBoolean ? "tensor<1x1x?x?xi1>" : "tensor<1x1x?x?xf32>";
    const std::string x = "tensor<1x1x?x4xf32>", row = "tensor<1x1x?xf32>";
    os << "func.func @f(%x: " << x << ", %l: tensor<f32>, %b: " << bias
       << ", %n: tensor<1xi64>, %s: tensor<1x?xi64>, %r: " << row << ") {\n";
    os << (online ? "%o:6 = diffattn.online_attention"
                  : "%o = diffattn.attention")
       << " ins(%x, %x, %x, %x, %x : " << x << ", " << x << ", " << x << ", "
       << x << ", " << x << ")";
    if (!online)
      os << " lambda(%l : tensor<f32>)";
    if (!n.bias.empty())
      os << " bias(%b : " << bias << ")";
    if (n.kvLen)
      os << " kv_len(%n : tensor<1xi64>)";
    if (givesOffset)
      os << " q_offset(%n : tensor<1xi64>)";
    if (!n.qSegments.empty())
      os << " q_segments(%s : tensor<1x?xi64>) kv_segments(%s : "
            "tensor<1x?xi64>)";
    if (online)
      os << " outs(%r, %r, %x, %r, %r, %x : " << row << ", " << row << ", " << x
         << ", " << row << ", " << row << ", " << x << ")";
    else
      os << " outs(%x : " << x << ")";
    os << " {scale = 1.0 : f32";
    if (c.causal)
      os << ", is_causal";
    if (c.window)
      os << ", window = array<i64: " << c.window->first << ", "
         << c.window->second << ">";
    os << "} -> ";
    if (online)
      os << row << ", " << row << ", " << x << ", " << row << ", " << row
         << ", " << x;
    else
      os << x;
    os << "\nreturn\n}\n";
    module = parseSourceString<ModuleOp>(text, &context);
    EXPECT_TRUE(module) << text;
    SmallVector<MaskAttrInterface> masks;
    if (module)
      module->walk([&](Operation *op) {
        if (auto attention = dyn_cast<AttentionOp>(op))
          masks = attention.getMasks();
        if (auto step = dyn_cast<OnlineAttentionOp>(op))
          masks = step.getMasks();
      });
    return masks;
  }

  void check(const Case &c);
  void checkTiles(const Case &c);

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
};

MaskValue number(int64_t x) { return NumericMasks::number(x); }

/// `value` within the keys, or `otherwise` where it is null.
int64_t clampKey(MaskValue value, int64_t keys, int64_t otherwise) {
  return value ? std::clamp<int64_t>(NumericMasks::number(value), 0, keys)
               : otherwise;
}

/// Ranges of all tiles of queries, and predicates of all pairs.
void MaskTest::check(const Case &c) {
  SCOPED_TRACE(describe(c));
  SmallVector<MaskAttrInterface> masks = getMasks(c);
  EXPECT_EQ(masks, getMasks(c, /*online=*/true));
  NumericMasks b(c.numbers);
  const int64_t queries = c.numbers.queries, keys = c.numbers.keys;
  const std::vector<bool> pairs = getVisiblePairs(c);
  auto isVisible = [&](int64_t i, int64_t j) { return pairs[i * keys + j]; };
  bool areIntervals = llvm::all_of(
      masks, [](MaskAttrInterface mask) { return mask.isInterval(); });
  const bool areRanges = c.numbers.bias.empty() && c.numbers.qSegments.empty();
  EXPECT_EQ(areIntervals, areRanges);
  EXPECT_EQ(readPosition(masks), c.causal || c.window.has_value());

  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < keys; ++j) {
      MaskPoint point{number(i), number(j)};
      MaskValue visible;
      for (MaskAttrInterface mask : masks)
        visible = b.bothIfAny(visible, mask.isVisible(b, point));
      EXPECT_EQ(!visible || NumericMasks::number(visible), isVisible(i, j))
          << "query " << i << ", key " << j;
    }

  for (int64_t first = 0; first < queries; ++first)
    for (int64_t last = first; last < queries; ++last) {
      VisibleRange range;
      for (MaskAttrInterface mask : masks)
        range = intersect(
            b, range, mask.getVisibleRange(b, {number(first), number(last)}));
      const int64_t begin = clampKey(range.begin, keys, 0),
                    end = clampKey(range.end, keys, keys),
                    wholeBegin = clampKey(range.wholeBegin, keys, 0),
                    wholeEnd = clampKey(range.wholeEnd, keys, keys);
      EXPECT_EQ(range.knowsWhole, areRanges);
      for (int64_t j = 0; j < keys; ++j) {
        int64_t count = 0;
        for (int64_t i = first; i <= last; ++i)
          count += isVisible(i, j);
        const bool some = j >= begin && j < end,
                   all = range.knowsWhole && j >= wholeBegin && j < wholeEnd;
        SCOPED_TRACE("queries " + std::to_string(first) + " to " +
                     std::to_string(last) + ", key " + std::to_string(j));
        // Without elements to look at, ranges are exact.
        if (areIntervals) {
          EXPECT_EQ(some, count > 0);
          EXPECT_EQ(all, count == last - first + 1);
        }
        EXPECT_TRUE(some || count == 0);
        EXPECT_FALSE(all && count < last - first + 1);
      }
    }
}

/// Checks the relation of all tiles of queries and keys by segments alone.
void MaskTest::checkTiles(const Case &c) {
  SCOPED_TRACE(describe(c));
  SmallVector<MaskAttrInterface> masks = getMasks(c);
  NumericMasks b(c.numbers);
  auto forTiles = [](int64_t n, function_ref<void(int64_t, int64_t)> body) {
    for (int64_t first = 0; first < n; ++first)
      for (int64_t last = first; last < n; ++last)
        body(first, last);
  };
  forTiles(c.numbers.queries, [&](int64_t q0, int64_t q1) {
    forTiles(c.numbers.keys, [&](int64_t k0, int64_t k1) {
      int64_t count = 0;
      for (int64_t i = q0; i <= q1; ++i)
        for (int64_t j = k0; j <= k1; ++j)
          count += c.numbers.qSegments[i] == c.numbers.kvSegments[j];
      TileRelation relation = getTileRelation(
          b, masks, {number(q0), number(q1)}, {number(k0), number(k1)});
      SCOPED_TRACE("queries " + std::to_string(q0) + " to " +
                   std::to_string(q1) + ", keys " + std::to_string(k0) +
                   " to " + std::to_string(k1));
      // All is exact; none may stay unseen where the ranges of numbers meet.
      EXPECT_EQ(NumericMasks::number(relation.all) != 0,
                count == (q1 - q0 + 1) * (k1 - k0 + 1));
      if (NumericMasks::number(relation.none))
        EXPECT_EQ(count, 0);
      if (q0 == q1 && k0 == k1)
        EXPECT_EQ(NumericMasks::number(relation.none) != 0, count == 0);
    });
  });
}

TEST_F(MaskTest, SegmentsOfAnyNumbers) {
  Case c;
  c.numbers.queries = 5;
  c.numbers.keys = 6;
  for (const auto &[queries, keys] :
       {std::pair<std::vector<int64_t>, std::vector<int64_t>>{
            {0, 0, 1, 1, 2}, {0, 0, 1, 1, 2, 2}},
        {{2, 0, 2, 1, 1}, {1, 2, 2, 0, 3, 1}},
        {{kLowest, kHighest, -1, 0, kLowest},
         {kHighest, kHighest, kLowest, 1, -1, 0}},
        // Equal in their lower 32 bits.
        {{3, 3, 3 + (int64_t(1) << 32), -1, 0xffffffff},
         {3, 3 + (int64_t(1) << 32), -1, 0xffffffff, 7, 3}},
        {{4, 4, 4, 4, 4}, {4, 4, 4, 4, 4, 4}},
        {{1, 1, 1, 1, 1}, {2, 2, 0, 0, 2, 0}}}) {
    c.numbers.qSegments = queries;
    c.numbers.kvSegments = keys;
    check(c);
    checkTiles(c);
  }
}

TEST_F(MaskTest, NoMaskHidesNothing) {
  Case c;
  c.numbers.queries = 3;
  c.numbers.keys = 4;
  EXPECT_TRUE(getMasks(c).empty());
  check(c);
}

TEST_F(MaskTest, LengthBeyondBothEnds) {
  for (int64_t length : {kLowest, int64_t(-1), int64_t(0), int64_t(1),
                         int64_t(5), int64_t(6), int64_t(7), kHighest})
    for (bool causal : {false, true}) {
      Case c;
      c.numbers.queries = 3;
      c.numbers.keys = 6;
      c.numbers.kvLen = length;
      c.causal = causal;
      check(c);
    }
}

TEST_F(MaskTest, PositionsSaturate) {
  const int64_t offsets[] = {kLowest, kLowest + 1, -7,           -1,      0,
                             2,       7,           kHighest - 1, kHighest};
  const int64_t reaches[] = {-1, 0, 1, 3, 100, kHighest - 1, kHighest};
  for (int64_t offset : offsets)
    for (int64_t left : reaches)
      for (int64_t right : reaches)
        for (bool causal : {false, true}) {
          Case c;
          c.numbers.queries = 3;
          c.numbers.keys = 5;
          c.numbers.qOffset = offset;
          c.window = {left, right};
          c.causal = causal;
          check(c);
        }
}

TEST_F(MaskTest, OffsetByDefaultSaturates) {
  for (int64_t length :
       {kLowest, kLowest + 2, int64_t(-4), int64_t(0), kHighest - 1, kHighest})
    for (int64_t right : {int64_t(0), int64_t(3), kHighest - 3, kHighest}) {
      Case c;
      c.numbers.queries = 4;
      c.numbers.keys = 5;
      c.numbers.kvLen = length;
      c.window = {right, right};
      check(c);
    }
}

TEST_F(MaskTest, BiasHidesOnlyMinusInfinity) {
  Case c;
  c.numbers.queries = 1;
  c.numbers.keys = 6;
  c.numbers.bias = {0.0,  -kInf,   kInf,
                    -0.0, -3.4e38, std::numeric_limits<double>::quiet_NaN()};
  check(c);
  SmallVector<MaskAttrInterface> masks = getMasks(c);
  ASSERT_EQ(masks.size(), 1u);
  EXPECT_TRUE(masks[0].hasScoreTerm());
  NumericMasks b(c.numbers);
  MaskValue term = masks[0].getScoreTerm(b, {number(0), number(4)});
  EXPECT_EQ(llvm::bit_cast<double>(term.getBits()), -3.4e38);
}

TEST_F(MaskTest, BooleanMaskAddsNothing) {
  Case c;
  c.numbers.queries = 2;
  c.numbers.keys = 3;
  c.numbers.bias = {1, 0, 1, 0, 0, 1};
  c.numbers.biasIsBoolean = true;
  check(c);
  SmallVector<MaskAttrInterface> masks = getMasks(c);
  ASSERT_EQ(masks.size(), 1u);
  EXPECT_FALSE(masks[0].hasScoreTerm());
}

TEST_F(MaskTest, RandomMasksTogether) {
  std::mt19937_64 random(7);
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 1500; ++round) {
    Case c;
    c.numbers.queries = pick(0, 7);
    c.numbers.keys = pick(0, 9);
    if (pick(0, 1))
      c.numbers.kvLen = pick(-2, 12);
    if (pick(0, 1))
      c.numbers.qOffset = pick(-12, 12);
    c.causal = pick(0, 1);
    if (pick(0, 1))
      c.window = {pick(-1, 5), pick(-1, 5)};
    c.numbers.biasIsBoolean = pick(0, 1);
    if (pick(0, 2) == 0 && c.numbers.queries && c.numbers.keys)
      for (int64_t i = 0; i < c.numbers.queries * c.numbers.keys; ++i)
        c.numbers.bias.push_back(pick(0, 2)                ? 1.0
                                 : c.numbers.biasIsBoolean ? 0.0
                                                           : -kInf);
    else
      c.numbers.biasIsBoolean = false;
    if (pick(0, 2) == 0 && c.numbers.queries && c.numbers.keys) {
      for (int64_t i = 0; i < c.numbers.queries; ++i)
        c.numbers.qSegments.push_back(pick(-1, 1));
      for (int64_t j = 0; j < c.numbers.keys; ++j)
        c.numbers.kvSegments.push_back(pick(-1, 1));
      checkTiles(c);
    }
    check(c);
    if (HasFailure())
      return;
  }
}
} // namespace
