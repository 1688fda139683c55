//===- SplitKVScheduleTest.cpp - tiles for few queries --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/CpuSchedule.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

class SplitKVSchedule : public ::testing::Test {
protected:
  SplitKVSchedule() { context.loadDialect<DiffAttnDialect>(); }

  CpuSplitKVAttr select(const CpuTarget &target, Type type, int64_t valueDim) {
    AttentionShape shape;
    shape.elementType = type;
    shape.valueDim = valueDim;
    return selectCpuSplitKV(shape, target);
  }

  MLIRContext context;
  Type f16 = Float16Type::get(&context), bf16 = BFloat16Type::get(&context),
       f32 = Float32Type::get(&context);
};

TEST_F(SplitKVSchedule, TilesFitTheRegisters) {
  for (const CpuTarget &target : getCpuTargets())
    for (Type type : {f16, bf16, f32})
      for (int64_t dv :
           {ShapedType::kDynamic, int64_t{8}, int64_t{128}, int64_t{1024}}) {
        CpuSplitKVAttr tiles = select(target, type, dv);
        // Queries, sums of each row, and the key.
        EXPECT_LE(tiles.getQVectors() + tiles.getQkRows() + 1,
                  target.vectorRegisters);
        // Sums, a weight of each row and the value, but for one row that is
        // read to its end.
        if (tiles.getOVectors() > target.vectorRegisters / 2)
          EXPECT_EQ(tiles.getPvRows(), 1);
        else
          EXPECT_LE(tiles.getOVectors() + tiles.getPvRows() + 1,
                    target.vectorRegisters);
        EXPECT_EQ(tiles.getLanes() * 4, target.vectorBytes);
        EXPECT_EQ(tiles.getIsa(), target.name);
      }
}

TEST_F(SplitKVSchedule, WideRowsAreReadToTheirEnds) {
  for (const CpuTarget &target : getCpuTargets()) {
    constexpr int64_t unknown = ShapedType::kDynamic;
    CpuSplitKVAttr any = select(target, f16, unknown);
    const int64_t usual = any.getORowVectors() * any.getLanes();
    // An unknown width takes the schedule of the usual ones.
    EXPECT_EQ(select(target, f16, usual), any);
    for (int64_t columns : {usual + 1, 2 * usual, 4 * usual}) {
      CpuSplitKVAttr wide = select(target, f16, columns);
      EXPECT_GE(wide.getORowVectors() * any.getLanes(), columns);
      EXPECT_GE(wide.getOVectors(), wide.getORowVectors());
      EXPECT_EQ(wide.getPvKeys(), any.getPvKeys());
    }
    // Beyond that in passes, over few keys.
    CpuSplitKVAttr widest = select(target, f16, 4 * usual + 1);
    EXPECT_EQ(widest.getORowVectors(), any.getORowVectors());
    EXPECT_LT(widest.getPvKeys(), any.getPvKeys());
    // As many bytes of values for every type, whatever multiplies them.
    EXPECT_EQ(select(target, bf16, unknown).getPvKeys(), any.getPvKeys());
    EXPECT_EQ(select(target, f32, unknown).getPvKeys(), any.getPvKeys() / 2);
  }
}

/// Whole rows, unless heads that share values had to widen them once each.
TEST_F(SplitKVSchedule, WideRowsOfHeadsThatShareValues) {
  for (const CpuTarget &target : getCpuTargets())
    for (Type type : {f16, bf16, f32}) {
      AttentionShape shape;
      shape.elementType = type;
      shape.group = 4;
      shape.valueDim = 16 * target.vectorBytes / 4;
      CpuSplitKVAttr tiles = selectCpuSplitKV(shape, target);
      const bool isWhole =
          type.isF32() || tiles.getProduct() == CpuProduct::Bf16Pairs;
      EXPECT_EQ(tiles.getORowVectors(), isWhole ? 16 : 8) << target.name.str();
    }
}

} // namespace
