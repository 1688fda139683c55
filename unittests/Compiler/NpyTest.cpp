//===- NpyTest.cpp - arrays in .npy files ---------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Npy.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Program/Elements.h"

#include "llvm/Support/FileSystem.h"
#include "gtest/gtest.h"

#include <cmath>
#include <cstring>

using namespace mlir::diffattn;
using namespace diffattn_rt;

namespace {

TEST(Npy, FilesComeBack) {
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
