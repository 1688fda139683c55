//===- ResultMemory.cpp - Memory of what calls return ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Internal.h"

#include <cstdio>
#include <cstdlib>

using namespace diffattn_rt;

namespace {

constexpr int64_t kAlign = 64;

struct KeptResults {
  /// A function with more results has the others in the arena: they are copied.
  static constexpr int kMaxResults = 64;
  struct Block {
    void *memory;
    int64_t bytes;
  };
  bool keeps = false;
  int count = 0;
  Block blocks[kMaxResults];
};

thread_local KeptResults results;

} // namespace

void *diffattn_rt_alloc_result(int64_t bytes) {
  if (!results.keeps || results.count == KeptResults::kMaxResults)
    return diffattn_rt_alloc(bytes);
  failIfUnreal(bytes);
  void *memory = std::aligned_alloc(kAlign, (bytes / kAlign + 1) * kAlign);
  if (!memory) {
    char text[128];
    snprintf(text, sizeof text,
             "expected %lld bytes for a result, but the system has no more",
             static_cast<long long>(bytes));
    diffattn_rt_fail(text);
  }
  results.blocks[results.count++] = {memory, bytes};
  return memory;
}

void diffattn_rt_keep_results(int32_t keep) {
  results.keeps = keep != 0;
  if (keep)
    return;
  while (results.count > 0)
    std::free(results.blocks[--results.count].memory);
}

int32_t diffattn_rt_take_result(const void *memory, int64_t bytes) {
  for (int i = 0; i < results.count; ++i) {
    KeptResults::Block &block = results.blocks[i];
    if (block.memory != memory || block.bytes != bytes)
      continue;
    block = results.blocks[--results.count];
    return 1;
  }
  return 0;
}
