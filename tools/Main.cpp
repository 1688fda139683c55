//===- Main.cpp - a program that is one function --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "EntryPoints.h"

#include <pthread.h>
#include <sys/resource.h>

namespace {
struct Call {
  int argc;
  char **argv;
  int result;
};
} // namespace

static void *run(void *argument) {
  Call &call = *static_cast<Call *>(argument);
  call.result = DIFFATTN_MAIN(call.argc, call.argv);
  return nullptr;
}

/// MLIR takes tens of KB of stack for its options alone, and its parser calls
/// itself once a level. Where a limit (`ulimit -s`) leaves less than Linux does
/// by itself, a thread has that much, and so have those that it starts.
int main(int argc, char **argv) {
  constexpr size_t kStackBytes = size_t(8) << 20;
  rlimit limit;
  if (::getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >= kStackBytes)
    return DIFFATTN_MAIN(argc, argv);
  Call call = {argc, argv, 1};
  pthread_attr_t attributes;
  pthread_t thread;
  if (::pthread_attr_init(&attributes) ||
      ::pthread_attr_setstacksize(&attributes, kStackBytes) ||
      ::pthread_setattr_default_np(&attributes) ||
      ::pthread_create(&thread, &attributes, run, &call) ||
      ::pthread_join(thread, nullptr))
    return DIFFATTN_MAIN(argc, argv);
  return call.result;
}
