//===- Shadow.cpp - state of each byte of shared memory -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Shadow.h"

#include <cstring>

using namespace mlir::diffattn::sim;

void Shadow::reset(uint32_t bytes) {
  states.assign(bytes, ByteState::Outside);
  entries.assign(bytes, Entry{});
  atomics.assign(bytes, 0);
}

void Shadow::declare(uint32_t offset, uint32_t bytes) {
  std::fill_n(states.begin() + offset, bytes, ByteState::Never);
}

bool Shadow::inside(uint32_t offset, uint32_t bytes) const {
  if (offset > states.size() || bytes > states.size() - offset)
    return false;
  for (uint32_t i = offset; i < offset + bytes; ++i)
    if (states[i] == ByteState::Outside)
      return false;
  return true;
}

ShadowHit Shadow::missing(uint32_t offset) const {
  const Entry &entry = entries[offset];
  if (states[offset] == ByteState::Never)
    return {ShadowHit::Never, offset};
  return {states[offset] == ByteState::Pending ? ShadowHit::Pending
                                               : ShadowHit::Barrier,
          offset, entry.thread, entry.site};
}

std::optional<ShadowHit> Shadow::read(const Access &access,
                                      const Clocks &clocks, bool races) {
  std::optional<ShadowHit> hit;
  uint32_t now = clocks.now(access.thread);
  for (uint32_t i = access.offset; i < access.offset + access.bytes; ++i) {
    Entry &entry = entries[i];
    if (states[i] != ByteState::Written) {
      if (!hit)
        hit = missing(i);
      continue;
    }
    if (!races)
      continue;
    if (!hit && !clocks.ordered(access.thread, entry.thread, entry.when) &&
        !(access.atomic && atomics[i]))
      hit = ShadowHit{ShadowHit::Race, i, entry.thread, entry.site};
    // A reader that is ordered before this one need not be kept: what is
    // ordered after this one is ordered after it. A thread is ordered after
    // itself.
    Reader *slot = &entry.readers[access.thread % 3];
    for (Reader &reader : entry.readers)
      if (reader.when == 0 || reader.thread == access.thread ||
          clocks.ordered(access.thread, reader.thread, reader.when)) {
        slot = &reader;
        break;
      }
    *slot = Reader{now, access.thread, access.site};
  }
  return hit;
}

std::optional<ShadowHit> Shadow::collide(const Access &access,
                                         const Clocks &clocks, bool races) {
  for (uint32_t i = access.offset; i < access.offset + access.bytes; ++i) {
    const Entry &entry = entries[i];
    if (states[i] > ByteState::Written)
      return states[i] == ByteState::Barrier
                 ? missing(i)
                 : ShadowHit{ShadowHit::Race, i, entry.thread, entry.site};
    if (!races)
      continue;
    if (entry.when &&
        !clocks.ordered(access.thread, entry.thread, entry.when)) {
      if (!access.atomic || atomics[i] == Plain)
        return ShadowHit{ShadowHit::Race, i, entry.thread, entry.site};
      if (access.adds && atomics[i] == Adds)
        return ShadowHit{ShadowHit::Order, i, entry.thread, entry.site};
    }
    for (const Reader &reader : entry.readers)
      if (reader.when &&
          !clocks.ordered(access.thread, reader.thread, reader.when))
        return ShadowHit{ShadowHit::Race, i, reader.thread, reader.site,
                         /*otherWrites=*/false};
  }
  return std::nullopt;
}

std::optional<ShadowHit> Shadow::write(const Access &access,
                                       const Clocks &clocks, bool races) {
  std::optional<ShadowHit> hit = collide(access, clocks, races);
  Entry entry = {clocks.now(access.thread), access.thread, access.site, {}};
  for (uint32_t i = access.offset; i < access.offset + access.bytes; ++i) {
    // A plain write that its thread has not released yet races with the atomics
    // of all others: it must not be forgotten after an atomic of the same
    // thread.
    const Entry &last = entries[i];
    if (access.atomic && states[i] == ByteState::Written && !atomics[i] &&
        last.when == clocks.now(last.thread))
      continue;
    states[i] = ByteState::Written;
    entries[i] = entry;
    atomics[i] = access.adds ? Adds : access.atomic ? Atomic : Plain;
  }
  return hit;
}

std::optional<ShadowHit> Shadow::issueCopy(const Access &access,
                                           const Clocks &clocks, bool races) {
  std::optional<ShadowHit> hit = write(access, clocks, races);
  std::fill_n(states.begin() + access.offset, access.bytes, ByteState::Pending);
  return hit;
}

void Shadow::landCopy(const Access &access, const Clocks &clocks) {
  Entry entry = {clocks.now(access.thread), access.thread, access.site, {}};
  for (uint32_t i = access.offset; i < access.offset + access.bytes; ++i) {
    states[i] = ByteState::Written;
    entries[i] = entry;
  }
}
