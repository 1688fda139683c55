//===- Arena.cpp - Workspace of a thread ----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BlockStack.h"

#include <cstdio>
#include <sys/mman.h>

using namespace diffattn_rt;

namespace {

constexpr int64_t kAlign = 64;
constexpr size_t kHugePage = 2 << 20;

struct Pages {
  char *map(int64_t bytes) { return static_cast<char *>(mapPages(bytes)); }
  void unmap(char *base, int64_t bytes) { unmapPages(base, bytes); }
};

thread_local BlockStack<Pages> arena(kAlign);

} // namespace

void *diffattn_rt::mapPages(size_t bytes) {
  counters.arenaGrows.fetch_add(1, std::memory_order_relaxed);
  void *pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    char text[128];
    snprintf(text, sizeof text,
             "expected %zu bytes of workspace, but the system has no more",
             bytes);
    diffattn_rt_fail(text);
  }
  if (bytes >= kHugePage)
    madvise(pages, bytes, MADV_HUGEPAGE);
  return pages;
}

void diffattn_rt::unmapPages(void *pages, size_t bytes) {
  if (pages)
    munmap(pages, bytes);
}

void *diffattn_rt_alloc(int64_t bytes) {
  void *memory = arena.alloc(bytes);
  const int64_t used = arena.mark();
  int64_t peak = counters.arenaBytesPeak.load(std::memory_order_relaxed);
  while (used > peak && !counters.arenaBytesPeak.compare_exchange_weak(
                            peak, used, std::memory_order_relaxed))
    ;
  return memory;
}

int64_t diffattn_rt_mark(void) { return arena.mark(); }

void diffattn_rt_release(int64_t mark) { arena.release(mark); }
