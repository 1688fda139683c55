//===- Launch.cpp - the blocks of a launch --------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Block.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <random>

using namespace llvm;
using namespace mlir::diffattn::sim;

void Launch::add(Fault fault) {
  std::lock_guard<std::mutex> lock(mutex);
  for (Fault &known : faults)
    if (known.kind == fault.kind && known.where.op == fault.where.op &&
        known.where.line == fault.where.line &&
        known.where.column == fault.where.column &&
        known.where.function == fault.where.function &&
        known.other.line == fault.other.line &&
        known.other.op == fault.other.op) {
      ++known.count;
      return;
    }
  if (faults.size() < options.maxFaults)
    faults.push_back(std::move(fault));
  if (faults.size() >= options.maxFaults)
    stopped = true;
}

void mlir::diffattn::sim::addStats(LaunchStats &to, const LaunchStats &from) {
  to.blocks += from.blocks;
  to.mmaFlops += from.mmaFlops;
  to.mmas += from.mmas;
  to.ldmatrices += from.ldmatrices;
  to.wgmmas += from.wgmmas;
  to.bulkCopies += from.bulkCopies;
  to.approximations += from.approximations;
  to.barriers += from.barriers;
  to.laneAccesses += from.laneAccesses;
  to.sharedWavefronts += from.sharedWavefronts;
  to.bankConflicts += from.bankConflicts;
  to.ldmatrixConflicts += from.ldmatrixConflicts;
  to.copyConflicts += from.copyConflicts;
  to.globalSectors += from.globalSectors;
  for (auto [i, buffer] : enumerate(from.buffers)) {
    to.buffers[i].loadedBytes += buffer.loadedBytes;
    to.buffers[i].storedBytes += buffer.storedBytes;
    to.buffers[i].copiedBytes += buffer.copiedBytes;
    to.buffers[i].sectors += buffer.sectors;
  }
}

void WorkerStats::add(const WorkerStats &other) {
  addStats(totals, other.totals);
  for (auto [to, from] : zip_equal(sites, other.sites)) {
    to.accesses += from.accesses;
    to.wavefronts += from.wavefronts;
    to.conflicts += from.conflicts;
    to.sectors += from.sectors;
  }
}

WorkerStats mlir::diffattn::sim::runBlocks(Launch &launch, uint64_t blocks,
                                           unsigned worker) {
  std::vector<std::unique_ptr<Block>> resident;
  SmallVector<Block *> running, idle;
  for (unsigned i = 0; i < std::max(1u, launch.options.residentBlocks); ++i)
    idle.push_back(
        resident.emplace_back(std::make_unique<Block>(launch)).get());
  std::minstd_rand random(launch.options.seed * 64 + worker + 1);
  size_t turn = 0;
  while (!launch.stopped) {
    while (!idle.empty() && launch.nextBlock < blocks) {
      const uint64_t index = launch.nextBlock++;
      if (index >= blocks)
        break;
      running.push_back(idle.pop_back_val());
      running.back()->start(index);
    }
    if (running.empty())
      break;
    turn = launch.options.seed ? random() : turn + 1;
    Block **chosen = running.begin() + turn % running.size();
    if (!(*chosen)->resume())
      continue;
    idle.push_back(*chosen);
    running.erase(chosen);
  }
  WorkerStats stats = resident.front()->getStats();
  for (size_t i = 1; i < resident.size(); ++i)
    stats.add(resident[i]->getStats());
  return stats;
}
