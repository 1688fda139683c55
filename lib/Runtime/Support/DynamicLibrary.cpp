//===- DynamicLibrary.cpp - Libraries opened at run time ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DynamicLibrary.h"

#include <dlfcn.h>

using namespace diffattn_rt;

bool DynamicLibrary::open(const std::vector<std::string> &paths,
                          bool onlyLoaded, std::string &tried) {
  for (const std::string &candidate : paths) {
    handle = dlopen(candidate.c_str(),
                    RTLD_NOW | RTLD_LOCAL | (onlyLoaded ? RTLD_NOLOAD : 0));
    if (handle) {
      path = candidate;
      return true;
    }
    // A search among loaded libraries alone fails for one reason only, which
    // the message need not repeat.
    const char *message = dlerror();
    if (onlyLoaded)
      continue;
    std::string reason = message ? message : "";
    // The loader's messages mostly begin with the path.
    if (reason.compare(0, candidate.size() + 2, candidate + ": ") != 0)
      reason = candidate + ": " + reason;
    tried += "\n  " + reason;
  }
  return false;
}

void *DynamicLibrary::find(const char *name) const {
  return dlsym(handle, name);
}
