//===- InjectionTest.cpp - every instruction that orders, broken ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "FaultInjection.h"
#include "PipelinedMatmul.h"

#include "llvm/IR/Verifier.h"

using namespace mlir::diffattn::sim;

namespace {

class InjectionTest : public MatmulTest,
                      public ::testing::WithParamInterface<Injection> {};

TEST_P(InjectionTest, IsFoundWhereverItIs) {
  unsigned broken = 0;
  for (const char *function : {"k", "issue"}) {
    llvm::SMDiagnostic diagnostic;
    std::unique_ptr<llvm::Module> whole =
        llvm::parseAssemblyString(matmul(), diagnostic, context);
    ASSERT_TRUE(whole);
    const unsigned count = countInjections(*whole, function, GetParam());
    for (unsigned index = 0; index < count; ++index, ++broken) {
      ASSERT_EQ(compileModule(*getBroken(*whole, function, GetParam(), index)),
                "");
      for (uint64_t seed : {0, 1}) {
        SimOptions options;
        options.seed = seed;
        LaunchReport report = run(options);
        const ExpectedOutcome expected = getExpectedOutcome(GetParam());
        if (expected.kinds.empty())
          EXPECT_FALSE(right()) << index;
        else
          EXPECT_TRUE(report.has(expected.kinds))
              << function << " " << index << " seed " << seed << "\n"
              << report.str();
      }
    }
  }
  EXPECT_GT(broken, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, InjectionTest,
                         ::testing::ValuesIn(getAllInjections()),
                         [](const ::testing::TestParamInfo<Injection> &info) {
                           return stringifyInjection(info.param).str();
                         });

} // namespace
