//===- AllocationTest.cpp - each allocation of a bundle fails once --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The program has functions of its own for malloc, operator new, mmap and the
// like, which its libraries then call. A scenario runs again and again, and
// each time another allocation of the runtime, of the loader of bundles or of
// the standard library fails: the first, the second, until there are no more.
// Each run must give the right answer or an error, and the next one without a
// failure the right answer. libgomp and oneDNN are left out: the first ends
// the process where it finds no memory.
//
//===----------------------------------------------------------------------===//
#include "SmallBundle.h"

#include "DiffAttn/Runtime/ABI/Trace.h"

#include "gtest/gtest.h"

#include <atomic>
#include <cerrno>
#include <functional>
#include <iostream>
#include <link.h>
#include <malloc.h>
#include <memory>
#include <new>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace diffattn_test;

extern "C" {
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *data, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
}

namespace {

/// Code whose allocations count.
struct Range {
  uintptr_t begin, end;
};
constexpr int kMostRanges = 16;
Range ranges[kMostRanges];
int numRanges = 0;

/// Allocations up to the one that fails; 0: none does.
std::atomic<int64_t> untilFailure{0};
std::atomic<int64_t> seen{0};
std::atomic<bool> isCounting{false};

bool failsFor(const void *caller) {
  if (!isCounting.load(std::memory_order_relaxed))
    return false;
  const auto address = reinterpret_cast<uintptr_t>(caller);
  for (int i = 0; i < numRanges; ++i)
    if (address >= ranges[i].begin && address < ranges[i].end)
      return ++seen == untilFailure;
  return false;
}

void findRanges() {
  dl_iterate_phdr(
      [](dl_phdr_info *info, size_t, void *) {
        const std::string name = info->dlpi_name;
        for (const char *counted :
             {"libDiffAttnBundle.so", "libDiffAttnRuntime.so", "libstdc++.so"})
          if (name.find(counted) != std::string::npos)
            for (int i = 0; i < info->dlpi_phnum; ++i)
              if (info->dlpi_phdr[i].p_type == PT_LOAD &&
                  info->dlpi_phdr[i].p_flags & PF_X && numRanges < kMostRanges)
                ranges[numRanges++] = {
                    info->dlpi_addr + info->dlpi_phdr[i].p_vaddr,
                    info->dlpi_addr + info->dlpi_phdr[i].p_vaddr +
                        info->dlpi_phdr[i].p_memsz};
        return 0;
      },
      nullptr);
}

} // namespace

#define FAIL_IF_DUE                                                            \
  if (failsFor(__builtin_return_address(0))) {                                 \
    errno = ENOMEM;                                                            \
    return nullptr;                                                            \
  }

