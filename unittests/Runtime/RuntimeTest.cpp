//===- RuntimeTest.cpp - Threads, workspace, failing calls ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "gtest/gtest.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <pthread.h>
#include <set>
#include <string>
#include <thread>
#include <vector>

extern "C" {
int omp_get_max_threads(void);
int omp_get_num_procs(void);
int omp_get_num_threads(void);
}

namespace {

diffattn_counters readCounters() {
  diffattn_counters c;
  diffattn_rt_counters(&c);
  return c;
}

TEST(ParallelFor, RunsEachIndexOnce) {
  for (int64_t threads : {0, 1, 2, 5}) {
    std::vector<std::atomic<int>> hits(1000);
    diffattn_rt_parallel_for(
        [](void *ctx, int64_t i, void *) {
          ++(*static_cast<std::vector<std::atomic<int>> *>(ctx))[i];
        },
        &hits, 1000, 0, threads);
    for (auto &h : hits)
      EXPECT_EQ(h.load(), 1);
  }
}

TEST(ParallelFor, TakesNoIndices) {
  auto body = [](void *, int64_t, void *) { FAIL(); };
  diffattn_rt_parallel_for(body, nullptr, 0, 64, 0);
  diffattn_rt_parallel_for(body, nullptr, -3, 64, 0);
}

TEST(ParallelFor, OneThreadGoesInOrder) {
  std::vector<int64_t> order;
  diffattn_rt_parallel_for(
      [](void *ctx, int64_t i, void *) {
        static_cast<std::vector<int64_t> *>(ctx)->push_back(i);
      },
      &order, 50, 0, 1);
  for (int64_t i = 0; i < 50; ++i)
    EXPECT_EQ(order[i], i);
}

TEST(ParallelFor, ScratchIsAlignedAndOwn) {
  struct Context {
    std::atomic<int> mismatches{0};
  } context;
  auto body = [](void *ctx, int64_t i, void *scratch) {
    auto &c = *static_cast<Context *>(ctx);
    if (reinterpret_cast<uintptr_t>(scratch) % 64)
      ++c.mismatches;
    auto *p = static_cast<volatile int64_t *>(scratch);
    for (int k = 0; k < 1000; ++k)
      p[k] = i;
    std::this_thread::yield();
    for (int k = 0; k < 1000; ++k)
      if (p[k] != i)
        ++c.mismatches;
  };
  diffattn_rt_parallel_for(body, &context, 200, 8000, 2);
  EXPECT_EQ(context.mismatches.load(), 0);
  int64_t before = readCounters().arena_grows;
  diffattn_rt_parallel_for(body, &context, 200, 8000, 2);
  EXPECT_EQ(readCounters().arena_grows, before);
}

TEST(ParallelFor, NestedLoopsKeepTheOuterScratch) {
  std::atomic<int> mismatches{0};
  diffattn_rt_parallel_for(
      [](void *ctx, int64_t i, void *scratch) {
        memset(scratch, int(i) + 1, 256);
        diffattn_rt_parallel_for(
            [](void *, int64_t, void *inner) { memset(inner, 0, 256); },
            nullptr, 3, 256, 0);
        for (int k = 0; k < 256; ++k)
          if (static_cast<unsigned char *>(scratch)[k] != i + 1)
            ++*static_cast<std::atomic<int> *>(ctx);
      },
      &mismatches, 20, 256, 2);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST(Threads, DefaultCanBeSetAndSetBack) {
  int64_t before = diffattn_rt_threads();
  EXPECT_EQ(diffattn_rt_set_threads(7), 0);
  EXPECT_EQ(diffattn_rt_threads(), 7);
  EXPECT_EQ(diffattn_rt_set_threads(0), 7);
  EXPECT_EQ(diffattn_rt_threads(), before);
}

TEST(Threads, DefaultIsTheCallersOwn) {
  int64_t before = diffattn_rt_threads(), seen = 0;
  diffattn_rt_set_threads(before + 3);
  std::thread([&] { seen = diffattn_rt_threads(); }).join();
  EXPECT_EQ(seen, before);
  diffattn_rt_set_threads(0);
}

/// Threads of the calling thread's next region by default.
int64_t teamSize() {
  std::atomic<int64_t> size{0};
  diffattn_rt_parallel_for(
      [](void *ctx, int64_t, void *) {
        *static_cast<std::atomic<int64_t> *>(ctx) = omp_get_num_threads();
      },
      &size, DIFFATTN_RT_MAX_THREADS, 0, 0);
  return size;
}

/// A thread of the calling thread's pool, other than itself.
pthread_t someHelper() {
  struct Context {
    pthread_t caller = pthread_self();
    std::atomic<pthread_t> helper{pthread_self()};
  } context;
  while (context.helper == context.caller)
    diffattn_rt_parallel_for(
        [](void *ctx, int64_t, void *) {
          auto &c = *static_cast<Context *>(ctx);
          if (!pthread_equal(pthread_self(), c.caller))
            c.helper = pthread_self();
          std::this_thread::yield();
        },
        &context, 1000, 0, omp_get_num_procs());
  return context.helper;
}

/// The signal that delays the thread which gets it by 5 ms before its next
/// region, as another program on its core would.
constexpr int kLate = SIGUSR1;
void beLate(int) {
  using Clock = std::chrono::steady_clock;
  for (auto end = Clock::now() + std::chrono::milliseconds(5);
       Clock::now() < end;) {
  }
}

/// Calls `region` with a thread that is late each time, until `region` returns
/// false or it was called `most` times. Returns how often it was.
template <typename Region>
int whileOneIsLate(int most, Region region) {
  // For good: one may be under way when this returns.
  struct sigaction act = {};
  act.sa_handler = beLate;
  act.sa_flags = SA_RESTART;
  sigaction(kLate, &act, nullptr);
  const pthread_t helper = someHelper();
  int calls = 0;
  bool goOn = true;
  while (goOn && calls < most) {
    pthread_kill(helper, kLate);
    goOn = region();
    ++calls;
  }
  return calls;
}

bool defaultAdapts() {
  return omp_get_num_procs() > 1 &&
         omp_get_max_threads() == omp_get_num_procs();
}

TEST(Threads, DefaultIsFewerWhileOneIsLateAndResultsStay) {
  if (!defaultAdapts())
    GTEST_SKIP() << "one processor, or OMP_NUM_THREADS is set";
  std::thread([] {
    const int64_t M = 70, N = 200, K = 90;
    std::vector<float> a(M * K), b(K * N);
    for (size_t i = 0; i < a.size(); ++i)
      a[i] = static_cast<float>(i % 37) / 7;
    for (size_t i = 0; i < b.size(); ++i)
      b[i] = static_cast<float>(i % 41) / 9;
    auto multiply = [&] {
      std::vector<float> c(M * N);
      diffattn_rt_gemm(DIFFATTN_F32, DIFFATTN_F32, DIFFATTN_F32, M, N, K,
                       a.data(), K, b.data(), N, DIFFATTN_GEMM_IN_ORDER,
                       c.data(), N, /*beta=*/0, nullptr, /*max_threads=*/0);
      return c;
    };
    const std::vector<float> expected = multiply();
    const int64_t all = omp_get_num_procs();
    int64_t team = all;
    whileOneIsLate(200, [&] {
      EXPECT_EQ(multiply(), expected);
      team = teamSize();
      return team == all;
    });
    EXPECT_LT(team, all);
    EXPECT_EQ(multiply(), expected);
  }).join();
}

TEST(Threads, AChosenNumberStays) {
  if (!defaultAdapts())
    GTEST_SKIP() << "one processor, or OMP_NUM_THREADS is set";
  for (bool byOpenMP : {false, true})
    std::thread([byOpenMP] {
      const int64_t all = omp_get_num_procs();
      if (byOpenMP)
        diffattn_rt_adapt_threads(0);
      else
        diffattn_rt_set_threads(all);
      EXPECT_EQ(whileOneIsLate(20, [&] { return teamSize() == all; }), 20);
      diffattn_rt_adapt_threads(1);
    }).join();
}

TEST(Arena, MarksNestAndMemoryIsReused) {
  int64_t mark = diffattn_rt_mark();
  auto *a = static_cast<char *>(diffattn_rt_alloc(100));
  int64_t inner = diffattn_rt_mark();
  auto *b = static_cast<char *>(diffattn_rt_alloc(1));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 64, 0u);
  EXPECT_GE(b, a + 100);
  diffattn_rt_release(inner);
  EXPECT_EQ(diffattn_rt_alloc(1), b);
  diffattn_rt_release(mark);
  EXPECT_EQ(diffattn_rt_alloc(1), a);
  diffattn_rt_release(mark);
}

TEST(Arena, MapsNothingOnceWarm) {
  std::thread([] {
    auto call = [] {
      int64_t mark = diffattn_rt_mark();
      for (int i = 0; i < 20; ++i)
        memset(diffattn_rt_alloc(3 << 20), i, 3 << 20);
      diffattn_rt_release(mark);
    };
    call();
    call();
    int64_t before = readCounters().arena_grows;
    call();
    EXPECT_EQ(readCounters().arena_grows, before);
    EXPECT_GE(readCounters().arena_bytes_peak, 60 << 20);
  }).join();
}

TEST(Arena, BlocksOfOneCallDoNotOverlap) {
  std::thread([] {
    int64_t mark = diffattn_rt_mark();
    std::vector<std::pair<char *, int64_t>> all;
    for (int64_t bytes : {10, 3 << 20, 64, 9 << 20, 100, 1 << 20, 40 << 20, 7})
      all.push_back({static_cast<char *>(diffattn_rt_alloc(bytes)), bytes});
    for (size_t i = 0; i < all.size(); ++i)
      memset(all[i].first, int(i), all[i].second);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].first[0], char(i));
      EXPECT_EQ(all[i].first[all[i].second - 1], char(i));
    }
    diffattn_rt_release(mark);
  }).join();
}

