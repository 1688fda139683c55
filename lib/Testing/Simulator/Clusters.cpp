//===- Clusters.cpp - blocks that see each other's shared memory ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Block.h"

#include "llvm/ADT/SmallVector.h"

using namespace mlir::diffattn::sim;

/// Set in an offset that lies in no block.
static constexpr uint32_t kNowhere = uint32_t(1) << 31;

Dim3 Block::blockOf(unsigned rank) const {
  const Dim3 &cluster = launch.cluster;
  return {blockId.x + rank % cluster.x,
          blockId.y + rank / cluster.x % cluster.y,
          blockId.z + rank / cluster.x / cluster.y};
}

uint32_t Block::sharedAt(uint64_t address) const {
  uint64_t local = address - kSharedBase;
  uint32_t rank = 0;
  if (local < kSharedWindow) {
    if (launch.ranks == 1)
      return local;
    rank = rankOf(active);
  } else {
    local = address - kClusterBase;
    if (local >= launch.ranks * kSharedWindow)
      return kNowhere;
    rank = local / kSharedWindow;
    local %= kSharedWindow;
  }
  return local < launch.window ? rank * launch.window + local
                               : kNowhere | local;
}

uint32_t Block::localOf(uint32_t offset) const {
  return offset & kNowhere ? offset & ~kNowhere : offset % launch.window;
}

std::string Block::nameMbarrier(uint32_t offset) const {
  std::string name = "the mbarrier at " + std::to_string(localOf(offset));
  if (launch.ranks > 1)
    name += " of block " + std::to_string(offset / launch.window) +
            " of the cluster";
  return name;
}

bool Block::hasEnded(uint32_t offset, uint32_t site) {
  const unsigned rank = launch.ranks == 1 ? 0 : offset / launch.window;
  if (exitedOf[rank] < blockThreads)
    return false;
  report(FaultKind::InFlight, site,
         "block " + std::to_string(rank) +
             " of the cluster has ended, but this reaches its shared memory");
  return true;
}

void Block::arriveAtCluster(unsigned warpIndex, const Meeting &meeting) {
  ClusterBarrier &cluster = async.cluster;
  llvm::SmallVector<uint16_t, 32> members;
  collectThreads(warpIndex, meeting.mask, members);
  for (uint16_t member : members) {
    if (cluster.phases[member]) {
      report(FaultKind::BarrierMismatch, meeting.site,
             "thread " + std::to_string(member) +
                 " arrives at the cluster again, but has not waited since");
      stop();
    }
    cluster.phases[member] = cluster.phase + 1;
  }
  if (!siteAt(meeting.site).relaxed)
    clocks.release(cluster.collecting, members);
  cluster.arrived += members.size();
  endClusterPhase();
}

void Block::endClusterPhase() {
  ClusterBarrier &cluster = async.cluster;
  if (cluster.arrived == 0 || cluster.arrived < threads - exited)
    return;
  ++stats.totals.barriers;
  cluster.released = std::move(cluster.collecting);
  cluster.collecting = nullptr;
  cluster.arrived = 0;
  ++cluster.phase;
  clocks.acquire(cluster.released, cluster.waiting);
  std::vector<uint16_t> woken = std::move(cluster.waiting);
  cluster.waiting.clear();
  for (uint16_t thread : woken) {
    cluster.phases[thread] = 0;
    wake(thread);
  }
}

void Block::waitForCluster(unsigned warpIndex, const Meeting &meeting) {
  ClusterBarrier &cluster = async.cluster;
  llvm::SmallVector<uint16_t, 32> members;
  collectThreads(warpIndex, meeting.mask, members);
  for (uint16_t member : members)
    if (!cluster.phases[member]) {
      report(FaultKind::BarrierMismatch, meeting.site,
             "thread " + std::to_string(member) +
                 " waits for the cluster, but has not arrived");
      stop();
    }
  const bool waits = cluster.phases[active] > cluster.phase;
  for (uint16_t member : members) {
    if (waits) {
      lanes[member].state = State::AtCluster;
      cluster.waiting.push_back(member);
      continue;
    }
    cluster.phases[member] = 0;
    if (member != active)
      wake(member);
  }
  if (waits)
    return suspend(State::AtCluster);
  clocks.acquire(cluster.released, members);
}
