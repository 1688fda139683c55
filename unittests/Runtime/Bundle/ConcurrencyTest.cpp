//===- ConcurrencyTest.cpp - bundles in several threads -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Different bundles may be used by different threads, and one bundle by several
// that take turns in calling it. scripts/test-tsan.sh runs these under
// ThreadSanitizer.
//
//===----------------------------------------------------------------------===//
#include "SmallBundle.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/ABI/Trace.h"

#include "gtest/gtest.h"

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

using namespace diffattn_test;

namespace {

constexpr int kThreads = 4;

class Concurrency : public testing::Test {
protected:
  static void SetUpTestSuite() { bundle = std::make_unique<SmallBundle>(); }
  static void TearDownTestSuite() { bundle.reset(); }

  /// Numbers of `compute` where nothing else runs.
  static std::vector<float> getExpected(int64_t tokens) {
    Outcome outcome;
    diffattn_bundle *opened = openBundle(bundle->getPath(), outcome);
    compute(opened, tokens, 1, outcome);
    diffattn_bundle_close(opened);
    EXPECT_EQ(outcome.status, 0);
    return outcome.numbers;
  }

  /// Runs `body(number)` in as many threads at once.
  template <typename Body>
  static void runThreads(Body body) {
    std::vector<std::thread> threads;
    for (int number = 0; number < kThreads; ++number)
      threads.emplace_back([=] { body(number); });
    for (std::thread &thread : threads)
      thread.join();
  }

