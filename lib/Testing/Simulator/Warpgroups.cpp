//===- Warpgroups.cpp - collectives of four warps -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Block.h"
#include "Wgmma.h"

#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <cstring>

using namespace mlir::diffattn::sim;

static constexpr unsigned kWarps = 4, kThreads = 128;

void Block::meetWarpgroup(unsigned warpIndex, const Meeting &meeting) {
  const unsigned group = warpIndex / kWarps, warp = warpIndex % kWarps;
  Warpgroup &all = async.warpgroups[group];
  if ((group + 1) * kThreads > threads) {
    report(FaultKind::Divergence, meeting.site,
           "expected four warps in warpgroup " + std::to_string(group) +
               ", but the block has " + std::to_string(warps.size()) +
               " warps");
    stop();
  }
  for (unsigned i = 0; i < kWarps; ++i)
    if (warps[group * kWarps + i].exited) {
      report(FaultKind::Divergence, meeting.site,
             "threads of warp " + std::to_string(group * kWarps + i) +
                 " ended, but this waits for their warpgroup");
      stop();
    }
  if (all.arrived && all.site != meeting.site) {
    report(FaultKind::Divergence, meeting.site,
           "warp " + std::to_string(warpIndex) +
               " came here, but others of its warpgroup wait elsewhere",
           &siteAt(all.site));
    stop();
  }
  all.site = meeting.site;
  std::copy_n(meeting.in, 32, all.in[warp]);
  std::copy_n(meeting.out, 32, all.out[warp]);
  for (unsigned lane = 0; lane < 32; ++lane)
    lanes[warpIndex * 32 + lane].state = State::AtWarpgroup;
  if (++all.arrived < kWarps)
    return suspend(State::AtWarpgroup);
  all.arrived = 0;
  if (siteAt(meeting.site).kind == OpKind::SetRegisters)
    return setRegisters(group);
  multiply(group, siteAt(meeting.site));
  lanes[active].state = State::Ready;
  wakeWarpgroup(group);
}

void Block::wakeWarpgroup(unsigned group) {
  for (unsigned i = 0; i < kThreads; ++i)
    if (uint16_t thread = group * kThreads + i;
        thread != active || lanes[thread].state == State::AtWarpgroup)
      wake(thread);
}

void Block::setRegisters(unsigned group) {
  Warpgroup &all = async.warpgroups[group];
  const Site &site = siteAt(all.site);
  const uint32_t requested = all.in[0][0][0];
  const bool increases = site.mode;
  if (requested % 8 || requested < 24 || requested > 256 ||
      (increases ? requested < all.registers : requested > all.registers)) {
    report(FaultKind::Registers, all.site,
           "expected a multiple of 8 from 24 to 256 that is not " +
               std::string(increases ? "below" : "above") + " the " +
               std::to_string(all.registers) +
               " registers of the warpgroup, but got " +
               std::to_string(requested));
    stop();
  }
  all.requested = requested;
  grantRegisters();
  if (all.requested)
    return suspend(State::AtWarpgroup);
  lanes[active].state = State::Ready;
}

void Block::grantRegisters() {
  constexpr uint32_t kRegisters = 64 << 10;
  for (bool changed = true; changed;) {
    changed = false;
    const unsigned perBlock = async.warpgroups.size() / launch.ranks;
    for (unsigned group = 0; group < async.warpgroups.size(); ++group) {
      Warpgroup &all = async.warpgroups[group];
      uint32_t used = 0;
      for (unsigned i = 0, first = group / perBlock * perBlock; i < perBlock;
           ++i)
        used += async.warpgroups[first + i].registers * kThreads;
      if (!all.requested ||
          used - all.registers * kThreads + all.requested * kThreads >
              kRegisters)
        continue;
      all.registers = all.requested;
      all.requested = 0;
      // The thread that runs goes on by itself.
      lanes[active].state = State::Ready;
      wakeWarpgroup(group);
      changed = true;
      break;
    }
  }
}

void Block::matrixOp(unsigned warpIndex, const Meeting &meeting) {
  const Site &site = siteAt(meeting.site);
  WarpMatrices &warp = async.warps[warpIndex];
  if (site.kind == OpKind::WgmmaFence) {
    std::fill(warp.touched.begin(), warp.touched.end(), 0);
    return;
  }
  if (site.kind == OpKind::WgmmaCommit) {
    ++warp.committed;
    return;
  }
  if (warp.committed <= site.mode || warp.committed - site.mode <= warp.retired)
    return;
  warp.retired = warp.committed - site.mode;
  llvm::SmallVector<uint16_t, 32> members;
  collectThreads(warpIndex, meeting.mask, members);
  Clocks::Vector seen;
  clocks.releaseAgent(seen, async.agents.firstWgmma + warpIndex / kWarps,
                      warp.retired);
  clocks.acquire(seen, members);
}

void Block::useRegisters(RegisterUse use, uint32_t number, uint32_t wgmma) {
  WarpMatrices &warp = async.warps[active / 32];
  const unsigned index = siteAt(wgmma).number;
  lanes[active].site = number;
  const bool runs = warp.inFlight(index);
  std::string thread = "thread " + std::to_string(active);
  if (use == RegisterUse::Bypasses)
    report(FaultKind::InFlight, number,
           thread + " uses accumulators of a wgmma that went through no wait "
                    "for it",
           &siteAt(wgmma));
  else if (use == RegisterUse::Takes && runs)
    report(FaultKind::InFlight, number,
           thread +
               " takes accumulators of a wgmma that this does not wait for",
           &siteAt(wgmma));
  else if (use == RegisterUse::ComputesA && runs)
    report(FaultKind::InFlight, number,
           thread + " computes a register of A while a wgmma still reads it",
           &siteAt(wgmma));
  warp.touched[index] = 1;
}

