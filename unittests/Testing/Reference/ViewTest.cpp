//===- ViewTest.cpp - element types and strides of the oracle -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Fixtures.h"

#include "gtest/gtest.h"

#include <array>
#include <limits>

using namespace mlir::diffattn::reference;

namespace {
uint16_t stored(Element element, double value) {
  uint16_t bits = 0;
  store(element, &bits, value);
  return bits;
}

TEST(Element, HalfPrecisionKnownValues) {
  EXPECT_EQ(stored(Element::F16, 1.0), 0x3C00);
  EXPECT_EQ(stored(Element::F16, -2.0), 0xC000);
  EXPECT_EQ(stored(Element::F16, 65504.0), 0x7BFF);
  EXPECT_EQ(stored(Element::F16, 65519.9), 0x7BFF);
  EXPECT_EQ(stored(Element::F16, 65520.0),
            0x7C00); // a tie goes to even: infinity
  EXPECT_EQ(stored(Element::F16, 0x1p-24), 0x0001); // the least subnormal
  EXPECT_EQ(stored(Element::F16, 0x1p-25), 0x0000); // a tie goes to even: zero
  EXPECT_EQ(stored(Element::F16, 0x1.8p-25), 0x0001);
  EXPECT_EQ(stored(Element::F16, 0x1p-14), 0x0400);
  EXPECT_EQ(stored(Element::F16, 1.0 + 0x1p-11), 0x3C00);
  EXPECT_EQ(stored(Element::F16, 1.0 + 0x3p-11), 0x3C02);
  EXPECT_EQ(stored(Element::BF16, 1.0), 0x3F80);
  EXPECT_EQ(stored(Element::BF16, 1.0 + 0x1p-8), 0x3F80);
  EXPECT_EQ(stored(Element::BF16, 1.0 + 0x3p-8), 0x3F82);
  EXPECT_EQ(stored(Element::BF16, -std::numeric_limits<double>::infinity()),
            0xFF80);
}

/// Every 16-bit pattern is its own nearest value.
TEST(Element, EveryHalfPrecisionValueSurvives) {
  for (Element element : {Element::F16, Element::BF16})
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      uint16_t pattern = static_cast<uint16_t>(bits);
      double value = load(element, &pattern);
      if (std::isnan(value))
        EXPECT_TRUE(std::isnan([&] {
          uint16_t again = stored(element, value);
          return load(element, &again);
        }()));
      else
        ASSERT_EQ(stored(element, value), pattern);
    }
}

TEST(View, SlicesAndSplitsShareMemory) {
  fixtures::Pool pool;
  View view =
      pool.make({2, 6}, [](int64_t i) { return static_cast<double>(i); });
  EXPECT_EQ(view.at({1, 2}), 8.0);
  EXPECT_EQ(view.transposed(0, 1).at({2, 1}), 8.0);
  View odd = view.sliced(1, 1, 3, 2);
  EXPECT_EQ(odd.at({1, 2}), 11.0);
  View cut = view.split(1, 3);
  EXPECT_EQ(cut.sizes, (std::vector<int64_t>{2, 2, 3}));
  EXPECT_EQ(cut.at({1, 1, 2}), 11.0);
}

TEST(ErrorBound, GrowsWithTypeAndLength) {
  double f32 = errorBound(Element::F32, 64, 1024, 8.0);
  EXPECT_LT(f32, 5e-5);
  EXPECT_GT(errorBound(Element::F16, 64, 1024, 8.0), 9e-4);
  EXPECT_GT(errorBound(Element::BF16, 64, 1024, 8.0), 7e-3);
  EXPECT_GT(errorBound(Element::F32, 64, 65536, 8.0), f32);
}

/// No number of the type lies between 0 and twice of it.
TEST(ErrorBound, SubnormalErrorIsHalfOfTheLeastNumber) {
  for (Element element : {Element::F32, Element::F16, Element::BF16}) {
    std::array<uint8_t, 4> bytes{};
    const double half = subnormalError(element);
    store(element, bytes.data(), 2 * half);
    EXPECT_EQ(load(element, bytes.data()), 2 * half);
    store(element, bytes.data(), half);
    EXPECT_EQ(load(element, bytes.data()), 0.0);
    store(element, bytes.data(), 1.5 * half);
    EXPECT_EQ(load(element, bytes.data()), 2 * half);
  }
}
} // namespace
