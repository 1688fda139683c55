//===- Async.h - agents beside the threads of a block -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_ASYNC_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_ASYNC_H

#include "Clocks.h"
#include "DiffAttn/Testing/Simulator/TensorMap.h"
#include "Site.h"

#include <deque>
#include <map>

namespace mlir::diffattn::sim {

/// Numbers of agents, after those of the threads: the wgmmas of each
/// warpgroup, the copies of each mbarrier, and of each thread that stores by
/// the copy engine what it reads and what it writes.
struct AgentNumbers {
  static constexpr unsigned kMaxBarriers = 64, kMaxStorers = 16;
  unsigned firstWgmma = 0, firstBarrier = 0, firstStorer = 0, count = 0;

  static AgentNumbers of(unsigned threads, unsigned ranks) {
    AgentNumbers numbers;
    numbers.firstWgmma = threads;
    numbers.firstBarrier = threads + (threads + 127) / 128;
    numbers.firstStorer = numbers.firstBarrier + ranks * kMaxBarriers;
    numbers.count = numbers.firstStorer + ranks * 2 * kMaxStorers - threads;
    return numbers;
  }
};

struct Mbarrier {
  uint32_t site = 0;
  /// The agent that stands for the copies that arrive here.
  uint16_t agent = 0;
  uint16_t initializer = 0;
  uint32_t initialized = 0;
  /// Whether the copy engine sees that it was initialized.
  bool fenced = false;
  /// Arrivals that a phase needs, and what the present one still lacks.
  uint32_t count = 0, pending = 0;
  /// Bytes expected in the present phase less those that came.
  int64_t bytes = 0;
  uint32_t phase = 0;
  /// Whether a wait has seen the last phase's end, if there was one.
  bool isSeen = true;
  /// Clocks ordered before the present phase's end, and before the last one's.
  Clocks::Vector collecting, released;
  std::vector<uint16_t> waiting;
};

/// A copy of a box between global and shared memory.
struct BulkCopy {
  TensorMap map;
  std::array<int32_t, 5> at = {};
  uint32_t offset = 0, site = 0;
  /// For a load: the offset of its mbarrier.
  uint32_t barrier = 0;
  /// For a store: the group of its thread.
  uint32_t group = 0;
};

/// The stores of one thread, in order.
struct Storer {
  uint16_t agent = 0;
  uint32_t group = 0;
  /// Stores whose reads of shared memory are not known to have ended.
  std::deque<BulkCopy> copies;
};

/// State of a warp's wgmma.
struct WarpMatrices {
  /// For each wgmma of the module: the group of its last issue, from 1, or 0;
  /// and whether its registers were used since the last fence.
  std::vector<uint32_t> groups;
  std::vector<uint8_t> touched;
  /// Groups that were committed, and how many of them were waited for.
  uint32_t committed = 0, retired = 0;
  /// The last group, from 1, that has a wgmma, and that one's site.
  uint32_t last = 0, lastSite = 0;

  bool inFlight(unsigned number) const { return groups[number] > retired; }
};

/// A meeting of the four warps of a warpgroup, and its registers.
struct Warpgroup {
  uint32_t site = 0;
  unsigned arrived = 0;
  const uint32_t *in[4][32];
  uint32_t *out[4][32];
  uint32_t registers = 0;
  /// Registers that it waits for, or 0.
  uint32_t requested = 0;
};

/// The barrier of all threads of a cluster.
struct ClusterBarrier {
  uint32_t phase = 0, arrived = 0;
  /// For each thread the phase of an arrival that it has not waited for, from
  /// 1, or 0.
  std::vector<uint32_t> phases;
  Clocks::Vector collecting, released;
  std::vector<uint16_t> waiting;
};

struct AsyncState {
  AgentNumbers agents;
  /// The mbarriers by offset in shared memory.
  std::map<uint32_t, Mbarrier> barriers;
  unsigned barrierAgents = 0;
  /// Loads that have not arrived, in the order of their issue.
  std::deque<BulkCopy> loads;
  std::map<uint16_t, Storer> storers;
  std::vector<WarpMatrices> warps;
  std::vector<Warpgroup> warpgroups;
  ClusterBarrier cluster;

  /// `threads` are those of all `ranks` blocks of a cluster.
  void reset(unsigned threads, unsigned ranks, unsigned wgmmas);
};

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_ASYNC_H
