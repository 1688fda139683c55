//===- MockProgram.h - parts of compiled code for a mock driver -*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tests stand for compiled code with f(x in place [2] f32, y [3] f32) -> (x, z
// [2] f32), whose arguments are descriptors of memory of the mock driver:
// address, address, offset, size and stride. They share its ends.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_RUNTIME_PROGRAM_MOCKPROGRAM_H
#define DIFFATTN_UNITTESTS_RUNTIME_PROGRAM_MOCKPROGRAM_H

#include "DiffAttn/Runtime/Program/Program.h"

#include <cstring>
#include <dlfcn.h>

/// The function `name` of one of the mock libraries.
template <typename Function>
Function lookUp(const char *library, const char *name) {
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function>(dlsym(handle, name));
}

/// The address in the descriptor of argument `number`, 1 for x and 2 for y.
inline int64_t addressOf(void **pointers, int number) {
  return static_cast<const int64_t *>(pointers[number])[1];
}
inline void *toPointer(int64_t address) {
  return reinterpret_cast<void *>(address);
}

/// Multiplies the two numbers of x by 2 and those of z by 10, checks y[2] as
/// the word of an assertion, and returns x and z.
inline void scaleAndReturn(void **pointers, void *z) {
  auto scale = [](void *values, float factor) {
    uint64_t words[3] = {reinterpret_cast<uint64_t>(values), 2, 0};
    memcpy(&words[2], &factor, 4);
    const diffattn_launch_shape shape = {{1, 1, 1}, {32, 1, 1}, 64 << 10};
    diffattn_rt_device_launch(0, &shape, words);
  };
  scale(z, 10);
  scale(toPointer(addressOf(pointers, 1)), 2);
  diffattn_rt_device_check(toPointer(addressOf(pointers, 2) + 8),
                           "expected a\0expected b\0");
  auto *results = static_cast<int64_t *>(pointers[0]);
  memcpy(results, pointers[1], 5 * 8);
  const int64_t address = reinterpret_cast<int64_t>(z);
  const int64_t placed[5] = {address, address, 0, 2, 1};
  memcpy(results + 5, placed, sizeof placed);
}

#endif // DIFFATTN_UNITTESTS_RUNTIME_PROGRAM_MOCKPROGRAM_H
