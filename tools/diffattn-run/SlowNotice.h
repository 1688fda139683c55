//===- SlowNotice.h - a word when something takes long ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUN_SLOWNOTICE_H
#define DIFFATTN_RUN_SLOWNOTICE_H

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

namespace mlir::diffattn {

/// Prints "<what> ..." if it lives longer than a second, and how long it took
/// when it ends.
class SlowNotice {
public:
  explicit SlowNotice(std::string what)
      : what(std::move(what)), start(std::chrono::steady_clock::now()),
        watcher([this] { watch(); }) {}

  ~SlowNotice() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      done = true;
    }
    changed.notify_one();
    watcher.join();
    if (shown)
      std::fprintf(stderr, "%s: %.1f s\n", what.c_str(), seconds());
  }

private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         start)
        .count();
  }
  void watch() {
    std::unique_lock<std::mutex> lock(mutex);
    if (changed.wait_for(lock, std::chrono::seconds(1),
                         [this] { return done; }))
      return;
    shown = true;
    std::fprintf(stderr, "%s ...\n", what.c_str());
  }

  std::string what;
  std::chrono::steady_clock::time_point start;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false, shown = false;
  std::thread watcher;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_RUN_SLOWNOTICE_H
