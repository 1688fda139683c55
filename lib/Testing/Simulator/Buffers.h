//===- Buffers.h - global memory --------------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_BUFFERS_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_BUFFERS_H

#include "DiffAttn/Testing/Simulator/Simulator.h"
#include "Site.h"

namespace mlir::diffattn::sim {

/// The last writer of a byte of global memory. `launch` is 0 where no kernel
/// was.
struct GlobalWrite {
  uint32_t launch;
  uint32_t block;
  uint32_t when;
  uint16_t thread;
  uint16_t site;
};

struct Buffer {
  char *host = nullptr;
  uint64_t bytes = 0;
  uint64_t device = 0;
  std::string name;
  BufferUse use;
  /// One entry a byte for buffers that can be written, mapped without being
  /// filled: untouched pages cost nothing.
  GlobalWrite *writes = nullptr;
};

/// The buffers that kernels can reach, and ranges of this process that they may
/// read: constants of the module.
class Buffers {
public:
  Buffers() = default;
  Buffers(const Buffers &) = delete;
  Buffers &operator=(const Buffers &) = delete;
  ~Buffers();

  uint64_t add(void *data, uint64_t bytes, llvm::StringRef name, BufferUse use);
  void remove(uint64_t device);
  void addConstant(const void *data, uint64_t bytes, llvm::StringRef name);

  /// The buffer in whose window `address` lies, or null.
  Buffer *find(uint64_t address) {
    if (!(address & kGlobalTag))
      return findConstant(address);
    uint64_t slot = (address & (kGlobalTag - 1)) >> kGlobalWindowBits;
    return slot < slots.size() && slots[slot].host ? &slots[slot] : nullptr;
  }
  unsigned indexOf(const Buffer &buffer) const;
  size_t size() const { return slots.size() + constants.size(); }
  const Buffer &get(size_t index) const {
    return index < slots.size() ? slots[index]
                                : constants[index - slots.size()];
  }

private:
  Buffer *findConstant(uint64_t address);

  std::vector<Buffer> slots;
  /// Constants; their device address is their address in this process.
  std::vector<Buffer> constants;
};

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_BUFFERS_H
