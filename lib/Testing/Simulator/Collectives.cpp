//===- Collectives.cpp - collectives of a warp ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Block.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/Format.h"

#include <cstring>

using namespace mlir::diffattn::sim;

/// The word of a collective that holds its mask, or -1 if it takes the whole
/// warp.
static int getMaskWord(const Site &site) {
  if (site.aligned)
    return -1;
  return site.kind == OpKind::Redux ? 1 : 0;
}

static std::string hex(uint32_t mask) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format_hex(mask, 10);
  return text;
}

void Block::collective(uint32_t number, const uint32_t *in, uint32_t *out) {
  const Site &site = siteAt(number);
  const uint16_t self = active;
  const unsigned warpIndex = self / 32, lane = self % 32;
  Warp &warp = warps[warpIndex];
  Thread &thread = lanes[self];
  thread.site = number;
  if (launch.stopped)
    leave();

  // Barriers without .aligned count threads, not warps.
  const bool barrier = site.kind == OpKind::BarrierSync ||
                       site.kind == OpKind::BarrierArrive ||
                       site.kind == OpKind::BarrierReduce;
  if (barrier && !site.aligned) {
    thread.result = out;
    if (!arrive(number, {self}, nullptr, in) &&
        site.kind != OpKind::BarrierArrive)
      suspend(State::AtBarrier);
    return;
  }

  const int maskWord = getMaskWord(site);
  const uint32_t mask = maskWord < 0 ? warp.existing : in[maskWord];
  const bool wholeWarp =
      site.kind == OpKind::Mma || site.kind == OpKind::LdMatrix ||
      site.kind == OpKind::StMatrix || site.isWgmmaFamily() ||
      site.kind == OpKind::SetRegisters;
  if (!(mask >> lane & 1)) {
    report(FaultKind::Divergence, number,
           "expected lane " + std::to_string(lane) +
               " to be in its own mask, but got " + hex(mask));
    stop();
  }
  if ((mask & ~warp.existing) || (wholeWarp && ~warp.existing)) {
    report(FaultKind::Divergence, number,
           "expected all lanes of mask " + hex(wholeWarp ? ~0u : mask) +
               " to exist, but the warp has " + hex(warp.existing));
    stop();
  }
  if (mask & warp.exited) {
    report(FaultKind::Divergence, number,
           "lanes " + hex(mask & warp.exited) + " of warp " +
               std::to_string(warpIndex) + " ended, but this waits for them");
    stop();
  }
  Meeting *mine = nullptr;
  for (Meeting &meeting : warp.meetings) {
    if (!(meeting.mask >> lane & 1) || !(meeting.arrived & mask))
      continue;
    // Someone there waits for this lane, and this lane for someone there.
    if (meeting.site != number || meeting.mask != mask) {
      report(FaultKind::Divergence, number,
             "lane " + std::to_string(lane) + " of warp " +
                 std::to_string(warpIndex) + " came here with mask " +
                 hex(mask) + ", but lanes " + hex(meeting.arrived) +
                 " wait with mask " + hex(meeting.mask) + " elsewhere",
             &siteAt(meeting.site));
      stop();
    }
    mine = &meeting;
  }
  if (!mine)
    mine = &warp.meetings.emplace_back(Meeting{number, mask, 0, {}, {}});
  mine->arrived |= 1u << lane;
  mine->in[lane] = in;
  mine->out[lane] = out;
  if (mine->arrived != mask) {
    suspend(State::AtCollective);
    return;
  }

  Meeting meeting = *mine;
  warp.meetings.erase(warp.meetings.begin() + (mine - warp.meetings.data()));
  if (mask == warp.existing)
    flushTraffic(warp);
  if (barrier) {
    llvm::SmallVector<uint16_t, 32> members;
    collectThreads(warpIndex, mask, members);
    for (uint16_t member : members) {
      const uint32_t *words = meeting.in[member % 32];
      if (words[0] != in[0] || (!site.wholeBlock && words[1] != in[1])) {
        report(
            FaultKind::Divergence, number,
            "expected the threads of a warp to name one barrier and one count");
        stop();
      }
    }
    bool opened = arrive(number, members, &meeting, in);
    if (site.kind == OpKind::BarrierArrive) {
      for (uint16_t member : members)
        if (member != self)
          wake(member);
    } else if (!opened) {
      suspend(State::AtBarrier);
    }
    return;
  }
  if (site.kind == OpKind::Wgmma || site.kind == OpKind::SetRegisters)
    return meetWarpgroup(warpIndex, meeting);
  if (site.kind == OpKind::ClusterWait)
    return waitForCluster(warpIndex, meeting);
  perform(warp, warpIndex, meeting);
  for (unsigned other = 0; other < 32; ++other)
    if (other != lane && mask >> other & 1)
      wake(warpIndex * 32 + other);
}

