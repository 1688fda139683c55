//===- Mbarriers.cpp - barriers in shared memory that count bytes ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Block.h"

using namespace mlir::diffattn::sim;

/// PTX ISA: the range of counts and of the bytes that a phase expects.
static constexpr int64_t kMaxCount = (1 << 20) - 1;

std::optional<uint32_t> Block::sharedOffset(const uint32_t *in, uint32_t bytes,
                                            uint32_t alignment, uint32_t site) {
  const uint64_t address = in[0] | uint64_t(in[1]) << 32;
  const uint32_t offset = sharedAt(address);
  if (!shadow.inside(offset, bytes)) {
    report(FaultKind::OutOfBounds, site,
           std::to_string(bytes) + " bytes at " +
               std::to_string(int64_t(address - kSharedBase)) +
               " of shared memory, of which the kernel has " +
               std::to_string(launch.sharedEnd) + " bytes");
    return std::nullopt;
  }
  if (!checkAlignment(offset, alignment, site, "shared memory"))
    return std::nullopt;
  return offset;
}

void Block::initMbarrier(uint32_t offset, uint32_t count, uint32_t site) {
  if (async.barriers.count(offset)) {
    report(FaultKind::BarrierMismatch, site,
           nameMbarrier(offset) + " is initialized, but it is one already",
           &siteAt(async.barriers[offset].site));
    stop();
  }
  if (count < 1 || count > kMaxCount) {
    report(FaultKind::BarrierMismatch, site,
           "expected an mbarrier for 1 to " + std::to_string(kMaxCount) +
               " arrivals, but got " + std::to_string(count));
    stop();
  }
  if (async.barrierAgents == launch.ranks * AgentNumbers::kMaxBarriers) {
    report(FaultKind::BarrierMismatch, site,
           "expected at most " + std::to_string(AgentNumbers::kMaxBarriers) +
               " mbarriers in a block, which is what the simulator knows");
    stop();
  }
  const Shadow::Access access{offset, 8, active, uint16_t(site)};
  if (auto hit = shadow.beginBarrier(access, clocks, launch.options.checkRaces))
    reportShadow(*hit, access, true);
  Mbarrier &barrier = async.barriers[offset];
  barrier.site = site;
  barrier.agent = async.agents.firstBarrier + async.barrierAgents++;
  barrier.initializer = active;
  barrier.initialized = clocks.now(active);
  barrier.count = barrier.pending = count;
}

Mbarrier *Block::findMbarrier(uint32_t offset, uint32_t site) {
  auto it = async.barriers.find(offset);
  if (it == async.barriers.end()) {
    report(FaultKind::BarrierMismatch, site,
           "expected " + nameMbarrier(offset) +
               " to be one, but nothing initialized it");
    return nullptr;
  }
  Mbarrier &barrier = it->second;
  if (launch.options.checkRaces &&
      !clocks.ordered(active, barrier.initializer, barrier.initialized))
    report(FaultKind::Race, site,
           "thread " + std::to_string(active) + " uses " +
               nameMbarrier(offset) + ", which thread " +
               std::to_string(barrier.initializer) +
               " initializes, and nothing orders the two",
           &siteAt(barrier.site));
  return &barrier;
}

void Block::arriveAtMbarrier(uint32_t offset, uint32_t count, uint32_t bytes,
                             uint32_t site) {
  Mbarrier *barrier =
      hasEnded(offset, site) ? nullptr : findMbarrier(offset, site);
  if (!barrier)
    return;
  barrier->bytes += bytes;
  if (barrier->bytes > kMaxCount) {
    report(FaultKind::BarrierMismatch, site,
           "expected a phase of at most " + std::to_string(kMaxCount) +
               " bytes, but " + nameMbarrier(offset) + " expects " +
               std::to_string(barrier->bytes));
    stop();
  }
  if (count < 1 || count > barrier->pending) {
    report(FaultKind::BarrierMismatch, site,
           "expected at most " + std::to_string(barrier->pending) +
               " more arrivals in phase " + std::to_string(barrier->phase) +
               " of " + nameMbarrier(offset) + ", but got " +
               std::to_string(count),
           &siteAt(barrier->site));
    stop();
  }
  clocks.release(barrier->collecting, {active});
  barrier->pending -= count;
  endPhase(offset, *barrier, site);
}

void Block::completeBytes(uint32_t offset, Mbarrier &barrier, uint32_t bytes,
                          uint32_t site) {
  barrier.bytes -= bytes;
  clocks.releaseAgent(barrier.collecting, barrier.agent, barrier.phase + 1);
  if (barrier.bytes < -kMaxCount) {
    report(FaultKind::BarrierMismatch, site,
           "expected a phase to expect the bytes that come, but " +
               std::to_string(-barrier.bytes) + " came that it does not",
           &siteAt(barrier.site));
    stop();
  }
  endPhase(offset, barrier, site);
}

void Block::endPhase(uint32_t offset, Mbarrier &barrier, uint32_t site) {
  if (barrier.pending || barrier.bytes)
    return;
  // A wait by parity could not distinguish the two phases.
  if (!barrier.isSeen)
    report(FaultKind::BarrierMismatch, site,
           "expected a wait for phase " + std::to_string(barrier.phase - 1) +
               " of " + nameMbarrier(offset) + " before the end of phase " +
               std::to_string(barrier.phase) + ", but there was none",
           &siteAt(barrier.site));
  barrier.released = std::move(barrier.collecting);
  barrier.collecting = nullptr;
  barrier.pending = barrier.count;
  ++barrier.phase;
  ++stats.totals.barriers;
  clocks.acquire(barrier.released, barrier.waiting);
  std::vector<uint16_t> woken = std::move(barrier.waiting);
  barrier.waiting.clear();
  barrier.isSeen = !woken.empty();
  for (uint16_t thread : woken)
    wake(thread);
}

bool Block::waitAtMbarrier(uint32_t offset, uint32_t parity, uint32_t site) {
  Mbarrier *barrier = findMbarrier(offset, site);
  if (!barrier)
    return true;
  if ((barrier->phase & 1) != (parity & 1)) {
    clocks.acquire(barrier->released, {active});
    barrier->isSeen = true;
    return true;
  }
  // The instruction may give up. With some orders it does, so that a kernel
  // which does not repeat it is found.
  if (launch.options.seed && random() % 4 == 0) {
    wake(active);
    suspend(State::Ready);
    return false;
  }
  lanes[active].barrier = offset;
  barrier->waiting.push_back(active);
  suspend(State::AtMbarrier);
  return true;
}
