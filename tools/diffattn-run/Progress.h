//===- Progress.h - say how far a run is ------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUN_PROGRESS_H
#define DIFFATTN_RUN_PROGRESS_H

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>

namespace mlir::diffattn {

/// A line on standard error, as of the package's Progress: written over in
/// place while it lives, from two seconds on, and gone at its end. Where
/// standard error is no terminal, nothing is written.
class Progress {
public:
  explicit Progress(std::string what)
      : what(std::move(what)), start(std::chrono::steady_clock::now()) {
    if (isatty(STDERR_FILENO))
      watcher = std::thread([this] { watch(); });
  }

  ~Progress() {
    if (!watcher.joinable())
      return;
    {
      std::lock_guard<std::mutex> lock(mutex);
      ended = true;
    }
    changed.notify_one();
    watcher.join();
    if (shown)
      std::fputs("\r\x1b[K", stderr);
  }

  /// Bytes that are done, and all of them.
  void advance(int64_t done, int64_t total) {
    std::lock_guard<std::mutex> lock(mutex);
    this->done = done;
    this->total = total;
  }

private:
  void watch() {
    std::unique_lock<std::mutex> lock(mutex);
    std::chrono::milliseconds wait(2000);
    while (!changed.wait_for(lock, wait, [this] { return ended; })) {
      shown = true;
      const double seconds = std::chrono::duration<double>(
                                 std::chrono::steady_clock::now() - start)
                                 .count();
      std::fprintf(stderr, "\r\x1b[K%s: %.0f s", what.c_str(), seconds);
      if (total > 0)
        std::fprintf(stderr, ", %lld of %lld MiB",
                     static_cast<long long>(done >> 20),
                     static_cast<long long>(total >> 20));
      std::fflush(stderr);
      wait = std::chrono::milliseconds(200);
    }
  }

  const std::string what;
  const std::chrono::steady_clock::time_point start;
  std::mutex mutex;
  std::condition_variable changed;
  int64_t done = 0, total = 0;
  bool ended = false, shown = false;
  std::thread watcher;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_RUN_PROGRESS_H
