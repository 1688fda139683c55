//===- GemmLibrary.cpp - Finds the GEMM library ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Support/Internal.h"

#include <climits>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>

using namespace diffattn_rt;

#define DIFFATTN_TEXT_OF(name) #name
#define DIFFATTN_NAME_OF(name) DIFFATTN_TEXT_OF(name)

/// The library beside the file that this code was loaded from; null if it is
/// not there or cannot be loaded.
static const GemmLibrary *openBeside() {
  Dl_info self;
  if (!dladdr(reinterpret_cast<void *>(&diffattn_rt_gemm), &self) ||
      !self.dli_fname)
    return nullptr;
  const char *slash = strrchr(self.dli_fname, '/');
  const int folderBytes =
      slash ? static_cast<int>(slash + 1 - self.dli_fname) : 0;
  // Compiled code calls this, through which no exception may pass.
  char path[PATH_MAX];
  if (snprintf(path, sizeof path, "%.*slibDiffAttnOneDnn.so", folderBytes,
               self.dli_fname) >= PATH_MAX)
    return nullptr;
  // Never closed: threads keep objects of the library.
  void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!object)
    return nullptr;
  auto *open = reinterpret_cast<OpenGemmLibrary *>(
      dlsym(object, DIFFATTN_NAME_OF(DIFFATTN_OPEN_GEMM_LIBRARY)));
  static const GemmServices services{&counters, fixedRegionThreads, storeSums,
                                     &packMutex};
  return open ? open(services) : nullptr;
}

const GemmLibrary *diffattn_rt::gemmLibrary() {
  static const GemmLibrary *library = openBeside();
  return library;
}
