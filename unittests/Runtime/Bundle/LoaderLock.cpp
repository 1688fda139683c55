//===- LoaderLock.cpp - the loader's lock, for ThreadSanitizer ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The system's loader maps the code of a bundle where it has unmapped another
// thread's. Both hold a lock of its own, which ThreadSanitizer does not see: to
// it the two write to one table. A program's own functions come before those
// of the sanitizer, which come before the system's.
//
//===----------------------------------------------------------------------===//
#include <dlfcn.h>
#include <mutex>

extern "C" {
void *__interceptor_dlopen(const char *path, int flags);
int __interceptor_dlclose(void *handle);
}

static std::recursive_mutex &getLock() {
  static std::recursive_mutex lock;
  return lock;
}

extern "C" {

void *dlopen(const char *path, int flags) noexcept {
  std::lock_guard<std::recursive_mutex> held(getLock());
  return __interceptor_dlopen(path, flags);
}

int dlclose(void *handle) noexcept {
  std::lock_guard<std::recursive_mutex> held(getLock());
  return __interceptor_dlclose(handle);
}
}
