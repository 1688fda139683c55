//===- SoakTest.cpp - calls without end take no more memory ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SmallBundle.h"

#include "gtest/gtest.h"

#include <fstream>
#include <iostream>
#include <unistd.h>

using namespace diffattn_test;

namespace {

/// The memory of this process that is in use, in KiB.
int64_t getResidentKiB() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE) / 1024;
}

TEST(Soak, CallsTakeNoMoreMemory) {
  constexpr int kCalls = 100'000, kFirst = 2'000;
  const SmallBundle bundle;
  Outcome outcome;
  diffattn_bundle *opened = openBundle(bundle.getPath(), outcome);
  ASSERT_TRUE(opened);
  int64_t before = 0;
  // Two calls a round, of sizes that change.
  for (int call = 0; call < kCalls; call += 2) {
    if (call == kFirst)
      before = getResidentKiB();
    Outcome computed;
    compute(opened, 1 + call / 2 % 16, 1, computed);
    ASSERT_EQ(computed.status, 0) << diffattn_bundle_last_error();
  }
  const int64_t after = getResidentKiB();
  diffattn_bundle_close(opened);
  std::cout << "[ MEMORY   ] " << before << " KiB after " << kFirst
            << " calls, " << after << " KiB after " << kCalls << "\n";
  EXPECT_LT(after, before + 512);
}

TEST(Soak, BundlesTakeNoMoreMemory) {
  constexpr int kTimes = 400, kFirst = 100;
  const SmallBundle bundle;
  int64_t before = 0;
  for (int time = 0; time < kTimes; ++time) {
    if (time == kFirst)
      before = getResidentKiB();
    Outcome outcome;
    diffattn_bundle *opened = openBundle(bundle.getPath(), outcome);
    ASSERT_TRUE(opened) << diffattn_bundle_last_error();
    compute(opened, 4, 1, outcome);
    diffattn_bundle_close(opened);
    ASSERT_EQ(outcome.status, 0);
  }
  const int64_t after = getResidentKiB();
  std::cout << "[ MEMORY   ] " << before << " KiB after " << kFirst
            << " bundles, " << after << " KiB after " << kTimes << "\n";
  EXPECT_LT(after, before + 512);
}

} // namespace
