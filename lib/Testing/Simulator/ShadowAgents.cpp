//===- ShadowAgents.cpp - shared memory, as seen by what runs beside ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Shadow.h"

using namespace mlir::diffattn::sim;

std::optional<ShadowHit> Shadow::readBy(Agent agent, const Access &access,
                                        llvm::ArrayRef<uint16_t> observers,
                                        const Clocks &clocks, bool races) {
  std::optional<ShadowHit> hit;
  const Reader reader{agent.when, agent.number, access.site};
  // Neighbours were mostly written by one access: it is looked at once.
  uint16_t lastWriter = 0;
  uint32_t lastWhen = 0;
  for (uint32_t i = access.offset; i < access.offset + access.bytes; ++i) {
    Entry &entry = entries[i];
    if (states[i] != ByteState::Written) {
      if (!hit)
        hit = missing(i);
      continue;
    }
    if (!races)
      continue;
    if (!hit && (entry.thread != lastWriter || entry.when != lastWhen)) {
      lastWriter = entry.thread;
      lastWhen = entry.when;
      for (uint16_t observer : observers)
        if (!clocks.ordered(observer, entry.thread, entry.when))
          hit = ShadowHit{ShadowHit::Race, i, entry.thread, entry.site};
        else if (!hit && !clocks.isFenced(observer, entry.thread, entry.when))
          hit = ShadowHit{ShadowHit::Proxy, i, entry.thread, entry.site};
    }
    // As Shadow::read does: what the observers are ordered after need not stay.
    Reader *slot = &entry.readers[agent.number % 3];
    for (Reader &other : entry.readers)
      if (other.when == 0 || other.thread == agent.number ||
          clocks.ordered(observers.front(), other.thread, other.when)) {
        slot = &other;
        break;
      }
    *slot = reader;
  }
  return hit;
}

std::optional<ShadowHit> Shadow::writeBy(Agent agent, const Access &access,
                                         const Clocks &clocks, bool races) {
  std::optional<ShadowHit> hit = collide(access, clocks, races);
  const Entry entry = {agent.when, agent.number, access.site, {}};
  for (uint32_t i = access.offset; i < access.offset + access.bytes; ++i) {
    const Entry &last = entries[i];
    if (!hit && races && last.when &&
        !clocks.isFenced(access.thread, last.thread, last.when))
      hit = ShadowHit{ShadowHit::Proxy, i, last.thread, last.site};
    states[i] = ByteState::Pending;
    entries[i] = entry;
    atomics[i] = false;
  }
  return hit;
}

void Shadow::landBy(uint32_t offset, uint32_t bytes) {
  std::fill_n(states.begin() + offset, bytes, ByteState::Written);
}

std::optional<ShadowHit>
Shadow::beginBarrier(const Access &access, const Clocks &clocks, bool races) {
  std::optional<ShadowHit> hit = write(access, clocks, races);
  std::fill_n(states.begin() + access.offset, access.bytes, ByteState::Barrier);
  return hit;
}
