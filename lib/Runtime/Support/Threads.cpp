//===- Threads.cpp - Parallel loops and failing calls ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Loops run on libgomp's pool, which oneDNN and PyTorch use too: a process with
// two OpenMP runtimes has two pools that spin against each other. Clang would
// bring libomp, so the one entry point that is needed is declared by hand.
//
// A fork takes over no thread but the one that forks. A pool whose threads are
// gone would be waited for by the child's first region, so the pool is given
// back before every fork; the next region, of the parent or the child, starts
// another.
//
// A failure leaves compiled code by longjmp: it has no frames to unwind. Each
// thread of a loop catches its own, and the loop's caller fails again after the
// region has ended.
//
//===----------------------------------------------------------------------===//

#include "Internal.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <utility>

extern "C" {
void GOMP_parallel(void (*fn)(void *), void *data, unsigned numThreads,
                   unsigned flags);
int omp_get_max_threads(void);
int omp_in_parallel(void);
int omp_pause_resource_all(int kind);
}

using namespace diffattn_rt;

Counters diffattn_rt::counters;

namespace {

constexpr size_t kMessageBytes = 1024;

struct Guard {
  jmp_buf env;
  Guard *outer;
};

/// Memory that bodies of loops get; goes back when its thread ends.
struct Scratch {
  void *pages = nullptr;
  size_t bytes = 0;

  void *get(size_t wanted) {
    if (wanted > bytes) {
      unmapPages(pages, bytes);
      pages = nullptr;
      bytes = 0;
      pages = mapPages(wanted);
      bytes = wanted;
    }
    return pages;
  }
  ~Scratch() { unmapPages(pages, bytes); }
};

thread_local Guard *guard = nullptr;
thread_local char message[kMessageBytes];
thread_local bool insideLoop = false;
thread_local Scratch loopScratch;

/// As OpenMP's own setting, one for each thread that calls: a caller's choice
/// is none of another's.
thread_local int64_t chosenThreads = 0;

void keepMessage(char *to, const char *from) {
  snprintf(to, kMessageBytes, "%s", from ? from : "unknown error");
}

struct Loop {
  void (*body)(void *, int64_t, void *);
  void *ctx;
  int64_t count;
  int64_t scratchBytes;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  char message[kMessageBytes];
};

/// One thread's share of the loop.
void runLoop(void *arg) {
  Loop &loop = *static_cast<Loop *>(arg);
  bool nested = insideLoop;
  int64_t mark = diffattn_rt_mark();
  Guard own;
  own.outer = guard;
  guard = &own;
  insideLoop = true;
  if (_setjmp(own.env) == 0) {
    void *scratch = nullptr;
    // The body of an outer loop on this thread still uses the thread's scratch.
    if (loop.scratchBytes > 0)
      scratch = nested ? diffattn_rt_alloc(loop.scratchBytes)
                       : loopScratch.get(loop.scratchBytes);
    for (int64_t i;
         (i = loop.next.fetch_add(1, std::memory_order_relaxed)) < loop.count;)
      loop.body(loop.ctx, i, scratch);
  } else {
    if (!loop.failed.exchange(true))
      keepMessage(loop.message, message);
    loop.next.store(loop.count, std::memory_order_relaxed);
  }
  insideLoop = nested;
  guard = own.outer;
  diffattn_rt_release(mark);
}

/// Ends the idle threads of the pool that this thread starts regions with; does
/// nothing within a region.
void giveBackThreads() {
  constexpr int kPauseSoft = 1; // omp_pause_soft
  omp_pause_resource_all(kPauseSoft);
}

/// When the runtime is loaded: another library may have started the pool of a
/// thread that forks before our first loop.
__attribute__((constructor)) void watchForks() {
  pthread_atfork(giveBackThreads, nullptr, nullptr);
}

} // namespace

int64_t diffattn_rt::regionThreads(int64_t maxThreads) {
  if (insideLoop || omp_in_parallel())
    return 1;
  return maxThreads > 0 ? maxThreads : diffattn_rt_threads();
}

int64_t diffattn_rt_threads(void) {
  return chosenThreads > 0 ? chosenThreads : omp_get_max_threads();
}

int64_t diffattn_rt_set_threads(int64_t threads) {
  return std::exchange(chosenThreads, threads > 0 ? threads : 0);
}

void diffattn_rt_parallel_for(void (*body)(void *, int64_t, void *), void *ctx,
                              int64_t count, int64_t scratch_bytes,
                              int64_t max_threads) {
  counters.parallelCalls.fetch_add(1, std::memory_order_relaxed);
  if (count <= 0)
    return;
  int64_t threads = regionThreads(max_threads);
  if (threads > count)
    threads = count;
  Loop loop;
  loop.body = body;
  loop.ctx = ctx;
  loop.count = count;
  loop.scratchBytes = scratch_bytes;
  if (threads == 1)
    runLoop(&loop);
  else
    GOMP_parallel(runLoop, &loop, static_cast<unsigned>(threads), /*flags=*/0);
  if (loop.failed.load())
    diffattn_rt_fail(loop.message);
}

void diffattn_rt_fail(const char *msg) {
  if (!guard) {
    fprintf(stderr, "error: %s\n", msg ? msg : "unknown error");
    exit(1);
  }
  keepMessage(message, msg);
  _longjmp(guard->env, 1);
}

void diffattn_rt_fail_with(const char *msg, int64_t first, int64_t second) {
  char text[kMessageBytes];
  size_t used = 0;
  for (const char *at = msg; *at && used + 1 < sizeof text;) {
    const bool isFirst = strncmp(at, "{0}", 3) == 0;
    if (isFirst || strncmp(at, "{1}", 3) == 0) {
      const int64_t number = isFirst ? first : second;
      used += snprintf(text + used, sizeof text - used, "%lld",
                       static_cast<long long>(number));
      at += 3;
    } else {
      text[used++] = *at++;
    }
  }
  text[used < sizeof text ? used : sizeof text - 1] = 0;
  diffattn_rt_fail(text);
}

int32_t diffattn_rt_call(void (*fn)(void *), void *arg) {
  Guard own;
  own.outer = guard;
  bool nested = insideLoop;
  int64_t mark = diffattn_rt_mark();
  guard = &own;
  int32_t failed = 0;
  if (_setjmp(own.env) == 0) {
    fn(arg);
  } else {
    failed = 1;
    insideLoop = nested;
    diffattn_rt_release(mark);
  }
  guard = own.outer;
  return failed;
}

const char *diffattn_rt_error(void) { return message; }

void diffattn_rt_counters(diffattn_counters *out) {
  out->gemm_calls = counters.gemmCalls.load();
  out->parallel_calls = counters.parallelCalls.load();
  out->arena_grows = counters.arenaGrows.load();
  out->arena_bytes_peak = counters.arenaBytesPeak.load();
  out->packs = counters.packs.load();
}

void diffattn_rt_counters_reset(void) {
  counters.gemmCalls = 0;
  counters.parallelCalls = 0;
  counters.arenaGrows = 0;
  counters.arenaBytesPeak = 0;
  counters.packs = 0;
}
