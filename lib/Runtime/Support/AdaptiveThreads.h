//===- AdaptiveThreads.h - Choice of a number of threads --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A region ends when its last thread does. Where other programs want the cores,
// a thread may wait milliseconds for one, and all others wait for it: a region
// of microseconds then takes a time slice of the system, and one thread alone
// would have been faster. This class decides from the times of past regions,
// and from nothing else, how many threads the next one gets.
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_LIB_RUNTIME_SUPPORT_ADAPTIVETHREADS_H
#define DIFFATTN_LIB_RUNTIME_SUPPORT_ADAPTIVETHREADS_H

#include <cstdint>
#include <optional>

namespace diffattn_rt {

/// Times of one region at its caller, in nanoseconds.
struct RegionTimes {
  int64_t threads = 1;
  /// Times at which the caller entered and left, by a monotonic clock.
  int64_t begin = 0, end = 0;
  /// The time that the threads worked, summed over them: about the time of the
  /// region on one thread. Nothing if it was not measured.
  std::optional<int64_t> work;
};

/// The threads of regions that one thread starts.
///
/// A region of several threads gains `work - (end - begin)` over one thread.
/// Gains and losses are summed. Once more than kMaxLoss is lost, regions get
/// half as many threads, for kPatience times as long as was lost; then twice as
/// many are tried again. So little time is lost however long cores are busy,
/// and it is soon noticed that they are free again.
class AdaptiveThreads {
public:
  /// A loss that is no accident, and which a preempted thread exceeds: Linux
  /// gives a thread a core for about 3 ms.
  static constexpr int64_t kMaxLoss = 500'000;
  /// Gains that are remembered: they make up for a thread that was late once,
  /// but a long good time does not hide a bad one.
  static constexpr int64_t kMaxGain = 2'000'000;
  static constexpr int64_t kPatience = 16;
  static constexpr int64_t kMaxHold = 500'000'000;
  /// Holds count time in regions, so that a program that computes seldom does
  /// not lose anew in each call; after so much time of the clock they end.
  static constexpr int64_t kMaxPause = 10'000'000'000;
  /// A thread may have been preempted in a region as long as this. For a while
  /// after it, and after the first region, work is measured; always to do so
  /// would cost too much.
  static constexpr int64_t kLongRegion = 500'000;
  static constexpr int64_t kMeasuringTime = 100'000'000;

  /// Threads for the next region, from 1 to `maxThreads`.
  int64_t choose(int64_t maxThreads) const {
    return maxThreads < limit ? maxThreads : limit;
  }

  /// Whether the work of a region that begins now is to be measured.
  bool measuresWork(int64_t now) const { return now < measuringEnd; }

  /// Records the times of a region whose threads `choose` has limited.
  void record(const RegionTimes &region);

private:
  static constexpr int64_t kNoLimit = INT64_MAX;

  int64_t limit = kNoLimit;
  int64_t balance = 0;  // gains, of which kMaxGain count, less losses
  int64_t hold = 0;     // time in regions until more threads are tried,
  int64_t held = 0;     // of which this has passed
  int64_t pauseEnd = 0; // when they are tried at the latest
  int64_t measuringEnd = kNoLimit;
};

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_SUPPORT_ADAPTIVETHREADS_H
