//===- Traffic.cpp - bank conflicts and sectors ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Traffic.h"

#include <algorithm>

using namespace mlir::diffattn::sim;

static constexpr unsigned kBanks = 32;
static constexpr unsigned kBankBytes = 4;
static constexpr unsigned kSectorBytes = 32;

BankCount mlir::diffattn::sim::countBanks(const uint64_t *addresses,
                                          uint32_t mask, uint32_t bytes) {
  const unsigned phase = bytes <= 4 ? 32 : bytes <= 8 ? 16 : 8;
  const unsigned words = std::max(1u, std::min(bytes, 16u) / kBankBytes);
  BankCount count;
  for (unsigned first = 0; first < 32; first += phase) {
    uint64_t seen[kBanks][32];
    uint8_t depth[kBanks] = {};
    unsigned deepest = 0;
    for (unsigned lane = first; lane < first + phase; ++lane) {
      if (!(mask >> lane & 1))
        continue;
      for (unsigned i = 0; i < words; ++i) {
        uint64_t word = addresses[lane] / kBankBytes + i;
        unsigned bank = word % kBanks;
        // Lanes that access the same word share it.
        if (std::find(seen[bank], seen[bank] + depth[bank], word) !=
            seen[bank] + depth[bank])
          continue;
        seen[bank][depth[bank]++] = word;
        deepest = std::max<unsigned>(deepest, depth[bank]);
      }
    }
    count.wavefronts += deepest;
    count.conflicts += deepest ? deepest - 1 : 0;
  }
  return count;
}

uint32_t mlir::diffattn::sim::countSectors(const uint64_t *addresses,
                                           uint32_t mask, uint32_t bytes) {
  uint64_t sectors[128];
  unsigned count = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1))
      continue;
    uint64_t last = (addresses[lane] + bytes - 1) / kSectorBytes;
    for (uint64_t sector = addresses[lane] / kSectorBytes;
         sector <= last && count < 128; ++sector)
      if (count == 0 || sectors[count - 1] != sector)
        sectors[count++] = sector;
  }
  std::sort(sectors, sectors + count);
  return std::unique(sectors, sectors + count) - sectors;
}

void TrafficRecorder::reset(size_t sites) {
  records.clear();
  bySite.resize(sites);
  for (auto &list : bySite)
    list.clear();
  used.assign(sites * 32, 0);
  touched.clear();
}

void TrafficRecorder::add(uint32_t site, unsigned lane, uint64_t address) {
  std::vector<uint32_t> &list = bySite[site];
  uint16_t &next = used[site * 32 + lane];
  if (list.empty())
    touched.push_back(site);
  if (next == list.size()) {
    list.push_back(records.size());
    records.push_back({site, 0, {}});
  }
  Record &record = records[list[next++]];
  record.mask |= 1u << lane;
  record.addresses[lane] = address;
}

void TrafficRecorder::forget() {
  for (uint32_t site : touched) {
    bySite[site].clear();
    std::fill_n(used.begin() + site * 32, 32, 0);
  }
  touched.clear();
  records.clear();
}