void Block::readOperand(const Shadow::Agent &agent, unsigned group,
                        uint32_t number, llvm::ArrayRef<uint32_t> chunks) {
  // A thread of each warp must have seen what it multiplies.
  uint16_t observers[kWarps];
  for (unsigned warp = 0; warp < kWarps; ++warp)
    observers[warp] = group * kThreads + warp * 32;
  for (uint32_t chunk : chunks) {
    if (!shadow.inside(chunk, 16)) {
      report(FaultKind::OutOfBounds, number,
             "16 bytes at " + std::to_string(localOf(chunk)) +
                 " of shared memory, of which the kernel has " +
                 std::to_string(launch.sharedEnd) + " bytes");
      return;
    }
    const Shadow::Access access{chunk, 16, active, uint16_t(number)};
    if (auto hit = shadow.readBy(agent, access, observers, clocks,
                                 launch.options.checkRaces))
      reportShadow(*hit, access, false);
  }
}

void Block::multiply(unsigned group, const Site &site) {
  Warpgroup &all = async.warpgroups[group];
  const uint32_t number = all.site;
  const unsigned sums = site.columns / 2, a = sums,
                 b = a + (site.fromRegisters ? 4 : 2), scale = b + 2;
  const uint32_t committed = async.warps[group * kWarps].committed;
  for (unsigned i = 0; i < kWarps; ++i) {
    WarpMatrices &warp = async.warps[group * kWarps + i];
    for (unsigned lane = 0; lane < 32; ++lane) {
      const uint32_t *words = all.in[i][lane], *first = all.in[0][0];
      const unsigned from = site.fromRegisters ? b : a;
      if (!std::equal(words + from, words + scale + 1, first + from)) {
        report(FaultKind::Descriptor, number,
               "expected the threads of a warpgroup to give the same "
               "descriptors, but thread " +
                   std::to_string((group * kWarps + i) * 32 + lane) +
                   " gives others than thread " +
                   std::to_string(group * kThreads));
        stop();
      }
    }
    if (warp.committed != committed) {
      report(FaultKind::Divergence, number,
             "expected the warps of a warpgroup to have committed as many "
             "groups, but got " +
                 std::to_string(warp.committed) + " and " +
                 std::to_string(committed));
      stop();
    }
    if (warp.touched[site.number]) {
      report(FaultKind::MissingFence, number,
             "registers of this wgmma were used since the last wgmma.fence of "
             "warp " +
                 std::to_string(group * kWarps + i));
      warp.touched[site.number] = 0;
    }
    warp.groups[site.number] = warp.last = committed + 1;
    warp.lastSite = number;
  }
  ++stats.totals.wgmmas;
  stats.totals.mmaFlops += 2ull * 64 * 16 * site.columns;

  auto values = std::make_unique<MatrixValues>();
  // The addresses of descriptors are those of the block.
  const uint32_t base = rankOf(group * kThreads) * launch.window;
  const Shadow::Agent agent{uint16_t(async.agents.firstWgmma + group),
                            committed + 1};
  auto read = [&](const char *name, unsigned word, uint32_t outer, bool kMajor,
                  auto element) {
    const uint32_t *words = all.in[0][0] + word;
    MatrixOperand operand{{}, outer, kMajor};
    const char *wrong = MatrixDescriptor::read(
        words[0] | uint64_t(words[1]) << 32,
        kMajor ? 32 : 2 * std::min(outer, 64u), operand.descriptor);
    if (wrong) {
      report(FaultKind::Descriptor, number,
             std::string("descriptor of ") + name + ": " + wrong);
      return;
    }
    // Eight elements along the contiguous axis are one chunk.
    llvm::SmallVector<uint32_t, 512> chunks;
    for (uint32_t i = 0; i < outer; i += kMajor ? 1 : 8)
      for (uint32_t k = 0; k < 16; k += kMajor ? 8 : 1) {
        const uint32_t chunk = base + operand.locate(i, k);
        chunks.push_back(chunk);
        if (chunk + 16 > launch.getArenaBytes())
          continue;
        for (uint32_t j = 0; j < 8; ++j) {
          uint16_t bits;
          memcpy(&bits, arena + chunk + 2 * j, sizeof(bits));
          element(i + (kMajor ? 0 : j), k + (kMajor ? j : 0)) =
              elementOf(site.type, bits);
        }
      }
    readOperand(agent, group, number, chunks);
  };
  if (site.fromRegisters)
    for (unsigned i = 0; i < kWarps; ++i)
      takeFragment(site, i, all.in[i], a, *values);
  else
    read("A", a, 64, /*kMajor=*/true,
         [&](uint32_t i, uint32_t k) -> double & { return values->a[i][k]; });
  read("B", b, site.columns, /*kMajor=*/!site.transposed,
       [&](uint32_t i, uint32_t k) -> double & { return values->b[k][i]; });
  for (unsigned i = 0; i < kWarps; ++i)
    multiplyRows(site, i, *values, all.in[0][0][scale] != 0, all.in[i],
                 all.out[i]);
}
