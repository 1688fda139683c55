//===- HostArrayTest.cpp - sizes, elements, files -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/HostArray.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "llvm/Support/FileSystem.h"
#include "gtest/gtest.h"

#include <cmath>
#include <cstring>

using namespace mlir::diffattn;
using namespace diffattn_rt;

namespace {

TEST(HostArray, ByteSizesThatOverflowAreNone) {
  EXPECT_EQ(getByteSize({2, 3}, DIFFATTN_F64), 48);
  EXPECT_EQ(getByteSize({}, DIFFATTN_BF16), 2);
  EXPECT_EQ(getByteSize({0, 5}, DIFFATTN_F32), 0);
  EXPECT_EQ(getByteSize({-1}, DIFFATTN_F32), std::nullopt);
  EXPECT_EQ(getByteSize({int64_t(1) << 32, int64_t(1) << 32}, DIFFATTN_U8),
            std::nullopt);
  EXPECT_EQ(getByteSize({0, INT64_MAX, INT64_MAX}, DIFFATTN_U8), std::nullopt);
}

TEST(HostArray, NamesOfTypes) {
  for (DType dtype = DIFFATTN_F32; dtype <= DIFFATTN_I16; ++dtype)
    EXPECT_EQ(parseDType(stringifyDType(dtype)), dtype);
  EXPECT_EQ(parseDType("f31"), std::nullopt);
  EXPECT_EQ(describeType({2, -1}, DIFFATTN_U8), "2x?xui8");
}

TEST(HostArray, ElementsRoundToNearestEven) {
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

TEST(HostArray, FilesComeBack) {
  llvm::SmallString<128> path;
  ASSERT_FALSE(
      llvm::sys::fs::createTemporaryFile("diffattn-test", "npy", path));
  const std::vector<std::vector<int64_t>> shapes = {
      {}, {3}, {2, 3}, {2, 0, 4}, {1, 2, 3, 4}};
  for (DType dtype = DIFFATTN_F32; dtype <= DIFFATTN_I16; ++dtype)
    for (const std::vector<int64_t> &shape : shapes) {
      auto array = createArray(dtype, shape);
      ASSERT_TRUE(static_cast<bool>(array));
      for (int64_t i = 0; i < array->getNumElements(); ++i)
        writeElement(array->data.get(), dtype, i, double(i % 2));
      auto error = writeNpy(path, array->data.get(), dtype, shape);
      ASSERT_FALSE(static_cast<bool>(error));
      auto back = readNpy(path);
      ASSERT_TRUE(static_cast<bool>(back));
      EXPECT_EQ(back->dtype, dtype);
      EXPECT_EQ(llvm::ArrayRef<int64_t>(back->shape),
                llvm::ArrayRef<int64_t>(shape));
      EXPECT_EQ(
          memcmp(back->data.get(), array->data.get(), array->getNumBytes()), 0);
    }
  llvm::sys::fs::remove(path);
}

} // namespace
