//===- CpuScheduleTest.cpp - choice of CPU schedules ----------------------===//
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
  CpuPrefillAttr select(StringRef isa, Type element) {
    return selectCpuPrefill(shape(element), *getCpuTarget(isa));
  }
  CpuSplitKVAttr selectSplit(StringRef isa, Type element) {
    return selectCpuSplitKV(shape(element), *getCpuTarget(isa));
  }
  ArrayRef<StringRef> isas() { return getCpuIsaNames().drop_front(); }
  SmallVector<Type> types() {
    Builder b(&context);
    return {b.getF32Type(), b.getBF16Type(), b.getF16Type()};
  }
  MLIRContext context;
};

TEST_F(CpuScheduleTest, TilesFitTheRegisters) {
  for (StringRef isa : isas())
    for (Type type : types()) {
      CpuTarget target = *getCpuTarget(isa);
      CpuPrefillAttr s = select(isa, type);
      EXPECT_EQ(s.getLanes() * 4, target.vectorBytes);
      if (s.getProduct() == CpuProduct::Bf16Tiles) {
        // Sums and operands take eight tiles. A product takes 52 cycles and
        // begins 16 after the one before it.
        for (int64_t sums : {s.getQk().height / 16 * s.getQk().vectors,
                             s.getPv().height / 16 * s.getPv().vectors}) {
          EXPECT_LE(sums + 2, 8) << isa.str();
          EXPECT_GE(sums, 4) << isa.str();
        }
        continue;
      }
      // Sums, the vectors that a step loads, and the number that is broadcast.
      for (const RegisterTile &tile : {s.getQk(), s.getPv()}) {
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
      CpuPrefillAttr s = select(isa, type);
      EXPECT_EQ(s.getQBlockSize() % (s.getLanes() * s.getQk().vectors), 0)
          << isa.str();
      EXPECT_EQ(s.getQBlockSize() % s.getPv().height, 0) << isa.str();
      EXPECT_EQ(s.getKvBlockSize() % s.getQk().height, 0) << isa.str();
      // Pairs of keys must not lie in two KV blocks.
      EXPECT_EQ(s.getKvBlockSize() % 2, 0) << isa.str();
      CpuSplitKVAttr split = selectSplit(isa, type);
      EXPECT_EQ(split.getKvSplitSize() % split.getLanes(), 0) << isa.str();
      EXPECT_EQ(s.getTwoPassKeys() % s.getKvBlockSize(), 0) << isa.str();
    }
}

TEST_F(CpuScheduleTest, ScratchIsBounded) {
  for (StringRef isa : isas()) {
    CpuTarget target = *getCpuTarget(isa);
    CpuPrefillAttr s = select(isa, types()[0]);
    // A KV block's scores of both maps and its probabilities stay in the second
    // cache; those of all keys are at most 6 MiB.
    EXPECT_LE(3 * s.getKvBlockSize() * s.getQBlockSize() * 4, target.l2Bytes)
        << isa.str();
    EXPECT_LE(2 * s.getTwoPassKeys() * s.getQBlockSize() * 4, int64_t{6} << 20)
        << isa.str();
  }
}

TEST_F(CpuScheduleTest, Bf16DotsOnlyWhereTheCpuAndTheTypeHaveThem) {
  for (StringRef isa : isas())
    for (Type type : types())
      for (float scale : {1.0f, 0.0f, -1.0f}) {
        AttentionShape scaled = shape(type);
        scaled.scale = scale;
        // The scale waits until after the product, and keeps the order.
        bool pairs = isa == "avx512bf16" && type.isBF16() && scale > 0.0f;
        CpuTarget target = *getCpuTarget(isa);
        // Tiles too.
        bool tiles = target.hasTiles() && type.isBF16() && scale > 0.0f;
        for (CpuProduct product :
             {selectCpuPrefill(scaled, target).getProduct(),
              selectCpuSplitKV(scaled, target).getProduct()}) {
          EXPECT_EQ(product == CpuProduct::Bf16Pairs, pairs) << isa.str();
          EXPECT_EQ(product == CpuProduct::Bf16Tiles, tiles) << isa.str();
        }
      }
}

/// On 16 registers, where a key or a value that is read again is widened again.
TEST_F(CpuScheduleTest, HeadsThatShareKeysMeetThemTogether) {
  for (StringRef isa : {"avx2", "generic"})
    for (Type type : types()) {
      AttentionShape shared = shape(type);
      shared.group = 4;
      shared.valueDim = 128;
      const CpuTarget target = *getCpuTarget(isa);
      const CpuSplitKVAttr split = selectCpuSplitKV(shared, target);
      EXPECT_EQ(split.getQkRows(), 4) << isa.str();
      EXPECT_EQ(split.getPvRows(), type.isF32() ? 1 : 4) << isa.str();
      // A tile of values of this width is prefetched.
      EXPECT_EQ(split.getPvKeys() * 128 * type.getIntOrFloatBitWidth() / 8,
                split.getPrefetchBytes())
          << isa.str();
      shared.group = 1;
      const int64_t alone = selectCpuSplitKV(shared, target).getPrefetchBytes();
      EXPECT_EQ(alone > 0, !type.isF32()) << isa.str();
      // A distance given by the user is taken.
      for (int64_t bytes : {0, 512}) {
        llvm::Expected<CpuTarget> given = getCpuTarget(isa, bytes);
        ASSERT_TRUE(bool(given));
        for (int64_t group : {1, 4}) {
          shared.group = group;
          EXPECT_EQ(selectCpuSplitKV(shared, *given).getPrefetchBytes(), bytes);
        }
      }
    }
}

/// Every row is whole, is chosen for something, and the last one for anything.
TEST_F(CpuScheduleTest, EveryMicroKernelIsWhole) {
  ArrayRef<CpuMicroKernel> rows = getCpuMicroKernels();
  for (const CpuMicroKernel &row : rows) {
    for (const RegisterTile &tile : {row.qk, row.pv}) {
      EXPECT_GT(tile.height, 0) << row.name.str();
      EXPECT_GT(tile.unroll, 0) << row.name.str();
      if (!usesTiles(row.product))
        EXPECT_LT(tile.height * tile.vectors, row.registers) << row.name.str();
    }
    EXPECT_EQ(row.kvBlockSize % row.qk.height, 0) << row.name.str();
    bool chosen = false;
    for (const CpuTarget &target : getCpuTargets())
      for (Type type : types())
        chosen |= &row == llvm::find_if(rows, [&](const CpuMicroKernel &other) {
          return other.takes(shape(type), target);
        });
    EXPECT_TRUE(chosen) << row.name.str();
  }
  for (const CpuTarget &target : getCpuTargets())
    for (Type type : types())
      EXPECT_TRUE(rows.back().takes(shape(type), target)) << target.name.str();
}

/// Sizes may be anything, known or not: no arithmetic on them overflows.
TEST_F(CpuScheduleTest, SizesOfAnyMagnitude) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (StringRef isa : isas())
    for (Type type : types()) {
      for (int64_t size : {int64_t{0}, int64_t{1}, int64_t{1} << 40, kMax}) {
        AttentionShape sized = shape(type);
        sized.queries = sized.keys = sized.headDim = sized.valueDim = size;
        // A row's result must not depend on which sizes are static.
        CpuTarget target = *getCpuTarget(isa);
        EXPECT_EQ(selectCpuPrefill(sized, target), select(isa, type));
        EXPECT_EQ(selectCpuSplitKV(sized, target).getKvSplitSize(),
                  selectSplit(isa, type).getKvSplitSize());
      }
    }
}

