//===- TileNumbers.h - Helpers for tests of tile products -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_RUNTIME_TILENUMBERS_H
#define DIFFATTN_UNITTESTS_RUNTIME_TILENUMBERS_H

#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/ABI/TilePermission.h"

#include <cmath>
#include <cstring>
#include <sys/mman.h>
#include <vector>

namespace tile_tests {

inline float fromBits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
inline uint32_t toBits(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}
inline uint16_t toBFloat(float f) {
  const uint32_t bits = toBits(f);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline float flush(float f) {
  return std::fpclassify(f) == FP_SUBNORMAL ? f * 0 : f;
}

inline bool hasEmulation() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
inline bool hasAmx() {
  return __builtin_cpu_supports("amx-tile") &&
         __builtin_cpu_supports("amx-bf16") && diffattn_rt::requestTiles() == 0;
}

/// Fills the runtime's workspace with NaN, so that reads of unwritten memory
/// show.
inline void fillWorkspace() {
  const int64_t mark = diffattn_rt_mark(), bytes = 1 << 20;
  memset(diffattn_rt_alloc(bytes), 0xff, bytes);
  diffattn_rt_release(mark);
}

/// Numbers that end where memory that may not be read begins.
template <typename T>
class Guarded {
public:
  explicit Guarded(const std::vector<T> &numbers)
      : bytes((numbers.size() * sizeof(T) + kPage - 1) / kPage * kPage) {
    pages =
        static_cast<char *>(mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(pages + bytes, kPage, PROT_NONE);
    start = pages + bytes - numbers.size() * sizeof(T);
    memcpy(start, numbers.data(), numbers.size() * sizeof(T));
  }
  ~Guarded() { munmap(pages, bytes + kPage); }
  const T *data() const { return reinterpret_cast<const T *>(start); }

private:
  static constexpr size_t kPage = 4096;
  size_t bytes;
  char *pages, *start;
};

} // namespace tile_tests

#endif // DIFFATTN_UNITTESTS_RUNTIME_TILENUMBERS_H
