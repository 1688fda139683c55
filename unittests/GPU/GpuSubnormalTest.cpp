//===- GpuSubnormalTest.cpp - numbers below the normal range of f16 -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Multiples of 2^-24 do not shrink with M: the parts of the bound that say so
// (docs/numerics.md), for each family of kernels that multiplies f16.
//
//===----------------------------------------------------------------------===//
#include "GpuCase.h"

#include <gtest/gtest.h>

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

struct Family {
  const char *name, *chip;
  /// Static, or 0.
  int64_t queries;
  /// Part of the name of a kernel that must run.
  const char *kernel;
};

class GpuSubnormal : public testing::TestWithParam<Family> {
protected:
  static Signature getSignature() {
    Signature s;
    s.type = "f16";
    s.chip = GetParam().chip;
    s.queries = GetParam().queries;
    return s;
  }
  static int64_t getQueries() {
    return GetParam().queries ? GetParam().queries : 40;
  }
};

/// The largest error in units of a bound by M alone.
double worstOfM(Outcome outcome) {
  outcome.weightStep = outcome.resultStep = 0.0;
  return outcome.worst();
}

TEST_P(GpuSubnormal, Results) {
  CompiledCase compiled(getSignature());
  Shape shape{1, getQueries(), 40};
  shape.valueSize = [](int64_t) { return 0x1p-17; };
  Outcome outcome = compiled.run(shape, 1);
  EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
  EXPECT_NE(outcome.kernels.find(GetParam().kernel), std::string::npos)
      << outcome.kernels;
  EXPECT_LE(outcome.worst(), 1.0);
  EXPECT_GT(worstOfM(outcome), 1.0);
  // Nothing but the last rounding is coarse.
  for (size_t i = 0; i < outcome.output.size(); ++i)
    EXPECT_LE(std::abs(outcome.output[i] - outcome.expected.output[i]),
              0x1p-25 + outcome.bound * outcome.expected.magnitude[i]);
}

/// The first or the last of three keys has nearly all of a row's weight, and
/// values of 0: the result comes from a weight that is a multiple of 2^-24
/// beside 1.
Shape getFewWeights(int64_t queries) {
  Shape shape{1, queries, 3};
  shape.growth = 8.0;
  shape.valueSize = [](int64_t key) { return key == 1 ? 4096.0 : 0.0; };
  return shape;
}

TEST_P(GpuSubnormal, Weights) {
  CompiledCase compiled(getSignature());
  Outcome outcome = compiled.run(getFewWeights(getQueries()), 2);
  EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
  EXPECT_NE(outcome.kernels.find(GetParam().kernel), std::string::npos)
      << outcome.kernels;
  EXPECT_LE(outcome.worst(), 1.0);
  EXPECT_GT(worstOfM(outcome), 1.0);
}

/// In f32, weights are not rounded.
TEST(GpuSubnormalWeights, F32) {
  Signature s;
  s.type = "f32";
  CompiledCase compiled(s);
  Outcome outcome = compiled.run(getFewWeights(40), 2);
  EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
  EXPECT_LE(worstOfM(outcome), 1.0);
}

INSTANTIATE_TEST_SUITE_P(
    Families, GpuSubnormal,
    testing::Values(Family{"Forward", "sm_80", 0, "forward_64x128_f16_both"},
                    Family{"Decode", "sm_80", 8, "decode"},
                    Family{"BulkDecode", "sm_90a", 8, "bulk"},
                    Family{"Wgmma", "sm_90a", 0, "wgmma"}),
    [](const auto &info) { return info.param.name; });

} // namespace
