//===- MockMemory.h - device memory of the mock libraries -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_RUNTIME_MOCKMEMORY_H
#define DIFFATTN_UNITTESTS_RUNTIME_MOCKMEMORY_H

#include <cstdint>

namespace mock {

/// The bit that makes an address of the host one of the device: code that takes
/// it for an address of the host faults.
constexpr uint64_t kDeviceBit = uint64_t(1) << 62;

inline void *hostOf(uint64_t address) {
  return reinterpret_cast<void *>(address & ~kDeviceBit);
}
inline uint64_t deviceOf(void *memory) {
  return reinterpret_cast<uint64_t>(memory) | kDeviceBit;
}

} // namespace mock

#endif // DIFFATTN_UNITTESTS_RUNTIME_MOCKMEMORY_H
