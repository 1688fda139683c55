//===- SimulatedMemory.cpp - memory of a GPU that is simulated ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SimulatedMemory.h"

#include <cstring>
#include <iterator>
#include <sys/mman.h>

using namespace mlir::diffattn::sim;

static constexpr int64_t kPage = 4096;
/// Larger allocations are left as the system gives them, so that only what is
/// used of them takes memory.
static constexpr int64_t kMaxFilled = 64 << 20;

static char *map(int64_t bytes, int protection) {
  void *memory = mmap(nullptr, bytes, protection,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char *>(memory);
}

SimulatedMemory::~SimulatedMemory() {
  for (Allocations::value_type &entry : allocations)
    unmap(entry);
}

void SimulatedMemory::unmap(Allocations::value_type &entry) {
  munmap(entry.second.data, entry.second.mapped);
  if (!hostAccess)
    munmap(reinterpret_cast<void *>(entry.first), entry.second.mapped);
}

diffattn_address SimulatedMemory::allocate(int64_t bytes, const char *name) {
  const int64_t mapped = (bytes / kPage + 1) * kPage;
  char *data = map(mapped, PROT_READ | PROT_WRITE);
  char *address = data;
  if (data && !hostAccess && !(address = map(mapped, PROT_NONE)))
    munmap(data, mapped);
  if (!address)
    return 0;
  if (bytes <= kMaxFilled)
    memset(data, 0xff, bytes);
  const auto at = reinterpret_cast<diffattn_address>(address);
  allocations[at] = {bytes, mapped, data, name};
  return at;
}

bool SimulatedMemory::release(diffattn_address address) {
  auto at = allocations.find(address);
  if (at == allocations.end())
    return false;
  forgetRanges(address, address + at->second.bytes);
  unmap(*at);
  allocations.erase(at);
  return true;
}

void SimulatedMemory::forgetRanges(diffattn_address from, diffattn_address to) {
  auto next = ranges.lower_bound(from);
  if (next != ranges.begin() &&
      std::prev(next)->first + std::prev(next)->second.bytes > from)
    --next;
  while (next != ranges.end() && next->first < to)
    next = ranges.erase(next);
}

bool SimulatedMemory::nameRange(diffattn_address address, int64_t bytes,
                                const char *name) {
  if (!find(address, bytes))
    return false;
  forgetRanges(address, address + bytes);
  if (bytes > 0)
    ranges[address] = {bytes, name};
  return true;
}

SimulatedMemory::Allocations::const_iterator
SimulatedMemory::findAllocation(diffattn_address address) const {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin())
    return allocations.end();
  return std::prev(after);
}

char *SimulatedMemory::find(diffattn_address address, int64_t bytes) const {
  auto at = findAllocation(address);
  if (at == allocations.end() || bytes < 0)
    return nullptr;
  const auto offset = static_cast<int64_t>(address - at->first);
  if (offset > at->second.bytes || bytes > at->second.bytes - offset)
    return nullptr;
  return at->second.data + offset;
}

SimulatedMemory::Buffer
SimulatedMemory::findBuffer(diffattn_address address) const {
  auto after = ranges.upper_bound(address);
  if (after != ranges.begin()) {
    auto range = std::prev(after);
    if (address - range->first < uint64_t(range->second.bytes))
      return {range->first, range->second.bytes, &range->second.name};
  }
  auto at = findAllocation(address);
  if (at == allocations.end() ||
      address - at->first >= uint64_t(at->second.bytes))
    return {};
  return {at->first, at->second.bytes, &at->second.name};
}
