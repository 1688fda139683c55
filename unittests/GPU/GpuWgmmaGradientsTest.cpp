//===- GpuWgmmaGradientsTest.cpp - gradients of products, by warpgroups ---===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GradientsCase.h"
#include "HopperInjection.h"

#include "DiffAttn/Schedule/GpuSchedule.h"

#include "llvm/Transforms/Utils/Cloning.h"
#include <gtest/gtest.h>

using namespace mlir;
using namespace mlir::diffattn;
using reference::Element;
using sim::HopperInjection;

/// A case with the row of the table for its widths.
static GradientsCase withRow(GradientsCase c) {
  for (const GpuWgmmaGradientRow &row : getGpuWgmmaGradientTable())
    if (row.maps == c.maps && c.d <= row.headDim && c.dv <= row.valueDim) {
      c.wgmmaQBlockSize = row.queries;
      c.wgmmaQStages = row.keyStages;
      c.wgmmaKvBlockSize = row.keys;
      c.wgmmaKvStages = row.queryStages;
      return c;
    }
  require(false, "expected a row of the table for " + c.name);
  return c;
}

static std::vector<GradientsCase> getWgmmaCases() {
  std::vector<GradientsCase> cases;
  auto add = [&](const char *name, auto change) {
    GradientsCase c;
    c.name = name;
    change(c);
    cases.push_back(withRow(c));
  };
  // Blocks of queries and of keys that are full, and those that are not; rings
  // that come round.
  add("Full", [](GradientsCase &c) {
    c.queries = 150;
    c.keys = 300;
  });
  add("Causal", [](GradientsCase &c) {
    c.type = c.result = Element::F16;
    c.queries = c.keys = 200;
    c.right = 0;
  });
  add("Window", [](GradientsCase &c) {
    c.d = 40;
    c.dv = 56;
    c.result = Element::F32;
    c.queries = 130;
    c.keys = 150;
    c.left = 30;
    c.right = 5;
  });
  add("SharedHeads", [](GradientsCase &c) {
    c.d = c.dv = 64;
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
  add("WithoutKeys", [](GradientsCase &c) {
    c.d = c.dv = 64;
    c.batches = 3;
    c.right = 0;
    c.kvLen = {0, 20, 75};
    c.qOffset = {0, -15, 200};
    c.left = 60;
  });
  add("OneKey", [](GradientsCase &c) {
    c.d = c.dv = 64;
    c.sharedKeys = true;
    c.queries = c.keys = 140;
    c.scale = -0.1;
  });
  return cases;
}

namespace {
class GpuWgmmaGradients : public testing::TestWithParam<GradientsCase> {};
} // namespace

TEST_P(GpuWgmmaGradients, AreThoseOfTheOracle) {
  expectOracleValues(GetParam());
}

TEST(GpuWgmmaGradientsCount, MakesNoProductTwice) {
  for (const GradientsCase &c : getCountedCases())
    expectProducts(withRow(c));
}

/// Ways to break both kernels.
static const HopperInjection kInjections[] = {
    HopperInjection::ExpectMore,      HopperInjection::ExpectLess,
    HopperInjection::FlipParity,      HopperInjection::DropPhaseWait,
    HopperInjection::DropArrive,      HopperInjection::ShiftLoad,
    HopperInjection::DropMatrixWait,  HopperInjection::WeakenMatrixWait,
    HopperInjection::DropMatrixFence, HopperInjection::DropProxyFence,
};

/// Each instruction of a kind is broken at the first place, or the last one for
/// kinds of an odd number: a kernel is compiled anew for each.
static void expectAllFound(GpuKernelKind kind) {
  // Two signal heads of a noise head, so that rows are brought again; a ring of
  // two stages that comes round; keys that are hidden, and NaN.
  GradientsCase c;
  c.dv = 64;
  c.signal = 2;
  c.queries = 150;
  c.keys = 300;
  c.kvLen = {297};
  c = withRow(c);
  c.wgmmaQStages = c.wgmmaKvStages = 2;
  GradientsRun run(c);
  const std::string name = run.getSpec(kind).getName();
  std::unique_ptr<llvm::Module> alone = llvm::CloneModule(run.getKernels());
  for (llvm::Function &function : llvm::make_early_inc_range(*alone))
    if (!function.isDeclaration() && function.getName() != name)
      function.eraseFromParent();
  for (auto [i, injection] : llvm::enumerate(kInjections)) {
    const std::string title = stringifyInjection(injection).str();
    const unsigned count = sim::countInjections(*alone, name, injection);
    ASSERT_GT(count, 0u) << title;
    run.replaceKernels(
        *sim::getBroken(*alone, name, injection, i % 2 ? count - 1 : 0));
    const sim::ExpectedOutcome expected = sim::getExpectedOutcome(injection);
    std::string reports;
    EXPECT_TRUE(isShownInSomeOrder([&](const sim::SimOptions &options) {
      const Gradients result = run.run(options, kind);
      reports += result.str();
      return result.has(expected.kinds) ||
             (expected.wrong && run.worst(result) > 1.0);
    })) << title
        << ": " << reports;
  }
}

TEST(GpuWgmmaGradientsFault, OfKeysIsFound) {
  expectAllFound(GpuKernelKind::GradientKeys);
}

TEST(GpuWgmmaGradientsFault, OfQueriesIsFound) {
  expectAllFound(GpuKernelKind::GradientQueries);
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuWgmmaGradients,
                         testing::ValuesIn(getWgmmaCases()),
                         [](const auto &info) { return info.param.name; });