void Block::collectThreads(unsigned warpIndex, uint32_t mask,
                           llvm::SmallVectorImpl<uint16_t> &members) const {
  for (unsigned lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1)
      members.push_back(warpIndex * 32 + lane);
}

void Block::perform(Warp &warp, unsigned warpIndex, const Meeting &meeting) {
  const Site &site = siteAt(meeting.site);
  switch (site.kind) {
  case OpKind::Mma:
    ++stats.totals.mmas;
    stats.totals.mmaFlops += 2ull * 16 * 8 * site.depth;
    multiplyFragments(site, meeting.in, meeting.out);
    return;
  case OpKind::LdMatrix:
  case OpKind::StMatrix:
    moveMatrices(warpIndex, site, meeting);
    return;
  case OpKind::Shuffle:
    shuffle(site, meeting);
    return;
  case OpKind::Vote:
  case OpKind::Match:
    voteOrMatch(site, meeting);
    return;
  case OpKind::Redux:
    reduce(site, meeting);
    return;
  case OpKind::Elect:
    for (unsigned lane = 0; lane < 32; ++lane)
      if (meeting.mask >> lane & 1) {
        uint32_t leader = __builtin_ctz(meeting.mask);
        meeting.out[lane][0] = leader;
        meeting.out[lane][1] = lane == leader;
      }
    return;
  case OpKind::WgmmaFence:
  case OpKind::WgmmaCommit:
  case OpKind::WgmmaWait:
    matrixOp(warpIndex, meeting);
    return;
  case OpKind::ClusterArrive:
    arriveAtCluster(warpIndex, meeting);
    return;
  case OpKind::WarpSync:
    syncWarp(warpIndex, meeting.mask);
    return;
  default:
    return;
  }
}

void Block::shuffle(const Site &site, const Meeting &meeting) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(meeting.mask >> lane & 1))
      continue;
    const uint32_t offset = meeting.in[lane][2] & 31,
                   control = meeting.in[lane][3];
    // PTX ISA, shfl.sync: the segment of a lane, and the last lane that it may
    // read.
    const uint32_t clamp = control & 31, segment = control >> 8 & 31;
    const uint32_t last = (lane & segment) | (clamp & ~segment),
                   first = lane & segment;
    int64_t source = 0;
    bool valid = false;
    switch (static_cast<ShuffleMode>(site.mode)) {
    case ShuffleMode::Up:
      source = int64_t(lane) - offset;
      valid = source >= int64_t(last);
      break;
    case ShuffleMode::Down:
      source = lane + offset;
      valid = source <= int64_t(last);
      break;
    case ShuffleMode::Butterfly:
      source = lane ^ offset;
      valid = source <= int64_t(last);
      break;
    case ShuffleMode::Index:
      source = first | (offset & ~segment);
      valid = source <= int64_t(last);
      break;
    }
    if (!valid)
      source = lane;
    if (!(meeting.mask >> source & 1)) {
      report(FaultKind::Divergence, meeting.site,
             "lane " + std::to_string(lane) + " reads lane " +
                 std::to_string(source) + ", which is not in mask " +
                 hex(meeting.mask));
      source = lane;
    }
    meeting.out[lane][0] = meeting.in[source][1];
    if (site.results > 1)
      meeting.out[lane][1] = valid;
  }
}

void Block::voteOrMatch(const Site &site, const Meeting &meeting) {
  uint32_t ballot = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (meeting.mask >> lane & 1)
      ballot |= (meeting.in[lane][1] & 1) << lane;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(meeting.mask >> lane & 1))
      continue;
    uint32_t *out = meeting.out[lane];
    if (site.kind == OpKind::Match) {
      uint32_t same = 0;
      for (unsigned other = 0; other < 32; ++other)
        if (meeting.mask >> other & 1 &&
            memcmp(meeting.in[lane] + 1, meeting.in[other] + 1, site.bytes) ==
                0)
          same |= 1u << other;
      if (!site.matchAll) {
        out[0] = same;
        continue;
      }
      out[0] = same == meeting.mask ? same : 0;
      out[1] = same == meeting.mask;
      continue;
    }
    switch (static_cast<VoteMode>(site.mode)) {
    case VoteMode::All:
      out[0] = ballot == meeting.mask;
      break;
    case VoteMode::Any:
      out[0] = ballot != 0;
      break;
    case VoteMode::Uniform:
      out[0] = ballot == meeting.mask || ballot == 0;
      break;
    case VoteMode::Ballot:
      out[0] = ballot;
      break;
    }
  }
}

