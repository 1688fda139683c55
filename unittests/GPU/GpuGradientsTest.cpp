//===- GpuGradientsTest.cpp - gradients of queries, keys and values -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GradientsCase.h"

#include <gtest/gtest.h>

using namespace mlir;
using namespace mlir::diffattn;
using reference::Element;

static std::vector<GradientsCase> getGradientsCases() {
  std::vector<GradientsCase> cases;
  auto add = [&](const char *name, auto change) {
    cases.emplace_back();
    cases.back().name = name;
    change(cases.back());
  };
  add("Full", [](GradientsCase &c) {});
  add("Causal", [](GradientsCase &c) {
    c.queries = c.keys = 140;
    c.right = 0;
  });
  add("Window", [](GradientsCase &c) {
    c.d = 32;
    c.dv = 64;
    c.type = Element::F16;
    c.result = Element::F32;
    c.queries = 130;
    c.keys = 150;
    c.left = 30;
    c.right = 5;
  });
  add("OneKey", [](GradientsCase &c) {
    c.d = c.dv = 64;
    c.sharedKeys = true;
    c.signal = c.noise = 2;
    c.right = 0;
  });
  add("WideOneKey", [](GradientsCase &c) {
    c.d = c.dv = 128;
    c.sharedKeys = true;
    c.qBlockSize = c.kvBlockSize = 16;
    c.stages = 3;
  });
  add("OneMap", [](GradientsCase &c) {
    c.maps = 1;
    c.d = c.dv = 64;
    c.signal = c.noise = 2;
    c.qBlockSize = 64;
  });
  add("SharedHeads", [](GradientsCase &c) {
    c.batches = 2;
    c.signal = c.noise = 4;
    c.keyHeads = 2;
    c.right = 0;
    c.kvLen = {75, 40};
    c.qOffset = {20, 3};
  });
  add("SignalsOfANoiseHead", [](GradientsCase &c) {
    c.signal = 4;
    c.noise = 2;
    c.lambdaOfQueries = c.sigmoid = true;
  });
  // Some rows see no key, and some keys are seen by no row.
  add("WithoutKeys", [](GradientsCase &c) {
    c.batches = 3;
    c.right = 0;
    c.kvLen = {0, 20, 75};
    c.qOffset = {0, -15, 200};
    c.left = 60;
  });
  add("Bias", [](GradientsCase &c) {
    c.signal = c.noise = 2;
    c.bias = true;
    c.right = 0;
  });
  add("SegmentsAndSoftcap", [](GradientsCase &c) {
    c.segments = true;
    c.softcap = 2.0;
  });
  add("AnyStride", [](GradientsCase &c) {
    c.d = 33;
    c.dv = 20;
    c.step = 3;
    c.scale = -0.2;
  });
  // Blocks begin within sequences and at their ends; some have no queries, or
  // no keys, or one row.
  const std::vector<int64_t> queries = {70, 0, 64, 3, 1, 90},
                             keys = {70, 9, 100, 0, 1, 64};
  add("Packed", [&](GradientsCase &c) {
    c.d = 32;
    c.dv = 64;
    c.signal = 4;
    c.noise = 2;
    c.lambdaOfQueries = true;
    c.right = 0;
    c = packSequences(c, queries, keys);
  });
  add("PackedOneKey", [](GradientsCase &c) {
    c.d = c.dv = 64;
    c.type = c.result = Element::F16;
    c.sharedKeys = true;
    c.signal = c.noise = 2;
    c.left = 30;
    c.right = 5;
    c.qOffset = {-3, 20, 0};
    c = packSequences(c, {40, 33, 5}, {64, 20, 90});
  });
  add("PackedOneMapAnyStride", [&](GradientsCase &c) {
    c.maps = 1;
    c.d = 20;
    c.dv = 12;
    c.step = 3;
    c.right = 0;
    c = packSequences(c, queries, keys);
  });
  add("PackedPlain", [](GradientsCase &c) {
    c.type = c.result = Element::F32;
    c.d = 12;
    c.dv = 36;
    c.step = 2;
    c.signal = 2;
    c.lambdaOfQueries = true;
    c.right = 0;
    c = packSequences(c, {9, 0, 6, 5}, {40, 9, 5, 0});
  });
  return cases;
}

namespace {
class GpuGradients : public testing::TestWithParam<GradientsCase> {};
} // namespace

TEST_P(GpuGradients, AreThoseOfTheOracle) { expectOracleValues(GetParam()); }

TEST(GpuGradientsCount, MakesNoProductTwice) {
  for (const GradientsCase &c : getCountedCases())
    expectProducts(c);
}

/// Exchanging D1 and D2 shows in the gradients.
TEST(GpuGradientsFault, SumsOfRowsExchanged) {
  GradientsCase c;
  GradientsRun run(c);
  std::swap(run.arrays["d1"], run.arrays["d2"]);
  EXPECT_GT(run.worst(run.run({})), 1.0);
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuGradients,
                         testing::ValuesIn(getGradientsCases()),
                         [](const auto &info) { return info.param.name; });
