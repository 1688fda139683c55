//===- BlockStack.h - A stack of memory in blocks ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A stack of blocks. A mark is a position in the concatenation of all blocks.
// When the stack empties and has more than one block, it is made one block of
// the size that was needed: the second call of a function maps that block, and
// the third maps nothing.
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_LIB_RUNTIME_SUPPORT_BLOCKSTACK_H
#define DIFFATTN_LIB_RUNTIME_SUPPORT_BLOCKSTACK_H

#include "Internal.h"

namespace diffattn_rt {

/// `Source` has `char *map(int64_t bytes)`, which fails the current call if
/// there is nothing left, and `void unmap(char *base, int64_t bytes)`. The
/// memory is not touched here: it may be a device's.
template <typename Source>
class BlockStack {
public:
  BlockStack(int64_t alignment, Source source = Source())
      : alignment(alignment), source(source) {}
  BlockStack(const BlockStack &) = delete;
  BlockStack &operator=(const BlockStack &) = delete;
  ~BlockStack() { unmapAll(); }

  void *alloc(int64_t bytes) {
    failIfUnreal(bytes);
    bytes = (bytes + alignment - 1) / alignment * alignment;
    settle();
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
    if (position > peak)
      peak = position;
    return result;
  }

  /// Replaces the blocks of an empty stack by one: the same calls then fit
  /// there, and nothing is mapped.
  void settle() {
    if (position > 0 || count < 2)
      return;
    const int64_t needed = peak;
    unmapAll();
    addBlock(needed);
  }

  int64_t mark() const { return position; }

  void release(int64_t mark) {
    position = mark;
    while (current > 0 && mark < blocks[current].start)
      --current;
  }

  void unmapAll() {
    for (int i = 0; i < count; ++i)
      source.unmap(blocks[i].base, blocks[i].bytes);
    count = current = 0;
    position = peak = 0;
  }

private:
  static constexpr int64_t kHugePage = 2 << 20;
  static constexpr int64_t kFirstBlock = 1 << 20;
  // Blocks at least double, so 48 are more than an address space holds.
  static constexpr int kMaxBlocks = 48;

  struct Block {
    char *base;
    int64_t bytes;
    int64_t start; // position of its first byte
  };

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
    char *base = source.map(bytes);
    blocks[count++] = {base, bytes, start};
  }

  const int64_t alignment;
  Source source;
  Block blocks[kMaxBlocks];
  int count = 0;
  int current = 0;
  int64_t position = 0; // first free byte
  int64_t peak = 0;     // highest position since the stack was empty
};

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_SUPPORT_BLOCKSTACK_H
