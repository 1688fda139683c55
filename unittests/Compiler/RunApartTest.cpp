//===- RunApartTest.cpp - isolation of another process --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "RunApart.h"

#include "DiffAttn/Compiler/Error.h"

#include "gtest/gtest.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

using namespace mlir::diffattn;
using namespace diffattn_rt;

namespace {

constexpr ApartLimits kLimits = {/*seconds=*/1, /*bytes=*/int64_t(64) << 20,
                                 /*elapsed=*/60};

std::string getFault(llvm::function_ref<std::string()> action) {
  auto result = runApart(kLimits, action);
  if (result)
    return "returned " + *result;
  auto [errorClass, message] = describeError(result.takeError());
  EXPECT_EQ(errorClass, ErrorClass::IR);
  return message;
}

TEST(RunApart, ReturnsTextAndKeepsChanges) {
  int number = 1;
  auto result = runApart(kLimits, [&] {
    number = 2;
    return std::string(200000, 'x') + std::string("\0y", 2);
  });
  ASSERT_TRUE(static_cast<bool>(result));
  EXPECT_EQ(*result, std::string(200000, 'x') + std::string("\0y", 2));
  EXPECT_EQ(number, 1);
  auto empty = runApart(kLimits, [] { return std::string(); });
  ASSERT_TRUE(static_cast<bool>(empty));
  EXPECT_EQ(*empty, "");
}

TEST(RunApart, CrashesAreErrors) {
  for (int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL})
    EXPECT_EQ(getFault([&] {
                std::raise(signal);
                return std::string();
              }),
              "expected MLIR to report what it cannot take, but it crashed");
}

TEST(RunApart, TimeIsLimited) {
  EXPECT_EQ(
      getFault([]() -> std::string {
        for (volatile uint64_t i = 0;; i = i + 1) {
        }
      }),
      "expected MLIR to take at most 1 seconds of a CPU, but it took more");
}

TEST(RunApart, WaitingIsLimited) {
  ApartLimits limits = kLimits;
  limits.elapsed = 1;
  auto result = runApart(limits, []() -> std::string {
    while (true)
      ::pause();
  });
  ASSERT_FALSE(static_cast<bool>(result));
  EXPECT_EQ(describeError(result.takeError()).second,
            "expected MLIR to take at most 1 seconds of the clock, but it took "
            "more");
}

TEST(RunApart, MemoryIsLimited) {
  auto take = [](size_t bytes) {
    void *memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return std::string(memory == MAP_FAILED ? "none" : "some");
  };
  EXPECT_EQ(getFault([&] { return take(size_t(1) << 20); }), "returned some");
  EXPECT_EQ(getFault([&] { return take(size_t(256) << 20); }), "returned none");
}

TEST(RunApart, WorksWhereOthersWaitForChildren) {
  auto *before = std::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(getFault([] { return std::string("text"); }), "returned text");
  EXPECT_EQ(getFault([]() -> std::string { std::abort(); }),
            "expected MLIR to report what it cannot take, but it crashed");
  std::signal(SIGCHLD, before);
}

TEST(RunApart, WaitsForThoseWhoHoldLocks) {
  NoForks here;
  std::atomic<bool> done = false;
  std::thread other([&] {
    EXPECT_EQ(getFault([] { return std::string("text"); }), "returned text");
    done = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(done);
  here.pause();
  other.join();
  here.resume();
  EXPECT_TRUE(done);
}

} // namespace
