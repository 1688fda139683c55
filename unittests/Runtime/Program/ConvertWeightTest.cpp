//===- ConvertWeightTest.cpp - weights as declared, from those stored -----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/ConvertWeight.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "gtest/gtest.h"

#include <cmath>
#include <cstring>

using namespace diffattn_rt;

namespace {

WeightDeclaration declare(DType dtype, std::vector<int64_t> shape) {
  WeightDeclaration declared;
  declared.name = "w";
  declared.dtype = dtype;
  declared.shape = std::move(shape);
  return declared;
}

struct Bound {
  diffattn_weight slot;
  std::vector<HostArray> owned;
  Bound(const WeightDeclaration &declared, const void *data, DType dtype) {
    Failure failure = convertWeight(
        declared, {static_cast<const char *>(data), dtype}, slot, owned);
    EXPECT_FALSE(failure) << failure.getMessage();
  }
  template <typename T>
  std::vector<T> read() const {
    const T *first = static_cast<const T *>(slot.data);
    return {first, first + slot.rows * slot.cols};
  }
};

TEST(BindWeight, VectorsAreReadWhereTheyLie) {
  // Also by products that take them for matrices: bindings rely on it.
  const float data[6] = {};
  auto flagsOf = [&](std::vector<int64_t> shape) {
    return Bound(declare(DIFFATTN_F32, std::move(shape)), data, DIFFATTN_F32)
        .slot.flags;
  };
  EXPECT_EQ(flagsOf({}), DIFFATTN_WEIGHT_NO_PACK);
  EXPECT_EQ(flagsOf({6}), DIFFATTN_WEIGHT_NO_PACK);
  EXPECT_EQ(flagsOf({2, 3}), 0);
  EXPECT_EQ(flagsOf({1, 6}), 0);
}

TEST(BindWeight, FiniteNumbersAreAskedFor) {
  // Also of elements that are converted, and with the place in the file.
  for (DType dtype : {DIFFATTN_F32, DIFFATTN_BF16}) {
    float data[6] = {0, 1, 2, 3, -INFINITY, 5};
    WeightDeclaration declared = declare(dtype, {2, 3});
    diffattn_weight slot;
    std::vector<HostArray> owned;
    WeightSource source{reinterpret_cast<const char *>(data), DIFFATTN_F32,
                        "s.7"};
    EXPECT_FALSE(convertWeight(declared, source, slot, owned));
    declared.finite = true;
    Failure failure = convertWeight(declared, source, slot, owned);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure.getMessage(), "weight 's.7': expected finite numbers, "
                                    "but got -inf in row 1, column 1");
    data[4] = NAN;
    EXPECT_TRUE(convertWeight(declared, source, slot, owned));
    data[4] = 4;
    EXPECT_FALSE(convertWeight(declared, source, slot, owned));
  }
}

TEST(BindWeight, StaysWhereItLies) {
  float data[6] = {};
  Bound bound(declare(DIFFATTN_F32, {2, 3}), data, DIFFATTN_F32);
  EXPECT_EQ(bound.slot.data, data);
  EXPECT_TRUE(bound.owned.empty());
  EXPECT_EQ(bound.slot.rows, 2);
  EXPECT_EQ(bound.slot.cols, 3);
}

TEST(BindWeight, IsCopiedFromWhereNoElementMayLie) {
  // A file's header may have any length.
  alignas(4) char file[13] = {};
  const float data[3] = {1, 2, 3};
  memcpy(file + 1, data, sizeof data);
  Bound bound(declare(DIFFATTN_F32, {3}), file + 1, DIFFATTN_F32);
  EXPECT_EQ(bound.owned.size(), 1u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bound.slot.data) % 4, 0u);
  EXPECT_EQ(bound.read<float>(), (std::vector<float>{1, 2, 3}));
}

TEST(BindWeight, TransposesAndMovesRowBlocks) {
  int32_t data[8] = {0, 1, 2, 3, 4, 5, 6, 7}; // [2, 4] in the file
  WeightDeclaration declared = declare(DIFFATTN_I32, {4, 2});
  declared.transpose = true;
  declared.rowBlockSize = 2;
  declared.rowBlocks = {1, 0};
  Bound bound(declared, data, DIFFATTN_I32);
  EXPECT_EQ(bound.read<int32_t>(),
            (std::vector<int32_t>{2, 6, 3, 7, 0, 4, 1, 5}));
}

TEST(BindWeight, RoundsOnce) {
  // 1 + 2^-8 + 2^-30 is above the middle of two bf16, but its f32 is not.
  double data[2] = {1 + 0x1p-8 + 0x1p-30, 1 + 0x1p-8};
  Bound bound(declare(DIFFATTN_BF16, {2}), data, DIFFATTN_F64);
  EXPECT_EQ(bound.read<uint16_t>(), (std::vector<uint16_t>{0x3f81, 0x3f80}));
}

TEST(BindWeight, TruthIsZeroOrOne) {
  unsigned char data[3] = {0, 1, 7};
  Bound bound(declare(DIFFATTN_BOOL, {3}), data, DIFFATTN_BOOL);
  EXPECT_EQ(bound.read<uint8_t>(), (std::vector<uint8_t>{0, 1, 1}));
}

TEST(BindWeight, ConvertsAmongFloatsAlone) {
  EXPECT_TRUE(canConvertWeight(DIFFATTN_BF16, DIFFATTN_F32));
  EXPECT_TRUE(canConvertWeight(DIFFATTN_I8, DIFFATTN_I8));
  EXPECT_FALSE(canConvertWeight(DIFFATTN_I8, DIFFATTN_F32));
}

} // namespace