TEST(Fail, ReturnsToTheCall) {
  int64_t mark = diffattn_rt_mark();
  int32_t failed = diffattn_rt_call(
      [](void *) {
        diffattn_rt_alloc(1000);
        diffattn_rt_fail("expected 3, but got 4");
      },
      nullptr);
  EXPECT_EQ(failed, 1);
  EXPECT_STREQ(diffattn_rt_error(), "expected 3, but got 4");
  EXPECT_EQ(diffattn_rt_mark(), mark);
  EXPECT_EQ(diffattn_rt_call([](void *) {}, nullptr), 0);
}

TEST(Fail, CrossesAParallelLoop) {
  for (int64_t threads : {1, 2, 4}) {
    int64_t n = threads;
    int32_t failed = diffattn_rt_call(
        [](void *arg) {
          diffattn_rt_parallel_for(
              [](void *, int64_t i, void *) {
                if (i == 37)
                  diffattn_rt_fail("bad index");
              },
              nullptr, 100, 64, *static_cast<int64_t *>(arg));
        },
        &n);
    EXPECT_EQ(failed, 1);
    EXPECT_STREQ(diffattn_rt_error(), "bad index");
    // The next loop works.
    std::atomic<int> count{0};
    diffattn_rt_parallel_for(
        [](void *ctx, int64_t, void *) {
          ++*static_cast<std::atomic<int> *>(ctx);
        },
        &count, 100, 64, threads);
    EXPECT_EQ(count.load(), 100);
  }
}

TEST(Fail, UnservableSizesAreErrors) {
  for (int64_t bytes : {int64_t(-1), int64_t(1) << 46, INT64_MAX}) {
    int64_t n = bytes;
    EXPECT_EQ(
        diffattn_rt_call(
            [](void *arg) { diffattn_rt_alloc(*static_cast<int64_t *>(arg)); },
            &n),
        1);
    EXPECT_NE(std::string(diffattn_rt_error()).find("expected"),
              std::string::npos);
  }
}

TEST(FailDeathTest, OutsideOfACallTheProcessEnds) {
  EXPECT_EXIT(diffattn_rt_fail("lost"), testing::ExitedWithCode(1),
              "error: lost");
}

} // namespace
