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
// By default a region gets as many threads as are worth it (AdaptiveThreads.h).
// Each thread that starts regions learns that for itself, as it has its own
// pool, so nothing needs a lock; no result of a loop depends on the number.
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

#include "AdaptiveThreads.h"
#include "Internal.h"
#include "Trace.h"

#include "DiffAttn/Runtime/ABI/Trace.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <utility>

extern "C" {
void GOMP_parallel(void (*fn)(void *), void *data, unsigned numThreads,
                   unsigned flags);
int omp_get_max_threads(void);
int omp_get_num_procs(void);
int omp_get_thread_num(void);
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

/// Memory for bodies of loops, freed when its thread ends.
struct Scratch {
  void *pages = nullptr;
  size_t bytes = 0;

  void *get(size_t size) {
    if (size > bytes) {
      unmapPages(pages, bytes);
      pages = nullptr;
      bytes = 0;
      pages = mapPages(size);
      bytes = size;
    }
    return pages;
  }
  ~Scratch() { unmapPages(pages, bytes); }
};

thread_local Guard *guard = nullptr;
thread_local char message[kMessageBytes];
thread_local bool insideLoop = false;
thread_local Scratch loopScratch;

/// The calling thread's choice of a number of threads, 0 for none. As in
/// OpenMP, each calling thread has its own.
thread_local int64_t chosenThreads = 0;

thread_local AdaptiveThreads adaptiveThreads;

/// See diffattn_rt_adapt_threads. OpenMP's number of threads counts as chosen
/// if it differs from the number of processors when OpenMP is loaded, which is
/// its default. (To read that number later is a system call.)
std::atomic<bool> mayAdapt{true};
const int processors = omp_get_num_procs();

void keepMessage(char *to, const char *from) {
  snprintf(to, kMessageBytes, "%s", from ? from : "unknown error");
}

/// Counts that the system keeps of the calling thread: processor time in ns,
/// and how often it was preempted.
struct ThreadUse {
  int64_t processorTime, preemptions;
};
ThreadUse threadUse() {
  rusage use;
  getrusage(RUSAGE_THREAD, &use);
  auto ns = [](const timeval &time) {
    return (time.tv_sec * int64_t(1'000'000) + time.tv_usec) * 1000;
  };
  return {ns(use.ru_utime) + ns(use.ru_stime), use.ru_nivcsw};
}

struct Loop {
  void (*body)(void *, int64_t, void *);
  void *ctx;
  int64_t count;
  int64_t scratchBytes;
  bool isTraced = false;
  int64_t callerWork = 0;             // ns, if timed
  std::atomic<int64_t> othersWork{0}; // ns, if timed
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  char message[kMessageBytes];
  /// Name of the spans of its threads, if it is traced: a copy, because the
  /// caller's may go before they end.
  char traced[256];
};

/// A span of the thread that takes a share of a loop, where one is recorded.
struct ShareSpan {
  explicit ShareSpan(const Loop &loop)
      : depth(loop.isTraced ? diffattn_rt_trace_depth() : -1) {
    if (depth >= 0)
      diffattn_rt_trace_begin(loop.traced, 0, 0);
  }
  ~ShareSpan() {
    if (depth >= 0)
      diffattn_rt_trace_end_to(depth);
  }
  const int32_t depth;
};

/// Runs one thread's share of the loop.
void runShare(void *arg) {
  Loop &loop = *static_cast<Loop *>(arg);
  const ShareSpan span(loop);
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

/// Runs one thread's share of a loop that is timed.
void runTimedShare(void *arg) {
  Loop &loop = *static_cast<Loop *>(arg);
  const int64_t begin = nanoseconds();
  if (omp_get_thread_num() == 0) {
    runShare(arg);
    // As it is: on one thread the loop would have been preempted with it.
    loop.callerWork = nanoseconds() - begin;
    return;
  }
  const ThreadUse before = threadUse();
  runShare(arg);
  int64_t work = nanoseconds() - begin;
  if (work > AdaptiveThreads::kLongRegion / 2) {
    const ThreadUse after = threadUse();
    // To wait for a page of a file counts as work: one thread would do it too.
    if (after.preemptions != before.preemptions)
      work = std::min(work, after.processorTime - before.processorTime);
  }
  loop.othersWork.fetch_add(work, std::memory_order_relaxed);
}

/// Runs the loop on so many threads as are worth it, and learns from it. Most
/// loops take microseconds, so only their caller reads a clock, twice.
void runAdaptively(Loop &loop, int64_t threads) {
  AdaptiveThreads &adaptive = adaptiveThreads;
  RegionTimes times;
  times.threads = threads;
  times.begin = nanoseconds();
  if (threads == 1) {
    runShare(&loop);
  } else if (adaptive.measuresWork(times.begin)) {
    GOMP_parallel(runTimedShare, &loop, static_cast<unsigned>(threads),
                  /*flags=*/0);
    times.work = loop.callerWork + loop.othersWork.load();
  } else {
    GOMP_parallel(runShare, &loop, static_cast<unsigned>(threads), /*flags=*/0);
  }
  times.end = nanoseconds();
  adaptive.record(times);
}

/// Ends the idle threads of the pool that this thread starts regions with; does
/// nothing within a region.
void giveBackThreads() {
  constexpr int kPauseSoft = 1; // omp_pause_soft
  omp_pause_resource_all(kPauseSoft);
}

/// Registers the handler of forks when the runtime is loaded: another library
/// may have started the pool of a thread that forks before our first loop.
__attribute__((constructor)) void watchForks() {
  pthread_atfork(giveBackThreads, nullptr, nullptr);
}

} // namespace

/// Whether the number of threads of the caller's regions may adapt: neither the
/// caller nor OpenMP's setting has fixed it.
static bool adapts() {
  return chosenThreads == 0 && mayAdapt.load(std::memory_order_relaxed) &&
         omp_get_max_threads() == processors;
}

int64_t diffattn_rt::fixedRegionThreads(int64_t maxThreads) {
  if (insideLoop || omp_in_parallel())
    return 1;
  return maxThreads > 0 ? maxThreads : diffattn_rt_threads();
}

int64_t diffattn_rt::regionThreads(int64_t maxThreads) {
  const int64_t threads = fixedRegionThreads(maxThreads);
  return threads > 1 && maxThreads <= 0 && adapts()
             ? adaptiveThreads.choose(threads)
             : threads;
}

int64_t diffattn_rt_threads(void) {
  return chosenThreads > 0 ? chosenThreads : omp_get_max_threads();
}

int64_t diffattn_rt_set_threads(int64_t threads) {
  return std::exchange(chosenThreads, threads > 0 ? threads : 0);
}

void diffattn_rt_adapt_threads(int32_t on) { mayAdapt.store(on != 0); }

void diffattn_rt_parallel_for(void (*body)(void *, int64_t, void *), void *ctx,
                              int64_t count, int64_t scratch_bytes,
                              int64_t max_threads) {
  counters.parallelCalls.fetch_add(1, std::memory_order_relaxed);
  if (count <= 0)
    return;
  const int64_t threads = std::min(fixedRegionThreads(max_threads), count);
  Loop loop;
  loop.body = body;
  loop.ctx = ctx;
  loop.count = count;
  loop.scratchBytes = scratch_bytes;
  if (const char *span = openSpan(); span && threads > 1) {
    loop.isTraced = true;
    const char *name = strchr(span, '\n');
    snprintf(loop.traced, sizeof loop.traced, "thread%s", name ? name : "");
  }
  if (threads == 1)
    runShare(&loop);
  else if (max_threads <= 0 && adapts())
    runAdaptively(loop, adaptiveThreads.choose(threads));
  else
    GOMP_parallel(runShare, &loop, static_cast<unsigned>(threads), /*flags=*/0);
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
