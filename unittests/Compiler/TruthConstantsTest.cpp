//===- TruthConstantsTest.cpp - truth values as newer MLIR writes them ----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TruthConstants.h"

#include "llvm/ADT/StringExtras.h"
#include "gtest/gtest.h"

#include <random>

using namespace mlir::diffattn;

TEST(TruthConstantsTest, BytesBecomeBits) {
  EXPECT_EQ(
      packTruthConstants(
          R"(%0 = arith.constant dense<"0x010001000000000001"> : tensor<9xi1>)"),
      R"(%0 = arith.constant dense<"0x0501"> : tensor<9xi1>)");
  EXPECT_EQ(packTruthConstants(R"(dense<"0x0100"> : tensor<1x2xi1>)"),
            R"(dense<"0x01"> : tensor<1x2xi1>)");
}

TEST(TruthConstantsTest, EachOfSeveralIsFound) {
  EXPECT_EQ(packTruthConstants(R"(a dense<"0x0101"> : tensor<2xi1> b
dense<"0x0001"> : tensor<2xi1> c)"),
            R"(a dense<"0x03"> : tensor<2xi1> b
dense<"0x02"> : tensor<2xi1> c)");
}

TEST(TruthConstantsTest, OtherTextStays) {
  for (const char *text :
       {"", R"(dense<"0x0501"> : tensor<9xi1>)",
        R"(dense<"0x0100"> : tensor<2xi8>)",
        R"(dense<"0x0002"> : tensor<2xi1>)", R"(dense<"0x010"> : tensor<2xi1>)",
        R"(dense<"0x0100"> : vector<2xi1>)", R"(dense<"0x01"> : tensor<i1>)",
        R"(dense<"0x01"> : tensor<1xi1>)", R"(dense<"0x0100"> : tensor<?xi1>)",
        R"(dense<"0x)", R"(dense<"0x0100")", R"(dense<"0x0100"> : tensor<)",
        R"(dense<"0x0100"> : tensor<18446744073709551615x2xi1>)",
        R"(dense<"0x0100"> : tensor<99999999999999999999xi1>)"})
    EXPECT_EQ(packTruthConstants(text), text);
}

TEST(TruthConstantsTest, RandomValuesComeBack) {
  std::mt19937 random(0);
  for (size_t count = 2; count < 100; ++count) {
    std::string bytes(count, '\0');
    for (char &byte : bytes)
      byte = random() & 1;
    const std::string type = std::to_string(count) + "xi1>";
    const std::string packed = packTruthConstants(
        "dense<\"0x" + llvm::toHex(bytes) + "\"> : tensor<" + type);
    llvm::StringRef digits = packed;
    ASSERT_TRUE(digits.consume_front("dense<\"0x"));
    const std::string bits =
        llvm::fromHex(digits.take_until([](char c) { return c == '"'; }));
    ASSERT_EQ(bits.size(), (count + 7) / 8);
    for (size_t i = 0; i < count; ++i)
      EXPECT_EQ(bits[i / 8] >> i % 8 & 1, bytes[i]) << i << " of " << count;
  }
}
