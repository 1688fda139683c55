//===- OverlapTest.cpp - arrays that share memory -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/Overlap.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "gtest/gtest.h"

#include <random>
#include <set>

using namespace diffattn_rt;

namespace {

/// A view of an array whose elements lie from byte `first` on.
struct View {
  int64_t first;
  DType dtype;
  std::vector<int64_t> shape, strides;

  ArrayView get() const {
    ArrayView view;
    view.data = reinterpret_cast<void *>(0x10000 + first);
    view.dtype = dtype;
    view.shape = shape;
    view.strides = SizeList(strides);
    return view;
  }

  /// Every byte, once for each index that leads to it.
  std::multiset<int64_t> bytes() const {
    std::multiset<int64_t> result;
    std::vector<int64_t> starts = {first};
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      std::vector<int64_t> next;
      for (int64_t start : starts)
        for (int64_t i = 0; i < shape[axis]; ++i)
          next.push_back(start + i * strides[axis] * getDTypeBytes(dtype));
      starts = std::move(next);
    }
    for (int64_t start : starts)
      for (int64_t byte = 0; byte < getDTypeBytes(dtype); ++byte)
        result.insert(start + byte);
    return result;
  }
};

bool shareSlowly(const View &a, const View &b) {
  const std::multiset<int64_t> other = b.bytes();
  for (int64_t byte : a.bytes())
    if (other.count(byte))
      return true;
  return false;
}

TEST(Overlap, ViewsOfOneArray) {
  // Keys and values side by side in rows of 8 share nothing.
  const View keys{0, DIFFATTN_F32, {6, 4}, {8, 1}},
      values{16, DIFFATTN_F32, {6, 4}, {8, 1}},
      both{0, DIFFATTN_F32, {6, 8}, {8, 1}}, none{0, DIFFATTN_F32, {0}, {1}};
  EXPECT_FALSE(shareMemory(keys.get(), values.get()));
  EXPECT_TRUE(shareMemory(keys.get(), both.get()));
  EXPECT_TRUE(shareMemory(both.get(), values.get()));
  EXPECT_FALSE(shareMemory(both.get(), none.get()));
}

TEST(Overlap, HalvesOfAnElement) {
  const View wide{0, DIFFATTN_F64, {4}, {2}};
  for (int64_t first : {0, 4, 7})
    EXPECT_TRUE(
        shareMemory(wide.get(), View{first, DIFFATTN_BOOL, {}, {}}.get()));
  EXPECT_FALSE(shareMemory(wide.get(), View{8, DIFFATTN_F32, {2}, {1}}.get()));
}

TEST(Overlap, WithoutStridesRowsFollowEachOther) {
  const std::vector<int64_t> shape = {4, 4};
  ArrayView rows;
  rows.data = reinterpret_cast<void *>(0x10000);
  rows.shape = shape;
  EXPECT_TRUE(shareMemory(rows, View{60, DIFFATTN_F32, {1}, {1}}.get()));
  EXPECT_FALSE(shareMemory(rows, View{64, DIFFATTN_F32, {1}, {1}}.get()));
}

TEST(Overlap, RandomViewsAsByCounting) {
  std::mt19937 random(7);
  auto number = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const DType dtypes[] = {DIFFATTN_F32, DIFFATTN_F16, DIFFATTN_F64,
                          DIFFATTN_BOOL};
  auto make = [&] {
    View view{number(0, 150), dtypes[number(0, 3)], {}, {}};
    for (int64_t axis = number(0, 3); axis > 0; --axis) {
      view.shape.push_back(number(axis == 3 ? 0 : 1, 5));
      view.strides.push_back(number(-7, 20));
    }
    return view;
  };
  int shared = 0;
  for (int i = 0; i < 5000; ++i) {
    const View a = make(), b = make();
    const bool expected = shareSlowly(a, b);
    shared += expected;
    EXPECT_EQ(shareMemory(a.get(), b.get()), expected) << i;
    EXPECT_EQ(shareMemory(b.get(), a.get()), expected) << i;
  }
  EXPECT_GT(shared, 500);
  EXPECT_LT(shared, 4500);
}

TEST(Overlap, SizesFarBeyondMemoryTakeNoTime) {
  const int64_t far = int64_t(1) << 40;
  const View a{0, DIFFATTN_F32, {far, far}, {1, 3}};
  EXPECT_TRUE(shareMemory(a.get(), View{far, DIFFATTN_F32, {3}, {1}}.get()));
}

TEST(Overlap, ElementsOfOneArray) {
  auto repeats = [](std::vector<int64_t> shape, std::vector<int64_t> strides) {
    return repeatsElements(View{0, DIFFATTN_F32, shape, strides}.get());
  };
  EXPECT_FALSE(repeats({3, 4}, {4, 1}));
  EXPECT_FALSE(repeats({3, 4}, {-1, 3}));
  EXPECT_FALSE(repeats({1, 4}, {0, 1}));
  EXPECT_FALSE(repeats({0, 4}, {0, 1}));
  EXPECT_TRUE(repeats({3, 4}, {0, 1}));
  EXPECT_TRUE(repeats({3, 4}, {2, 1}));
}

} // namespace
