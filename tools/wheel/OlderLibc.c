//===- OlderLibc.c - what a glibc of 2.34 lacks ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

// libstdc++'s std::random_device calls it where it was built with glibc 2.36.
// A generator without randomness must not go on, and cannot say why: as in
// glibc, the process ends.
__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
  uint32_t value;
  if (getentropy(&value, sizeof value) != 0)
    abort();
  return value;
}
