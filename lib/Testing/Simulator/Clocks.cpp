//===- Clocks.cpp - vector clocks -----------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Clocks.h"

#include <algorithm>

using namespace mlir::diffattn::sim;

void Clocks::reset(unsigned threadCount, unsigned agents) {
  threads = threadCount;
  // Times begin at 1; 0 in a shadow means that there was no access. The era of
  // an agent never begins.
  own.assign(threads + agents, 1);
  eraStart.assign(threads, 1);
  eraStart.resize(threads + agents, 0);
  known.assign(threads, nullptr);
  fences.assign(threads, {});
  lastKnown = lastAdded = lastSum = nullptr;
}

void Clocks::meetAll() {
  if (own.size() > threads)
    return meetWithAgents();
  for (size_t i = 0; i < threads; ++i) {
    eraStart[i] = ++own[i];
    known[i] = nullptr;
  }
}

/// Starts an era; of the threads' vectors only the times of agents are kept.
void Clocks::meetWithAgents() {
  auto joined = std::make_shared<std::vector<uint32_t>>(own.size(), 0);
  const std::vector<uint32_t> *last = nullptr;
  for (size_t i = 0; i < threads; ++i) {
    if (!known[i] || known[i].get() == last)
      continue;
    last = known[i].get();
    for (size_t agent = threads; agent < own.size(); ++agent)
      (*joined)[agent] = std::max((*joined)[agent], (*last)[agent]);
  }
  for (size_t i = 0; i < threads; ++i) {
    eraStart[i] = ++own[i];
    known[i] = joined;
  }
}

static void addTo(std::vector<uint32_t> &to,
                  const std::vector<uint32_t> &from) {
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = std::max(to[i], from[i]);
}

bool Clocks::isFenced(unsigned observer, unsigned thread, uint32_t when) const {
  if (thread >= threads)
    return true;
  const std::vector<uint32_t> &times = fences[thread];
  auto fence = std::upper_bound(times.begin(), times.end(), when);
  return fence != times.end() && ordered(observer, thread, *fence);
}

void Clocks::releaseAgent(Vector &vector, unsigned agent, uint32_t when) const {
  auto joined = vector ? std::make_shared<std::vector<uint32_t>>(*vector)
                       : std::make_shared<std::vector<uint32_t>>(own.size(), 0);
  (*joined)[agent] = std::max((*joined)[agent], when);
  vector = std::move(joined);
}

void Clocks::release(Vector &vector, llvm::ArrayRef<uint16_t> threads) {
  auto joined = vector ? std::make_shared<std::vector<uint32_t>>(*vector)
                       : std::make_shared<std::vector<uint32_t>>(own.size(), 0);
  const std::vector<uint32_t> *last = nullptr;
  for (uint16_t thread : threads) {
    // Threads of a warp mostly share one vector.
    if (known[thread] && known[thread].get() != last) {
      last = known[thread].get();
      addTo(*joined, *last);
    }
    (*joined)[thread] = std::max((*joined)[thread], own[thread]++);
  }
  vector = std::move(joined);
}

void Clocks::acquire(const Vector &vector, llvm::ArrayRef<uint16_t> threads) {
  if (!vector)
    return;
  for (uint16_t thread : threads) {
    Vector &knows = known[thread];
    if (!knows || knows == vector) {
      knows = vector;
      continue;
    }
    // Threads of a warp mostly knew the same, whether they come together or
    // not.
    if (lastKnown != knows || lastAdded != vector) {
      auto sum = std::make_shared<std::vector<uint32_t>>(*vector);
      addTo(*sum, *knows);
      lastKnown = knows;
      lastAdded = vector;
      lastSum = std::move(sum);
    }
    knows = lastSum;
  }
}
