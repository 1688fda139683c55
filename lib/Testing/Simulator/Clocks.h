//===- Clocks.h - vector clocks ---------------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_CLOCKS_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_CLOCKS_H

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace mlir::diffattn::sim {

/// Vector clocks of the threads of one block. A barrier of the whole block
/// starts an era: all before it is ordered, and no vector is needed. Barriers
/// of fewer threads (named barriers, syncwarp) make one vector that their
/// participants share. Shuffles, mma and ldmatrix order no memory accesses and
/// do not come here.
///
/// Agents are numbered after the threads: what runs beside them, as copies of
/// an mbarrier and the wgmma of a warpgroup. Only a thread that waits for an
/// agent is ordered after it; a barrier passes the waits of its threads on.
class Clocks {
public:
  using Vector = std::shared_ptr<const std::vector<uint32_t>>;

  void reset(unsigned threads, unsigned agents = 0);

  uint32_t now(unsigned thread) const { return own[thread]; }

  /// Whether what `thread` did at time `when` is ordered before what `observer`
  /// does now.
  bool ordered(unsigned observer, unsigned thread, uint32_t when) const {
    if (observer == thread || when < eraStart[thread])
      return true;
    const auto &vector = known[observer];
    return vector && when <= (*vector)[thread];
  }

  /// The async proxy sees what `thread` wrote before.
  void fenceProxy(unsigned thread) { fences[thread].push_back(++own[thread]); }
  /// Whether a fence of `thread` lies between what it did at `when` and what
  /// `observer` does now. What agents do needs none.
  bool isFenced(unsigned observer, unsigned thread, uint32_t when) const;

  /// Adds to `vector` that `agent` did all up to `when`.
  void releaseAgent(Vector &vector, unsigned agent, uint32_t when) const;

  /// All threads met.
  void meetAll();

  /// Adds the vectors of `threads` to `vector`, and advances their times: what
  /// they do later is not released.
  void release(Vector &vector, llvm::ArrayRef<uint16_t> threads);
  /// Adds `vector` to the vectors of `threads`.
  void acquire(const Vector &vector, llvm::ArrayRef<uint16_t> threads);

private:
  void meetWithAgents();

  unsigned threads = 0;
  std::vector<uint32_t> own, eraStart;
  /// The times of each thread's fences, in order.
  std::vector<std::vector<uint32_t>> fences;
  std::vector<Vector> known;
  /// The last sum of two vectors and its terms, for reuse.
  Vector lastKnown, lastAdded, lastSum;
};

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_CLOCKS_H
