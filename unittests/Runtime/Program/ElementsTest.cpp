//===- ElementsTest.cpp - types, sizes and elements of arrays -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/Elements.h"
#include "DiffAttn/Runtime/ABI/ElementType.h"

#include "gtest/gtest.h"

#include <cmath>

using namespace diffattn_rt;

namespace {

TEST(Elements, ByteSizesThatOverflowAreNone) {
  EXPECT_EQ(getByteSize({2, 3}, DIFFATTN_F64), 48);
  EXPECT_EQ(getByteSize({}, DIFFATTN_BF16), 2);
  EXPECT_EQ(getByteSize({0, 5}, DIFFATTN_F32), 0);
  EXPECT_EQ(getByteSize({-1}, DIFFATTN_F32), std::nullopt);
  EXPECT_EQ(getByteSize({int64_t(1) << 32, int64_t(1) << 32}, DIFFATTN_U8),
            std::nullopt);
  EXPECT_EQ(getByteSize({0, INT64_MAX, INT64_MAX}, DIFFATTN_U8), std::nullopt);
}

TEST(Elements, NamesOfTypes) {
  for (DType dtype = DIFFATTN_F32; dtype <= DIFFATTN_I16; ++dtype)
    EXPECT_EQ(parseDType(stringifyDType(dtype)), dtype);
  EXPECT_EQ(parseDType("f31"), std::nullopt);
  EXPECT_EQ(describeType({2, -1}, DIFFATTN_U8), "2x?xui8");
}

TEST(Elements, RoundToNearestEven) {
  uint16_t half;
  for (auto [value, bits] :
       {std::pair(1.0, 0x3c00), std::pair(65504.0, 0x7bff),
        std::pair(65520.0, 0x7c00), std::pair(1.0 + 0x1p-11, 0x3c00),
        std::pair(1.0 + 3 * 0x1p-11, 0x3c02), std::pair(0x1p-24, 0x0001),
        std::pair(-0.0, 0x8000)}) {
    writeElement(&half, DIFFATTN_F16, 0, value);
    EXPECT_EQ(half, bits) << value;
  }
  for (auto [value, bits] :
       {std::pair(1.0, 0x3f80), std::pair(1.0 + 0x1p-8, 0x3f80),
        std::pair(1.0 + 3 * 0x1p-8, 0x3f82)}) {
    writeElement(&half, DIFFATTN_BF16, 0, value);
    EXPECT_EQ(half, bits) << value;
  }
}

TEST(Elements, NumbersOfTypesAreThoseOfTheTable) {
  EXPECT_TRUE(isDType(DIFFATTN_F32) && isDType(DIFFATTN_I16));
  EXPECT_FALSE(isDType(-1) || isDType(DIFFATTN_I16 + 1));
}

TEST(Elements, ComeBackAsTheyWere) {
  char buffer[16];
  for (DType dtype = DIFFATTN_F32; isDType(dtype); ++dtype)
    for (double value : {0.0, 1.0, -3.0, 100.0}) {
      if ((dtype == DIFFATTN_BOOL && value != 0) ||
          (dtype == DIFFATTN_U8 && value < 0))
        continue;
      writeElement(buffer, dtype, 1, value);
      EXPECT_EQ(readElement(buffer, dtype, 1), value) << dtype;
    }
  for (DType dtype : {DIFFATTN_F16, DIFFATTN_BF16}) {
    writeElement(buffer, dtype, 0, NAN);
    EXPECT_TRUE(std::isnan(readElement(buffer, dtype, 0)));
    writeElement(buffer, dtype, 0, -1e300);
    EXPECT_EQ(readElement(buffer, dtype, 0), -INFINITY);
  }
}

} // namespace