/// Few queries, where their number is known; else both kernels, of which few
/// queries of many keys take the first.
TEST_F(CpuScheduleTest, QueriesAndKeysDecideTheKernel) {
  CpuTarget target = *getCpuTarget("avx2");
  constexpr int64_t dynamic = ShapedType::kDynamic;
  for (auto [queries, keys, split, prefill] :
       {std::tuple<int64_t, int64_t, bool, bool>{1, dynamic, true, false},
        {8, 4, true, false},
        {9, dynamic, false, true},
        {dynamic, dynamic, true, true},
        {dynamic, 9, true, true},
        {dynamic, 8, false, true}}) {
    AttentionShape sized = shape(types()[0]);
    sized.queries = queries;
    sized.keys = keys;
    SmallVector<Attribute> list = selectCpuSchedules(sized, target);
    EXPECT_EQ(list.size(), size_t{split} + prefill) << queries << " " << keys;
    EXPECT_EQ(isa<CpuPrefillAttr>(list.back()), prefill);
    if (!split)
      continue;
    if (!prefill) {
      EXPECT_TRUE(isa<CpuSplitKVAttr>(list.front()));
      continue;
    }
    auto when = dyn_cast<WhenAttr>(list.front());
    ASSERT_TRUE(when);
    EXPECT_TRUE(isa<CpuSplitKVAttr>(when.getSchedule()));
    EXPECT_EQ(when.getMaxQueries(), 8);
    EXPECT_EQ(when.getMinKeys(), 9);
  }
}

} // namespace
