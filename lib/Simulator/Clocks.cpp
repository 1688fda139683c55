//===- Clocks.cpp - what happens before what ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Clocks.h"

#include <algorithm>

using namespace mlir::diffattn::sim;

void Clocks::reset(unsigned threads) {
  // Times begin at 1; 0 in a shadow means that there was no access.
  own.assign(threads, 1);
  eraStart.assign(threads, 1);
  known.assign(threads, nullptr);
}

void Clocks::meetAll() {
  for (size_t i = 0; i < own.size(); ++i) {
    eraStart[i] = ++own[i];
    known[i] = nullptr;
  }
}

static void addTo(std::vector<uint32_t> &to,
                  const std::vector<uint32_t> &from) {
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = std::max(to[i], from[i]);
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
  const std::vector<uint32_t> *last = nullptr;
  Vector merged;
  for (uint16_t thread : threads) {
    if (!known[thread] || known[thread] == vector) {
      known[thread] = vector;
      continue;
    }
    if (known[thread].get() != last) {
      last = known[thread].get();
      auto sum = std::make_shared<std::vector<uint32_t>>(*vector);
      addTo(*sum, *last);
      merged = std::move(sum);
    }
    known[thread] = merged;
  }
}
