//===- Buffers.cpp - global memory ----------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Buffers.h"

#include <sys/mman.h>

using namespace mlir::diffattn::sim;

/// How much of a host address's alignment its device address keeps.
static constexpr uint64_t kKeptAlignment = 4096;

static void unmapWrites(Buffer &buffer) {
  if (buffer.writes)
    munmap(buffer.writes, buffer.bytes * sizeof(GlobalWrite));
  buffer = Buffer();
}

Buffers::~Buffers() {
  for (Buffer &buffer : slots)
    unmapWrites(buffer);
}

uint64_t Buffers::add(void *data, uint64_t bytes, llvm::StringRef name,
                      BufferUse use) {
  size_t slot = 0;
  while (slot < slots.size() && slots[slot].host)
    ++slot;
  if (slot == slots.size())
    slots.emplace_back();
  Buffer &buffer = slots[slot];
  buffer.host = static_cast<char *>(data);
  buffer.bytes = bytes;
  buffer.name = name.str();
  buffer.use = use;
  buffer.device = kGlobalTag | uint64_t(slot) << kGlobalWindowBits |
                  kGlobalMiddle |
                  (reinterpret_cast<uint64_t>(data) % kKeptAlignment);
  if (use.writable && bytes) {
    void *memory =
        mmap(nullptr, bytes * sizeof(GlobalWrite), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    buffer.writes =
        memory == MAP_FAILED ? nullptr : static_cast<GlobalWrite *>(memory);
  }
  return buffer.device;
}

void Buffers::remove(uint64_t device) {
  if (Buffer *buffer = find(device))
    unmapWrites(*buffer);
}

void Buffers::addConstant(const void *data, uint64_t bytes,
                          llvm::StringRef name) {
  Buffer buffer;
  buffer.host = static_cast<char *>(const_cast<void *>(data));
  buffer.bytes = bytes;
  buffer.device = reinterpret_cast<uint64_t>(data);
  buffer.name = name.str();
  buffer.use = {/*writable=*/false, /*initialized=*/true};
  constants.push_back(std::move(buffer));
}

Buffer *Buffers::findConstant(uint64_t address) {
  for (Buffer &constant : constants)
    if (address - constant.device < constant.bytes)
      return &constant;
  return nullptr;
}

unsigned Buffers::indexOf(const Buffer &buffer) const {
  if (!slots.empty() && &buffer >= slots.data() &&
      &buffer < slots.data() + slots.size())
    return &buffer - slots.data();
  return slots.size() + (&buffer - constants.data());
}
