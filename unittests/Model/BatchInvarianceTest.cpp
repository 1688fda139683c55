//===- BatchInvarianceTest.cpp - which products sum in one order ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Schedule/BatchInvariance.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/MLIRContext.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

TEST(BatchInvariance, NamesComeBack) {
  EXPECT_THAT(getEnumWords<BatchInvariance>(),
              testing::ElementsAre("auto", "true", "false"));
  for (StringRef word : getEnumWords<BatchInvariance>())
    EXPECT_EQ(stringifyBatchInvariance(*symbolizeBatchInvariance(word)), word);
  EXPECT_FALSE(symbolizeBatchInvariance("1"));
}

TEST(BatchInvariance, AChoiceWinsOverTheTable) {
  MLIRContext context;
  Type types[] = {Float32Type::get(&context), Float16Type::get(&context),
                  BFloat16Type::get(&context), Float64Type::get(&context)};
  for (Type type : types)
    for (const CpuTarget &target : getCpuTargets())
      for (bool isWeight : {false, true}) {
        EXPECT_TRUE(
            sumsInOrder(BatchInvariance::Always, type, isWeight, target));
        EXPECT_FALSE(
            sumsInOrder(BatchInvariance::Never, type, isWeight, target));
        // A matrix that cannot be packed is read faster in another order.
        EXPECT_EQ(sumsInOrder(BatchInvariance::Auto, type, isWeight, target),
                  isWeight && isInvariantByDefault(type, target));
      }
}
