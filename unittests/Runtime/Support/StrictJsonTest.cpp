//===- StrictJsonTest.cpp - valid and refused JSON ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Support/StrictJson.h"

#include "gtest/gtest.h"

using namespace diffattn_rt;

namespace {

bool takes(std::string_view text) {
  StrictJson json(text);
  return json.skip() && json.end();
}

TEST(StrictJson, TakesJson) {
  for (const char *text :
       {"{}", "[]", "\"\"",
        " { \"a\" : [ 1 , -2.5e3, 0, 0.5E-7, -0, true, null, {} ] } ",
        "[\"\\u0041\\n\\\\\\\"\\/\\ud83d\\ude00\"]"})
    EXPECT_TRUE(takes(text)) << text;
}

TEST(StrictJson, RefusesTheRest) {
  for (const char *text :
       {"", "{", "}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "[1,]", "[1 2]",
        "\"a", "\"\\x\"", "\"\\u12\"", "\"\\ud800\"", "\"\\udc00\"",
        "{\"a\":1,\"a\":2}", "{\"a\":1,\"\\u0061\":2}", "nul", "+", "1 2",
        "\"a\nb\""})
    EXPECT_FALSE(takes(text)) << text;
}

TEST(StrictJson, RefusesNumbersOfOtherGrammars) {
  for (const char *text : {"nan", "inf", "0x10", "01", "1.", ".5", "+1", "1e",
                           "1e+", "--1", "1.e3"})
    EXPECT_FALSE(takes(text)) << text;
}

TEST(StrictJson, NestsSixtyFourDeep) {
  EXPECT_TRUE(takes(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(takes(std::string(65, '[') + std::string(65, ']')));
}

TEST(StrictJson, Integers) {
  auto read = [](std::string_view text, uint64_t &value) {
    StrictJson json(text);
    return json.integer(value) && json.end();
  };
  uint64_t value;
  EXPECT_TRUE(read("0", value));
  EXPECT_TRUE(read("9223372036854775807", value));
  EXPECT_EQ(value, uint64_t(INT64_MAX));
  for (const char *text : {"-1", "1.0", "1e3", "01", "9223372036854775808",
                           "18446744073709551616", "", "\"1\"", "1E0", "+1"})
    EXPECT_FALSE(read(text, value)) << text;
}

TEST(StrictJson, DecodesStrings) {
  StrictJson json("\"\\u00e9\\ud83d\\ude00\\t\"");
  std::string value;
  ASSERT_TRUE(json.string(value));
  EXPECT_EQ(value, "\xc3\xa9\xf0\x9f\x98\x80\t");
}

TEST(StrictJson, SaysWhere) {
  StrictJson json("{\"a\": 1, \"a\": 2}");
  EXPECT_FALSE(json.skip());
  EXPECT_EQ(json.getError(),
            "expected each name once, but got 'a' twice at byte 12");
}

} // namespace
