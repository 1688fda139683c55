//===- Arena.cpp - Workspace of a thread ----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A stack of blocks. A mark is a position in the concatenation of all blocks.
// When the arena empties and has more than one block, it is made one block of
// the size that was needed: the second call of a function maps that block, and
// the third maps nothing.
//
//===----------------------------------------------------------------------===//

#include "Internal.h"

#include <cstdio>
#include <sys/mman.h>

using namespace diffattn::rt;

namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kFirstBlock = 1 << 20;
// Blocks at least double, so 48 are more than an address space holds.
constexpr int kMaxBlocks = 48;

struct Block {
  char *base;
  int64_t bytes;
  int64_t start; // position of its first byte
};

struct Arena {
  Block blocks[kMaxBlocks];
  int count = 0;
  int current = 0;
  int64_t position = 0; // first free byte
  int64_t most = 0;     // highest position since the arena was empty

  void unmapAll() {
    for (int i = 0; i < count; ++i)
      unmapPages(blocks[i].base, blocks[i].bytes);
    count = current = 0;
    position = most = 0;
  }
  ~Arena() { unmapAll(); }

  void addBlock(int64_t bytes) {
    if (count == kMaxBlocks)
      diffattn_rt_fail("expected fewer blocks of workspace");
    int64_t start =
        count ? blocks[count - 1].start + blocks[count - 1].bytes : 0;
    // Doubling: at least as much again as there is.
    if (bytes < start)
      bytes = start;
    if (bytes < kFirstBlock)
      bytes = kFirstBlock;
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    char *base = static_cast<char *>(mapPages(bytes));
    blocks[count++] = {base, bytes, start};
  }

  void *alloc(int64_t bytes) {
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    if (position == 0 && count > 1) {
      int64_t needed = most;
      unmapAll();
      addBlock(needed);
    }
    for (;; ++current) {
      if (current == count)
        addBlock(bytes);
      Block &b = blocks[current];
      if (position < b.start)
        position = b.start;
      if (bytes <= b.start + b.bytes - position)
        break;
    }
    Block &b = blocks[current];
    void *result = b.base + (position - b.start);
    position += bytes;
    if (position > most)
      most = position;
    int64_t peak = counters.arenaBytesPeak.load(std::memory_order_relaxed);
    while (position > peak && !counters.arenaBytesPeak.compare_exchange_weak(
                                  peak, position, std::memory_order_relaxed))
      ;
    return result;
  }

  void release(int64_t mark) {
    position = mark;
    while (current > 0 && mark < blocks[current].start)
      --current;
  }
};

thread_local Arena arena;

} // namespace

void *diffattn::rt::mapPages(size_t bytes) {
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
  if (bytes >= static_cast<size_t>(kHugePage))
    madvise(pages, bytes, MADV_HUGEPAGE);
  return pages;
}

void diffattn::rt::unmapPages(void *pages, size_t bytes) {
  if (pages)
    munmap(pages, bytes);
}

void *diffattn_rt_alloc(int64_t bytes) {
  if (bytes < 0 || bytes > (int64_t(1) << 46))
    diffattn_rt_fail("expected a size of workspace that memory can hold");
  return arena.alloc(bytes);
}

int64_t diffattn_rt_mark(void) { return arena.position; }

void diffattn_rt_release(int64_t mark) { arena.release(mark); }

void diffattn_rt_trim(void) { arena.unmapAll(); }
