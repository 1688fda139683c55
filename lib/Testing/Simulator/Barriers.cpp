//===- Barriers.cpp - threads that wait for each other --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Block.h"

#include "llvm/ADT/SmallVector.h"

using namespace mlir::diffattn::sim;

bool Block::arrive(uint32_t siteNumber, llvm::ArrayRef<uint16_t> arriving,
                   const Meeting *meeting, const uint32_t *in) {
  const Site &site = siteAt(siteNumber);
  const uint32_t id = in[0];
  const uint32_t count = site.wholeBlock ? blockThreads : in[1];
  const bool waits = site.kind != OpKind::BarrierArrive,
             reduces = site.kind == OpKind::BarrierReduce;
  if (id >= 16) {
    report(FaultKind::BarrierMismatch, siteNumber,
           "expected a barrier from 0 to 15, but got " + std::to_string(id));
    stop();
  }
  const uint32_t number = 16 * rankOf(arriving.front()) + id;
  Barrier &barrier = barriers[number];
  if (!site.wholeBlock &&
      (count == 0 || count % 32 != 0 || count > blockThreads)) {
    report(FaultKind::BarrierMismatch, siteNumber,
           "expected a multiple of 32 up to the " +
               std::to_string(blockThreads) +
               " threads of the block, but barrier " + std::to_string(id) +
               " got " + std::to_string(count));
    stop();
  }
  if (barrier.arrived == 0) {
    barrier.expected = count;
    barrier.site = siteNumber;
    barrier.trueCount = 0;
  } else if (barrier.expected != count) {
    report(FaultKind::BarrierMismatch, siteNumber,
           "expected all threads to give barrier " + std::to_string(id) +
               " the same count, but got " + std::to_string(barrier.expected) +
               " and " + std::to_string(count),
           &siteAt(barrier.site));
    stop();
  }
  barrier.arrived += arriving.size();
  if (barrier.arrived > barrier.expected) {
    report(FaultKind::BarrierMismatch, siteNumber,
           "expected " + std::to_string(barrier.expected) +
               " threads at barrier " + std::to_string(id) + ", but got " +
               std::to_string(barrier.arrived),
           &siteAt(barrier.site));
    stop();
  }
  if (!site.wholeBlock || launch.ranks > 1)
    clocks.release(barrier.released, arriving);
  for (uint16_t each : arriving) {
    Thread &thread = lanes[each];
    thread.site = siteNumber;
    thread.barrier = number;
    if (reduces) {
      const uint32_t *words = meeting ? meeting->in[each % 32] : in;
      thread.result = meeting ? meeting->out[each % 32] : thread.result;
      barrier.trueCount += words[site.wholeBlock ? 1 : 2] & 1;
    }
    if (!waits)
      continue;
    thread.state = State::AtBarrier;
    barrier.waiting.push_back(each);
  }
  if (barrier.arrived < barrier.expected)
    return false;
  open(barrier, static_cast<BarrierReduction>(site.mode), reduces);
  return true;
}

void Block::open(Barrier &barrier, BarrierReduction reduction, bool reduces) {
  ++stats.totals.barriers;
  // Whoever only arrived learns nothing, so not even a barrier of all threads
  // starts an era then.
  if (barrier.waiting.size() == threads)
    clocks.meetAll();
  else
    clocks.acquire(barrier.released, barrier.waiting);
  std::vector<uint16_t> woken = std::move(barrier.waiting);
  uint32_t total = barrier.trueCount, expected = barrier.expected;
  barrier = Barrier();
  for (uint16_t number : woken) {
    if (reduces && lanes[number].result)
      *lanes[number].result = reduction == BarrierReduction::Popc ? total
                              : reduction == BarrierReduction::And
                                  ? total == expected
                                  : total != 0;
    if (number != active)
      wake(number);
  }
  lanes[active].state = State::Ready;
}

void Block::syncWarp(unsigned warpIndex, uint32_t mask) {
  llvm::SmallVector<uint16_t, 32> members;
  collectThreads(warpIndex, mask, members);
  if (members.size() == threads) {
    clocks.meetAll();
    return;
  }
  Clocks::Vector joined;
  clocks.release(joined, members);
  clocks.acquire(joined, members);
}
