//===- Traffic.h - bank conflicts and sectors -------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_TRAFFIC_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_TRAFFIC_H

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <vector>

namespace mlir::diffattn::sim {

/// How often the banks of shared memory are passed for one access of a warp.
struct BankCount {
  uint32_t wavefronts = 0;
  uint32_t conflicts = 0;
};

/// Lanes of an access of `bytes` bytes each go through 32 banks of 4 bytes in
/// phases of 32, 16 or 8 lanes for up to 4, 8 and 16 bytes. Lanes that are not
/// in `mask` do nothing.
BankCount countBanks(const uint64_t *addresses, uint32_t mask, uint32_t bytes);

/// Sectors of 32 bytes that the lanes touch together.
uint32_t countSectors(const uint64_t *addresses, uint32_t mask, uint32_t bytes);

/// Collects what single lanes do to one access of the warp: the n-th time that
/// a lane executes a site since the warp last met belongs to the n-th time of
/// the other lanes.
class TrafficRecorder {
public:
  struct Record {
    uint32_t site;
    uint32_t mask;
    uint64_t addresses[32];
  };

  void reset(size_t sites);
  void add(uint32_t site, unsigned lane, uint64_t address);

  /// Gives every record to `count` and forgets them.
  template <typename Count>
  void flush(Count count) {
    for (const Record &record : records)
      count(record);
    if (!records.empty())
      forget();
  }

private:
  void forget();

  std::vector<Record> records;
  /// Indices of the records of each site, in order, and how many of them each
  /// lane has used.
  std::vector<std::vector<uint32_t>> bySite;
  std::vector<uint16_t> used;
  std::vector<uint32_t> touched;
};

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_TRAFFIC_H
