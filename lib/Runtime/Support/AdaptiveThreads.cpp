//===- AdaptiveThreads.cpp - Choice of a number of threads ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "AdaptiveThreads.h"

#include <algorithm>

using namespace diffattn_rt;

void AdaptiveThreads::record(const RegionTimes &region) {
  const int64_t time = region.end - region.begin;
  if (region.threads > 1 && (time > kLongRegion || measuringEnd == kNoLimit))
    measuringEnd = region.end + kMeasuringTime;
  if (region.threads > 1 && region.work) {
    balance = std::min(balance + *region.work - time, kMaxGain);
    if (balance < -kMaxLoss) {
      limit = region.threads / 2;
      hold = std::min(kPatience * -balance, kMaxHold);
      held = balance = 0;
      pauseEnd = region.end + kMaxPause;
      return;
    }
  }
  if (limit == kNoLimit)
    return;
  held += time;
  if (held < hold && region.end < pauseEnd)
    return;
  // A limit above the most threads of a region is none.
  limit = limit < (int64_t(1) << 31) ? 2 * limit : kNoLimit;
  held = balance = 0;
  pauseEnd = region.end + kMaxPause;
}
