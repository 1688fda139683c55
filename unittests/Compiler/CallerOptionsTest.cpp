//===- CallerOptionsTest.cpp - the table of options -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/CallerOptions.h"

#include "gtest/gtest.h"

using namespace mlir::diffattn;

/// A value of the option other than its default.
static std::string getOther(const OptionRow &row) {
  if (row.name == "target")
    return "cpu:avx2";
  if (std::holds_alternative<NumberOption>(row.kind))
    return "3";
  if (const auto *choice = std::get_if<ChoiceOption>(&row.kind))
    return choice->words().back().str();
  if (const auto *truth = std::get_if<TruthOption>(&row.kind)) {
    CallerOptions defaults;
    return truth->member(defaults) ? "false" : "true";
  }
  return "other";
}

static std::string keyOf(const CallerOptions &options) {
  auto key = ObjectCache::getKey("module {}", options.compile);
  EXPECT_TRUE(static_cast<bool>(key));
  return key ? *key : std::string();
}

/// Code is taken from the cache only where it would be compiled to the same.
TEST(CallerOptions, TheKeyHasWhatChangesTheCode) {
  const std::string before = keyOf({});
  for (const OptionRow &row : getOptionTable()) {
    CallerOptions options;
    ASSERT_FALSE(static_cast<bool>(setOption(options, row.name, getOther(row))))
        << row.name.str();
    EXPECT_EQ(keyOf(options) != before, row.isKeyed) << row.name.str();
  }
}

TEST(CallerOptions, NamesAreThereOnce) {
  llvm::SmallVector<llvm::StringRef> names;
  for (const OptionRow &row : getOptionTable()) {
    EXPECT_FALSE(llvm::is_contained(names, row.name)) << row.name.str();
    names.push_back(row.name);
    EXPECT_EQ(findOption(row.name), &row);
  }
  EXPECT_EQ(findOption("no such option"), nullptr);
}

TEST(CallerOptions, WhatIsRefusedChangesNothing) {
  CallerOptions options;
  options.compile.threads = 7;
  llvm::Error error = setOption(options, "threads", "5000", "--threads");
  EXPECT_EQ(llvm::toString(std::move(error)),
            "--threads: expected a number from 0 to 4096, but got '5000'");
  EXPECT_EQ(options.compile.threads, 7);
}

TEST(CallerOptions, ListsAreAddedToOrSplit) {
  CallerOptions options;
  for (llvm::StringRef file : {"a", "b:c"})
    EXPECT_FALSE(static_cast<bool>(setOption(options, "weights", file)));
  EXPECT_EQ(options.weights, (std::vector<std::string>{"a", "b:c"}));
  EXPECT_FALSE(static_cast<bool>(setOption(options, "ptxas_folders", "x:y")));
  EXPECT_FALSE(static_cast<bool>(setOption(options, "ptxas_folders", "z::w")));
  EXPECT_EQ(options.compile.ptxas.folders,
            (std::vector<std::string>{"z", "w"}));
}
