//===- PrintableTest.cpp - names from files on a terminal -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Support/Printable.h"
#include "DiffAttn/Runtime/Support/Failure.h"

#include "gtest/gtest.h"

using namespace diffattn_rt;

namespace {

TEST(Printable, TextOfAnyLanguageIsKept) {
  for (const char *text : {"", "model.layers.{}.w", "a\tb", "Größe λ 大 😀",
                           "a backslash \\x1b that is one"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, ControlsAndStrayBytesAreEscaped) {
  EXPECT_EQ(printable("\x1b[31mred\x07"), "\\x1b[31mred\\x07");
  EXPECT_EQ(printable(std::string_view("a\0b\x7f", 4)), "a\\x00b\\x7f");
  EXPECT_EQ(printable("\r\b"), "\\x0d\\x08");
  EXPECT_EQ(printable("\xff\xc3(\xed\xa0\x80\xc0\xaf"),
            "\\xff\\xc3(\\xed\\xa0\\x80\\xc0\\xaf");
  EXPECT_EQ(printable("cut \xe2\x82"), "cut \\xe2\\x82");
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(Printable, ControlsBeyondAsciiAndReorderingMarksAreEscaped) {
  EXPECT_EQ(printable("\u009b31m"), "\\u009b31m");
  EXPECT_EQ(printable("a\u202eb\u2028c\ufeff"), "a\\u202eb\\u2028c\\ufeff");
  EXPECT_EQ(printable("\U000e0041"), "\\U000e0041");
}

TEST(Printable, LinesBelongToATextButNotToAName) {
  EXPECT_EQ(printable("a\nb"), "a\\x0ab");
  EXPECT_EQ(printable("a\nb\x1b", Lines::Keep), "a\nb\\x1b");
}

TEST(Printable, EscapingTwiceChangesNothing) {
  const std::string once = printable("\x1b[0m\xff\u202e\n");
  EXPECT_EQ(printable(once), once);
}

TEST(Printable, MessagesOfFailuresAreShownAsTheyAre) {
  EXPECT_EQ(Failure(ErrorClass::Weights, "'a\n\x1b[2J'").getMessage(),
            "'a\\x0a\\x1b[2J'");
  EXPECT_EQ(Failure(ErrorClass::Run, "one\ntwo\x1b").getMessage(),
            "one\ntwo\\x1b");
}

} // namespace