static uint32_t combine(ReduxMode mode, uint32_t a, uint32_t b) {
  switch (mode) {
  case ReduxMode::Add:
    return a + b;
  case ReduxMode::Min:
    return std::min(static_cast<int32_t>(a), static_cast<int32_t>(b));
  case ReduxMode::Max:
    return std::max(static_cast<int32_t>(a), static_cast<int32_t>(b));
  case ReduxMode::UMin:
    return std::min(a, b);
  case ReduxMode::UMax:
    return std::max(a, b);
  case ReduxMode::And:
    return a & b;
  case ReduxMode::Or:
    return a | b;
  case ReduxMode::Xor:
    return a ^ b;
  }
  return 0;
}

void Block::reduce(const Site &site, const Meeting &meeting) {
  unsigned first = __builtin_ctz(meeting.mask);
  uint32_t result = meeting.in[first][0];
  for (unsigned lane = first + 1; lane < 32; ++lane)
    if (meeting.mask >> lane & 1)
      result = combine(static_cast<ReduxMode>(site.mode), result,
                       meeting.in[lane][0]);
  for (unsigned lane = first; lane < 32; ++lane)
    if (meeting.mask >> lane & 1)
      meeting.out[lane][0] = result;
}

void Block::moveMatrices(unsigned warpIndex, const Site &site,
                         const Meeting &meeting) {
  const bool stores = site.kind == OpKind::StMatrix;
  const uint16_t self = active;
  WorkerStats::SiteCounts &counts = stats.sites[meeting.site];
  ++stats.totals.ldmatrices;
  ++counts.accesses;
  for (unsigned matrix = 0; matrix < site.matrices; ++matrix) {
    uint64_t addresses[32] = {};
    uint16_t rows[8][8] = {};
    if (stores)
      for (unsigned lane = 0; lane < 32; ++lane)
        for (unsigned half = 0; half < 2; ++half) {
          unsigned r = lane / 4, c = 2 * (lane % 4) + half;
          uint16_t value = meeting.in[lane][2 + matrix] >> (16 * half);
          (site.transposed ? rows[c][r] : rows[r][c]) = value;
        }
    for (unsigned row = 0; row < 8; ++row) {
      // Lane 8·matrix + row gives the address of the row.
      const uint16_t giver = warpIndex * 32 + 8 * matrix + row;
      const uint32_t *words = meeting.in[giver % 32];
      const uint64_t address = words[0] | uint64_t(words[1]) << 32;
      const uint32_t offset = sharedAt(address);
      addresses[row] = offset;
      active = giver;
      if (!shadow.inside(offset, 16)) {
        report(FaultKind::OutOfBounds, meeting.site,
               "16 bytes at " + std::to_string(int64_t(address - kSharedBase)) +
                   " of shared memory, of which the kernel has " +
                   std::to_string(launch.sharedEnd) + " bytes");
        continue;
      }
      if (!checkAlignment(offset, 16, meeting.site, "shared memory"))
        continue;
      // The bytes are charged to the lane whose register they go to or come
      // from: a pair of columns belongs to one lane, or a pair of rows.
      const unsigned piece = site.transposed ? 2 : 4;
      for (unsigned byte = 0; byte < 16; byte += piece) {
        const unsigned holder =
            site.transposed ? byte / 2 * 4 + row / 2 : row * 4 + byte / 4;
        Shadow::Access access{uint32_t(offset) + byte, piece,
                              uint16_t(warpIndex * 32 + holder),
                              uint16_t(meeting.site)};
        auto hit = stores
                       ? shadow.write(access, clocks, launch.options.checkRaces)
                       : shadow.read(access, clocks, launch.options.checkRaces);
        if (hit)
          reportShadow(*hit, access, stores);
      }
      if (stores)
        memcpy(arena + offset, rows[row], 16);
      else
        memcpy(rows[row], arena + offset, 16);
    }
    active = self;
    if (launch.options.countTraffic) {
      BankCount banks = countBanks(addresses, 0xff, 16);
      counts.wavefronts += banks.wavefronts;
      counts.conflicts += banks.conflicts;
      stats.totals.sharedWavefronts += banks.wavefronts;
      stats.totals.bankConflicts += banks.conflicts;
      stats.totals.ldmatrixConflicts += banks.conflicts;
    }
    if (!stores)
      for (unsigned lane = 0; lane < 32; ++lane) {
        unsigned r = lane / 4, c = 2 * (lane % 4);
        uint32_t low = site.transposed ? rows[c][r] : rows[r][c];
        uint32_t high = site.transposed ? rows[c + 1][r] : rows[r][c + 1];
        meeting.out[lane][matrix] = low | high << 16;
      }
  }
}
