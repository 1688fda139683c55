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

/// Faults that each injection must show; an empty list is a wrong result.
std::vector<FaultKind> expectedKinds(Injection injection) {
  switch (injection) {
  case Injection::DropWait:
  case Injection::WeakenWait:
    return {FaultKind::NotArrived};
  case Injection::DropBarrier:
  case Injection::RefillEarly:
    return {FaultKind::Race, FaultKind::NotArrived};
  case Injection::RowOutOfBounds:
  case Injection::SharedOutOfBounds:
    return {FaultKind::OutOfBounds};
  case Injection::MisalignedRow:
  case Injection::MisalignedCopy:
    return {FaultKind::Misaligned};
  case Injection::HalfWarp:
    return {FaultKind::Divergence};
  case Injection::DropCopy:
    return {FaultKind::Uninitialized};
  case Injection::WrongSwizzle:
  case Injection::WrongLane:
  case Injection::VoteAll:
    return {};
  }
  return {};
}

TEST_P(InjectionTest, IsFoundWhereverItIs) {
  unsigned broken = 0;
  for (const char *function : {"k", "issue"}) {
    llvm::SMDiagnostic diagnostic;
    std::unique_ptr<llvm::Module> whole =
        llvm::parseAssemblyString(matmul(), diagnostic, context);
    ASSERT_TRUE(whole);
    const unsigned count = countInjections(*whole, function, GetParam());
    for (unsigned index = 0; index < count; ++index, ++broken) {
      std::unique_ptr<llvm::Module> module =
          llvm::parseAssemblyString(matmul(), diagnostic, context);
      inject(*module, function, GetParam(), index);
      std::string message;
      llvm::raw_string_ostream os(message);
      ASSERT_FALSE(llvm::verifyModule(*module, &os)) << message;
      ASSERT_EQ(compileModule(*module), "");
      for (uint64_t seed : {0, 1}) {
        SimOptions options;
        options.seed = seed;
        LaunchReport report = run(options);
        const std::vector<FaultKind> kinds = expectedKinds(GetParam());
        if (kinds.empty())
          EXPECT_FALSE(right()) << index;
        else
          EXPECT_TRUE(llvm::any_of(
              kinds, [&](FaultKind kind) { return report.has(kind); }))
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