  static std::unique_ptr<SmallBundle> bundle;
};
std::unique_ptr<SmallBundle> Concurrency::bundle;

TEST_F(Concurrency, EachThreadOpensCallsAndCloses) {
  const std::vector<float> expected = getExpected(16);
  runThreads([&](int) {
    for (int round = 0; round < 5; ++round) {
      Outcome outcome;
      diffattn_bundle *opened = openBundle(bundle->getPath(), outcome);
      compute(opened, 16, 2, outcome);
      diffattn_bundle_close(opened);
      EXPECT_EQ(outcome.status, 0) << diffattn_bundle_last_error();
      EXPECT_EQ(outcome.numbers, expected);
    }
  });
}

TEST_F(Concurrency, BundlesArePassedFromThreadToThread) {
  const std::vector<float> expected = getExpected(3);
  diffattn_bundle *opened[kThreads];
  runThreads([&](int number) {
    Outcome outcome;
    opened[number] = openBundle(bundle->getPath(), outcome);
  });
  // Each with the bundle that another thread has opened.
  runThreads([&](int number) {
    diffattn_bundle *taken = opened[(number + 1) % kThreads];
    for (int round = 0; round < 20; ++round) {
      Outcome outcome;
      compute(taken, 3, number % 3, outcome);
      EXPECT_EQ(outcome.numbers, expected);
    }
    diffattn_bundle_close(taken);
  });
}

TEST_F(Concurrency, ErrorsAreEachThreadsOwn) {
  runThreads([&](int number) {
    for (int round = 0; round < 50; ++round) {
      const std::string path = "/nowhere/" + std::to_string(number);
      diffattn_bundle *opened = nullptr;
      EXPECT_EQ(diffattn_bundle_open(path.c_str(), nullptr, &opened),
                DIFFATTN_ERROR_BUNDLE);
      EXPECT_NE(std::string(diffattn_bundle_last_error()).find(path),
                std::string::npos);
    }
  });
}

/// A recording begins, is written and ends while others compute.
TEST_F(Concurrency, RecordingsWhileOthersCompute) {
  const std::vector<float> expected = getExpected(16);
  std::atomic<int> running{kThreads - 1};
  std::atomic<int64_t> written{0};
  runThreads([&](int number) {
    if (number == 0) {
      while (running > 0) {
        diffattn_rt_trace_start();
        std::this_thread::yield();
        diffattn_rt_trace_write(
            [](void *to, const char *, int64_t bytes) {
              *static_cast<std::atomic<int64_t> *>(to) += bytes;
            },
            &written);
        diffattn_rt_trace_stop();
      }
      return;
    }
    Outcome opening;
    diffattn_bundle *opened = openBundle(bundle->getPath(), opening);
    for (int round = 0; round < 30; ++round) {
      Outcome outcome;
      compute(opened, 16, 2, outcome);
      EXPECT_EQ(outcome.numbers, expected);
    }
    diffattn_bundle_close(opened);
    --running;
  });
  EXPECT_GT(written, 0);
}

/// As `diffattn serve` uses a bundle: threads take turns in calling one, free
/// what others got, and ask for its types and for errors meanwhile. Some leave
/// early, and whoever is last closes it.
TEST_F(Concurrency, OneBundleServesManyThreads) {
  Outcome opening;
  diffattn_bundle *opened = openBundle(bundle->getPath(), opening);
  ASSERT_TRUE(opened) << diffattn_bundle_last_error();
  std::mutex oneCall, exchange;
  void *shared = nullptr; // a result that another thread frees
  std::atomic<int> started{0}, users{kThreads};
  runThreads([&](int number) {
    std::vector<float> x(16 * 8, 1.0f);
    ++started;
    while (started < kThreads)
      std::this_thread::yield();
    for (int round = 0; round < 20 * (number + 1); ++round) {
      const int64_t shape[] = {1 + (round + number) % 16, 8};
      const diffattn_array rows = {x.data(), DIFFATTN_F32, 2, shape, nullptr};
      diffattn_result results[2] = {};
      {
        std::lock_guard<std::mutex> lock(oneCall);
        EXPECT_EQ(
            diffattn_bundle_call(opened, "project", &rows, 1, 2, results, 2), 0)
            << diffattn_bundle_last_error();
      }
      // The sum of w's first column: it has 0.125 times (40 i mod 9).
      EXPECT_EQ(*static_cast<const float *>(results[0].data), 3.875f);
      diffattn_bundle_free(results[1].data);
      void *other = results[0].data;
      {
        std::lock_guard<std::mutex> lock(exchange);
        std::swap(other, shared);
      }
      diffattn_bundle_free(other);
      int32_t count = 0;
      diffattn_type type;
      EXPECT_EQ(diffattn_bundle_num_arguments(opened, "attend", &count), 0);
      for (int32_t i = 0; i < count; ++i)
        EXPECT_EQ(diffattn_bundle_argument_type(opened, "attend", i, &type), 0);
      EXPECT_STREQ(diffattn_bundle_weight_name(opened, 0), "w");
      EXPECT_NE(diffattn_bundle_argument_type(opened, "attend", 99, &type), 0);
      EXPECT_NE(diffattn_bundle_last_error()[0], '\0');
    }
    if (--users == 0) {
      diffattn_bundle_free(shared);
      diffattn_bundle_close(opened);
    }
  });
}

/// A server that is told to end while it opens: others compute on.
TEST_F(Concurrency, OpeningIsStoppedWhileOthersCompute) {
  const std::vector<float> expected = getExpected(16);
  runThreads([&](int number) {
    for (int round = 0; round < 10; ++round) {
      if (number % 2 == 0) {
        diffattn_bundle_options options = {};
        options.struct_bytes = sizeof options;
        options.go_on = [](void *, int64_t, int64_t) { return 0; };
        diffattn_bundle *stopped = nullptr;
        EXPECT_NE(diffattn_bundle_open_with(bundle->getPath().c_str(), &options,
                                            &stopped),
                  0);
        EXPECT_EQ(stopped, nullptr);
        continue;
      }
      Outcome outcome;
      diffattn_bundle *opened = openBundle(bundle->getPath(), outcome);
      compute(opened, 16, 2, outcome);
      diffattn_bundle_close(opened);
      EXPECT_EQ(outcome.numbers, expected);
    }
  });
}

} // namespace
