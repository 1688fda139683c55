//===- DeviceTest.cpp - devices and targets as users name them ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Device.h"

#include "gtest/gtest.h"

using namespace mlir::diffattn;

namespace {

TEST(ExecutionTargets, Parse) {
  auto target = parseTarget("cuda:sm_90@2");
  ASSERT_TRUE(static_cast<bool>(target));
  EXPECT_EQ(target->chip, "sm_90");
  EXPECT_EQ(target->ordinal, 2);
  EXPECT_TRUE(target->chipNamed);
  target = parseTarget("cuda");
  ASSERT_TRUE(static_cast<bool>(target));
  EXPECT_FALSE(target->chipNamed);
  EXPECT_EQ(target->ordinal, 0);
  for (const char *wrong : {"cuda@", "cuda@-1", "cuda:sm_90@x", "cpu@0"}) {
    auto refused = parseTarget(wrong);
    EXPECT_FALSE(static_cast<bool>(refused)) << wrong;
    llvm::consumeError(refused.takeError());
  }
  // Nothing is open in these.
  EXPECT_EQ(llvm::cantFail(resolveTarget("cpu:avx2", {})), "cpu:avx2");
  EXPECT_EQ(llvm::cantFail(resolveTarget("cuda-sim", {})), "cuda-sim");
}

} // namespace
