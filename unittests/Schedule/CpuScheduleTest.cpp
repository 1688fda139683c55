//===- CpuScheduleTest.cpp - how a CPU kernel is cut ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/CpuSchedule.h"

#include "llvm/ADT/STLExtras.h"

#include "gtest/gtest.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

class CpuScheduleTest : public ::testing::Test {
protected:
  CpuScheduleTest() { context.loadDialect<DiffAttnDialect>(); }

  AttentionShape shape(Type element) {
    AttentionShape result;
    result.elementType = element;
    return result;
  }
  CpuSchedule select(StringRef isa, Type element) {
    return selectCpuSchedule(shape(element), *getCpuTarget(isa));
  }
  ArrayRef<StringRef> isas() { return getCpuIsaNames().drop_front(); }
  SmallVector<Type> types() {
    Builder b(&context);
    return {b.getF32Type(), b.getBF16Type(), b.getF16Type()};
  }
  static bool same(const CpuSchedule &a, const CpuSchedule &b,
                   MLIRContext *context) {
    CpuTarget target = *getCpuTarget("avx2");
    return getScheduleAttr(context, a, target) ==
           getScheduleAttr(context, b, target);
  }

  MLIRContext context;
};

TEST_F(CpuScheduleTest, TilesFitTheRegisters) {
  for (StringRef isa : isas())
    for (Type type : types()) {
      CpuTarget target = *getCpuTarget(isa);
      CpuSchedule s = select(isa, type);
      EXPECT_EQ(s.lanes * 4, target.vectorBytes);
      // Sums, the vectors that a step loads, and the number that is broadcast.
      for (const RegisterTile &tile : {s.scores, s.product}) {
        EXPECT_LE(tile.height * tile.vectors + tile.vectors + 1,
                  target.vectorRegisters)
            << isa.str();
        // Enough sums to hide the latency of multiply-adds: two units, four
        // cycles.
        EXPECT_GE(tile.height * tile.vectors, 8) << isa.str();
      }
    }
}

TEST_F(CpuScheduleTest, SizesDivideOneAnother) {
  for (StringRef isa : isas())
    for (Type type : types()) {
      CpuSchedule s = select(isa, type);
      EXPECT_EQ(s.rows % (s.lanes * s.scores.vectors), 0) << isa.str();
      EXPECT_EQ(s.rows % s.product.height, 0) << isa.str();
      EXPECT_EQ(s.kvBlockSize % s.scores.height, 0) << isa.str();
      // Pairs of keys must not lie in two KV blocks.
      EXPECT_EQ(s.kvBlockSize % 2, 0) << isa.str();
      EXPECT_EQ(s.splitKeys % s.lanes, 0) << isa.str();
      EXPECT_EQ(s.twoPassKeys % s.kvBlockSize, 0) << isa.str();
    }
}

TEST_F(CpuScheduleTest, ScratchIsBounded) {
  for (StringRef isa : isas()) {
    CpuTarget target = *getCpuTarget(isa);
    CpuSchedule s = select(isa, types()[0]);
    // A KV block's scores of both maps and its probabilities stay in the second
    // cache; those of all keys are at most 6 MiB.
    EXPECT_LE(3 * s.kvBlockSize * s.rows * 4, target.l2Bytes) << isa.str();
    EXPECT_LE(2 * s.twoPassKeys * s.rows * 4, int64_t{6} << 20) << isa.str();
  }
}

TEST_F(CpuScheduleTest, Bf16DotsOnlyWhereTheCpuAndTheTypeHaveThem) {
  for (StringRef isa : isas())
    for (Type type : types())
      EXPECT_EQ(select(isa, type).bf16Dot, isa == "avx512bf16" && type.isBF16())
          << isa.str();
}

/// Every row is whole, is chosen for something, and the last one for anything.
TEST_F(CpuScheduleTest, EveryMicroKernelIsWhole) {
  ArrayRef<CpuMicroKernel> rows = getCpuMicroKernels();
  for (const CpuMicroKernel &row : rows) {
    for (const RegisterTile &tile : {row.scores, row.product}) {
      EXPECT_GT(tile.height, 0) << row.name.str();
      EXPECT_GT(tile.unroll, 0) << row.name.str();
      EXPECT_LT(tile.height * tile.vectors, row.registers) << row.name.str();
    }
    EXPECT_EQ(row.kvBlockSize % row.scores.height, 0) << row.name.str();
    bool chosen = false;
    for (const CpuTarget &target : getCpuTargets())
      for (Type type : types())
        chosen |= &row == llvm::find_if(rows, [&](const CpuMicroKernel &other) {
          return other.takes(type, target);
        });
    EXPECT_TRUE(chosen) << row.name.str();
  }
  for (const CpuTarget &target : getCpuTargets())
    for (Type type : types())
      EXPECT_TRUE(rows.back().takes(type, target)) << target.name.str();
}

/// Sizes may be anything, known or not: no arithmetic on them overflows.
TEST_F(CpuScheduleTest, SizesOfAnyMagnitude) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (StringRef isa : isas())
    for (Type type : types()) {
      CpuSchedule unknown = select(isa, type);
      for (int64_t size : {int64_t{0}, int64_t{1}, int64_t{1} << 40, kMost}) {
        AttentionShape sized = shape(type);
        sized.queries = sized.keys = sized.headDim = sized.valueDim = size;
        // A row's result must not depend on what is known of the shape.
        EXPECT_TRUE(same(selectCpuSchedule(sized, *getCpuTarget(isa)), unknown,
                         &context));
      }
    }
}

TEST_F(CpuScheduleTest, TheAttributeHoldsEveryNumber) {
  for (StringRef isa : isas())
    for (Type type : types()) {
      CpuTarget target = *getCpuTarget(isa);
      CpuSchedule s = select(isa, type);
      ScheduleAttr attr = getScheduleAttr(&context, s, target);
      EXPECT_EQ(attr.getPath(), SchedulePath::Nest);
      EXPECT_EQ(attr.getIsa(), isa);
      CpuSchedule back = getCpuSchedule(attr);
      EXPECT_EQ(back.lanes, s.lanes);
      EXPECT_EQ(back.rows, s.rows);
      for (auto [x, y] : {std::pair(back.scores, s.scores),
                          std::pair(back.product, s.product)}) {
        EXPECT_EQ(x.height, y.height);
        EXPECT_EQ(x.vectors, y.vectors);
        EXPECT_EQ(x.unroll, y.unroll);
      }
      EXPECT_EQ(back.kvBlockSize, s.kvBlockSize);
      EXPECT_EQ(back.twoPassKeys, s.twoPassKeys);
      EXPECT_EQ(back.splitRows, s.splitRows);
      EXPECT_EQ(back.splitKeys, s.splitKeys);
      EXPECT_EQ(back.bf16Dot, s.bf16Dot);
    }
  EXPECT_EQ(getLinalgScheduleAttr(&context).getPath(), SchedulePath::Linalg);
}

} // namespace
