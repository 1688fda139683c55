//===- Async.cpp - agents beside the threads of a block -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Block.h"

using namespace mlir::diffattn::sim;

/// Registers of an SM, and registers of a thread when its kernel begins: its
/// share, by eights, up to the most that a kernel may have.
static constexpr uint32_t kRegisters = 64 << 10, kMaxAtStart = 240;

void AsyncState::reset(unsigned threads, unsigned ranks, unsigned wgmmas) {
  agents = AgentNumbers::of(threads, ranks);
  barriers.clear();
  barrierAgents = 0;
  loads.clear();
  storers.clear();
  warps.assign((threads + 31) / 32, WarpMatrices());
  for (WarpMatrices &warp : warps) {
    warp.groups.assign(wgmmas, 0);
    // Every register was touched before the first fence.
    warp.touched.assign(wgmmas, 1);
  }
  cluster = ClusterBarrier();
  cluster.phases.assign(threads, 0);
  warpgroups.assign((threads + 127) / 128, Warpgroup());
  for (Warpgroup &group : warpgroups)
    group.registers =
        std::min(kMaxAtStart, kRegisters / (threads / ranks) / 8 * 8);
}

std::string Block::describeActor(uint16_t number) const {
  const AgentNumbers &agents = async.agents;
  if (number < threads)
    return "thread " + std::to_string(number);
  if (number < agents.firstBarrier)
    return "a wgmma of warpgroup " + std::to_string(number - agents.firstWgmma);
  if (number >= agents.firstStorer)
    for (const auto &[thread, storer] : async.storers)
      if (storer.agent ==
          (number - agents.firstStorer) / 2 * 2 + agents.firstStorer)
        return "a bulk copy of thread " + std::to_string(thread);
  for (const auto &[offset, barrier] : async.barriers)
    if (barrier.agent == number)
      return "a copy that " + nameMbarrier(offset) + " counts";
  return "a copy that an mbarrier counts";
}

void Block::asynchronous(uint32_t number, const uint32_t *in, uint32_t *out) {
  const Site &site = siteAt(number);
  lanes[active].site = number;
  yieldSometimes();
  if (launch.stopped)
    leave();
  if (site.isMbarrier()) {
    auto offset = sharedOffset(in, 8, 8, number);
    if (!offset) {
      out[0] = 1;
      return;
    }
    switch (site.kind) {
    case OpKind::MbarrierInit:
      return initMbarrier(*offset, in[2], number);
    case OpKind::MbarrierInval:
      if (findMbarrier(*offset, number)) {
        async.barriers.erase(*offset);
        shadow.declare(*offset, 8);
      }
      return;
    case OpKind::MbarrierArrive:
      return arriveAtMbarrier(*offset, in[2], 0, number);
    case OpKind::MbarrierExpect:
      return arriveAtMbarrier(*offset, 1, in[2], number);
    default:
      out[0] = waitAtMbarrier(*offset, in[2], number);
      return;
    }
  }
  switch (site.kind) {
  case OpKind::ProxyFence:
    clocks.fenceProxy(active);
    [[fallthrough]];
  case OpKind::MbarrierFence:
    for (auto &[offset, barrier] : async.barriers)
      barrier.fenced |= barrier.initializer == active;
    return;
  case OpKind::TensorLoad:
  case OpKind::TensorStore:
    return copyTensor(in, number);
  case OpKind::BulkLoad:
    return copyBulk(in, number);
  case OpKind::BulkCommit:
    if (auto it = async.storers.find(active); it != async.storers.end())
      ++it->second.group;
    return;
  case OpKind::BulkWait:
    return waitForStores(site.mode, site.readsOnly);
  default:
    return;
  }
}

void Block::checkNothingRuns(uint16_t thread) {
  // A thread that has ended is none that the cluster waits for.
  if (async.cluster.phases[thread] > async.cluster.phase)
    --async.cluster.arrived;
  endClusterPhase();
  WarpMatrices &warp = async.warps[thread / 32];
  if (warp.last > warp.retired) {
    report(FaultKind::InFlight, warp.lastSite,
           "thread " + std::to_string(thread) +
               " ended, but no wait has ended this wgmma");
    warp.last = 0;
  }
  auto it = async.storers.find(thread);
  if (it == async.storers.end())
    return;
  for (const BulkCopy &copy : it->second.copies) {
    report(FaultKind::InFlight, copy.site,
           "thread " + std::to_string(thread) +
               " ended, but has not waited until this copy had read shared "
               "memory");
    if (launch.options.copies == CopyTiming::Late)
      move(copy, /*toShared=*/false);
  }
  it->second.copies.clear();
}