extern "C" {
void *malloc(size_t bytes) {
  FAIL_IF_DUE
  return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes) {
  FAIL_IF_DUE
  return __libc_calloc(count, bytes);
}
void *realloc(void *data, size_t bytes) {
  FAIL_IF_DUE
  return __libc_realloc(data, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
  FAIL_IF_DUE
  return __libc_memalign(alignment, bytes);
}
void *mmap(void *address, size_t bytes, int protection, int flags, int file,
           off_t offset) {
  if (failsFor(__builtin_return_address(0))) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void *>(
      syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
}

void *operator new(size_t bytes) {
  void *data =
      failsFor(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes);
  if (!data)
    throw std::bad_alloc();
  return data;
}
void *operator new[](size_t bytes) {
  void *data =
      failsFor(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes);
  if (!data)
    throw std::bad_alloc();
  return data;
}
void *operator new(size_t bytes, const std::nothrow_t &) noexcept {
  FAIL_IF_DUE
  return __libc_malloc(bytes);
}
void operator delete(void *data) noexcept { free(data); }
void operator delete[](void *data) noexcept { free(data); }
void operator delete(void *data, size_t) noexcept { free(data); }
void operator delete[](void *data, size_t) noexcept { free(data); }

namespace {

class Allocations : public testing::Test {
protected:
  static void SetUpTestSuite() {
    findRanges();
    ASSERT_GE(numRanges, 3);
    bundle = std::make_unique<SmallBundle>();
  }
  static void TearDownTestSuite() { bundle.reset(); }

  static std::unique_ptr<SmallBundle> bundle;
};
std::unique_ptr<SmallBundle> Allocations::bundle;

/// Runs `scenario` with each of its allocations failing once.
void failEach(const std::function<Outcome()> &scenario) {
  const Outcome expected = scenario();
  ASSERT_EQ(expected.status, 0) << diffattn_bundle_last_error();
  int64_t failed = 0, errors = 0;
  size_t before = 0;
  for (int64_t number = 1;; ++number) {
    ASSERT_LT(number, 20'000);
    seen = 0;
    untilFailure = number;
    isCounting = true;
    Outcome outcome = scenario();
    isCounting = false;
    if (seen < number)
      break;
    ++failed;
    if (outcome.status) {
      ++errors;
      EXPECT_GE(outcome.status, DIFFATTN_ERROR_USAGE) << number;
      EXPECT_LE(outcome.status, DIFFATTN_ERROR_BUNDLE) << number;
      EXPECT_NE(diffattn_bundle_last_error()[0], '\0') << number;
    } else {
      EXPECT_EQ(outcome.numbers, expected.numbers) << number;
    }
    outcome = scenario();
    EXPECT_EQ(outcome.status, 0)
        << "after " << number << ": " << diffattn_bundle_last_error();
    EXPECT_EQ(outcome.numbers, expected.numbers) << number;
    // The process keeps what the first runs allocated.
    if (number == 10)
      before = mallinfo2().uordblks;
  }
  EXPECT_GT(errors, 0);
  EXPECT_GT(failed, 20);
  // No run that failed keeps memory, but for texts of a few bytes.
  const size_t after = mallinfo2().uordblks;
  EXPECT_LT(after, before + (16 << 10)) << failed << " failures";
  std::cout << "[ COUNT    ] " << failed << " allocations failed, of which "
            << errors << " were errors\n";
}

TEST_F(Allocations, OpenAndAsk) {
  failEach([&] {
    Outcome outcome;
    diffattn_bundle *opened = openBundle(bundle->getPath(), outcome);
    if (!opened)
      return outcome;
    diffattn_type type;
    for (int32_t i = 0; i < 5 && !outcome.status; ++i)
      outcome.status =
          diffattn_bundle_argument_type(opened, "attend", i, &type);
    diffattn_bundle_close(opened);
    return outcome;
  });
}

TEST_F(Allocations, OpenAndCompute) {
  failEach([&] {
    Outcome outcome;
    diffattn_bundle *opened = openBundle(bundle->getPath(), outcome);
    if (!opened)
      return outcome;
    compute(opened, 16, 2, outcome);
    compute(opened, 1, 2, outcome);
    diffattn_bundle_close(opened);
    return outcome;
  });
}

/// One bundle for all calls: what an error leaves behind would be seen.
TEST_F(Allocations, Compute) {
  Outcome outcome;
  diffattn_bundle *opened = openBundle(bundle->getPath(), outcome);
  ASSERT_TRUE(opened) << diffattn_bundle_last_error();
  failEach([&] {
    Outcome computed;
    compute(opened, 16, 2, computed);
    return computed;
  });
  diffattn_bundle_close(opened);
}

/// A recording that finds no memory ends, and the call does not notice.
TEST_F(Allocations, ComputeWhileRecording) {
  Outcome outcome;
  diffattn_bundle *opened = openBundle(bundle->getPath(), outcome);
  ASSERT_TRUE(opened) << diffattn_bundle_last_error();
  failEach([&] {
    const bool counted = isCounting.exchange(false);
    diffattn_rt_trace_start();
    isCounting = counted;
    Outcome computed;
    compute(opened, 16, 2, computed);
    diffattn_rt_trace_stop();
    return computed;
  });
  diffattn_bundle_close(opened);
}

/// Errors are made of texts, which take memory too.
TEST_F(Allocations, Errors) {
  Outcome outcome;
  diffattn_bundle *opened = openBundle(bundle->getPath(), outcome);
  ASSERT_TRUE(opened) << diffattn_bundle_last_error();
  int64_t failed = 0;
  for (int64_t number = 1; number < 1000; ++number) {
    seen = 0;
    untilFailure = number;
    isCounting = true;
    int32_t count = 0;
    int32_t status = diffattn_bundle_num_arguments(
        opened, "an entry of a name that no text holds by itself", &count);
    diffattn_bundle *other = nullptr;
    int32_t opening =
        diffattn_bundle_open("/nowhere/in/particular/at/all", nullptr, &other);
    isCounting = false;
    EXPECT_TRUE(status == DIFFATTN_ERROR_USAGE || status == DIFFATTN_ERROR_RUN)
        << status;
    EXPECT_TRUE(opening == DIFFATTN_ERROR_BUNDLE ||
                opening == DIFFATTN_ERROR_RUN)
        << opening;
    EXPECT_EQ(other, nullptr);
    if (seen < number)
      break;
    ++failed;
  }
  EXPECT_GT(failed, 3);
  EXPECT_LT(failed, 900);
  diffattn_bundle_close(opened);
}

} // namespace
