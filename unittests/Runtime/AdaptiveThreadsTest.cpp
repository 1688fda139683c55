//===- AdaptiveThreadsTest.cpp - Number of threads of a region ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The times are made up: nothing here depends on how busy the machine is.
//
//===----------------------------------------------------------------------===//

#include "AdaptiveThreads.h"

#include "gtest/gtest.h"

#include <random>

using namespace diffattn_rt;

namespace {

constexpr int64_t kMicrosecond = 1'000, kMillisecond = 1'000'000;

/// A program whose regions have `work` for one thread, on a machine of which a
/// test says how late the last thread of a region is.
struct Program {
  AdaptiveThreads adaptive;
  int64_t maxThreads, now = 1, alone = 0;

  explicit Program(int64_t maxThreads) : maxThreads(maxThreads) {}

  /// Runs one region and returns how many threads it had.
  int64_t run(int64_t work, int64_t late) {
    RegionTimes region;
    region.threads = adaptive.choose(maxThreads);
    region.begin = now;
    const bool measured = adaptive.measuresWork(now);
    now += region.threads == 1 ? work : work / region.threads + late;
    region.end = now;
    if (region.threads > 1 && measured)
      region.work = work;
    adaptive.record(region);
    alone += work;
    return region.threads;
  }

  void pause(int64_t time) { now += time; }
};

TEST(AdaptiveThreads, AllThreadsOnFreeCores) {
  for (int64_t maxThreads : {2, 3, 16, 4096}) {
    Program program(maxThreads);
    for (int i = 0; i < 100'000; ++i)
      ASSERT_EQ(program.run(20 * kMicrosecond, kMicrosecond), maxThreads);
  }
}

TEST(AdaptiveThreads, ALateThreadNowAndThenIsMadeUpFor) {
  Program program(2);
  for (int i = 0; i < 100'000; ++i)
    ASSERT_EQ(
        program.run(20 * kMicrosecond, i % 1000 == 999 ? kMillisecond : 0), 2)
        << i;
}

TEST(AdaptiveThreads, TheFirstLateThreadIsNoticed) {
  Program program(2);
  EXPECT_EQ(program.run(20 * kMicrosecond, 4 * kMillisecond), 2);
  EXPECT_EQ(program.run(20 * kMicrosecond, 4 * kMillisecond), 1);
}

TEST(AdaptiveThreads, AfterAGoodTimeTheSecondOne) {
  Program program(2);
  while (program.now < 1000 * kMillisecond)
    program.run(20 * kMicrosecond, 0);
  EXPECT_FALSE(program.adaptive.measuresWork(program.now));
  program.run(20 * kMicrosecond, 4 * kMillisecond);
  EXPECT_TRUE(program.adaptive.measuresWork(program.now));
  EXPECT_EQ(program.run(20 * kMicrosecond, 4 * kMillisecond), 2);
  EXPECT_EQ(program.run(20 * kMicrosecond, 4 * kMillisecond), 1);
}

/// Whatever regions take and however late threads are, the program is about as
/// fast as on one thread: half as fast would be what the page promises.
TEST(AdaptiveThreads, BusyCoresCostLittle) {
  for (int64_t maxThreads : {2, 3, 8, 64})
    for (int64_t work : {5, 20, 100, 1000})
      for (int64_t late : {1, 4, 12, 100}) {
        Program program(maxThreads);
        std::mt19937 random(static_cast<uint32_t>(maxThreads + work + late));
        const int64_t seconds = 20;
        while (program.now < seconds * 1000 * kMillisecond)
          program.run(work * kMicrosecond,
                      random() % 4 ? 0 : late * kMillisecond);
        EXPECT_GT(double(program.alone) / double(program.now), 0.65)
            << maxThreads << " threads, " << work << " us, " << late
            << " ms late";
      }
}

TEST(AdaptiveThreads, LargeRegionsKeepTheirThreads) {
  // With the cores shared, both threads together still get more of them.
  Program program(2);
  for (int i = 0; i < 1000; ++i)
    ASSERT_EQ(program.run(30 * kMillisecond, 4 * kMillisecond), 2);
}

TEST(AdaptiveThreads, FreeCoresAreFoundAgain) {
  Program program(2);
  while (program.now < 1000 * kMillisecond)
    program.run(20 * kMicrosecond, 4 * kMillisecond);
  const int64_t freed = program.now;
  while (program.run(20 * kMicrosecond, 0) != 2)
    ASSERT_LT(program.now - freed, AdaptiveThreads::kMaxHold);
  for (int i = 0; i < 10'000; ++i)
    ASSERT_EQ(program.run(20 * kMicrosecond, 0), 2);
}

TEST(AdaptiveThreads, AProgramThatComputesSeldomFindsThemTooInTime) {
  Program program(2);
  program.run(20 * kMicrosecond, 90 * kMillisecond);
  const int64_t freed = program.now;
  while (program.run(20 * kMicrosecond, 0) != 2) {
    program.pause(100 * kMillisecond);
    ASSERT_LT(program.now - freed,
              AdaptiveThreads::kMaxPause + 200 * kMillisecond);
  }
  EXPECT_GT(program.now - freed, AdaptiveThreads::kMaxPause);
}

TEST(AdaptiveThreads, ManyThreadsAreHalved) {
  // As many as 20 cores are free: more threads than that wait for one.
  Program program(64);
  auto run = [&] {
    const int64_t threads = program.adaptive.choose(64);
    return program.run(2 * kMillisecond, threads > 20 ? 4 * kMillisecond : 0);
  };
  while (run() > 16)
    ASSERT_LT(program.now, 100 * kMillisecond);
  int64_t few = 0, all = 0;
  for (int i = 0; i < 100'000; ++i, ++all)
    few += run() == 16;
  EXPECT_GT(few, all * 9 / 10);
}

TEST(AdaptiveThreads, FewerItemsThanThreads) {
  // A loop of two items is late on both of its threads: halves of 64 are none.
  Program program(2);
  program.run(20 * kMicrosecond, 4 * kMillisecond);
  EXPECT_EQ(program.adaptive.choose(64), 1);
}

} // namespace
