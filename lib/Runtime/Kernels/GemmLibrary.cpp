//===- GemmLibrary.cpp - Finds the GEMM library ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Support/Internal.h"

#include <dlfcn.h>
#include <string>

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
  std::string path = self.dli_fname;
  size_t slash = path.rfind('/');
  path = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  path += "libDiffAttnOneDnn.so";
  // Never closed: threads keep objects of the library.
  void *object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
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
