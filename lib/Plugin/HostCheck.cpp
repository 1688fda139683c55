//===- HostCheck.cpp - whether a host may load a plugin of ours -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HostCheck.h"

#include "mlir/Tools/Plugins/PassPlugin.h"
#include "llvm-c/Core.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <link.h>

using namespace mlir;

/// Collects the MLIR libraries of the process. Two of them have two sets of
/// type ids: a host built against another MLIR would crash on our ops, not
/// complain.
static int collectMLIR(dl_phdr_info *info, size_t, void *libraries) {
  StringRef name = llvm::sys::path::filename(info->dlpi_name);
  if (name.starts_with("libMLIR.so"))
    static_cast<std::vector<std::string> *>(libraries)->push_back(name.str());
  return 0;
}

uint32_t mlir::diffattn::checkHost() {
  unsigned major = 0, minor = 0, patch = 0;
  LLVMGetVersion(&major, &minor, &patch);
  if (major != LLVM_VERSION_MAJOR || minor != LLVM_VERSION_MINOR) {
    llvm::errs() << "DiffAttnPlugin: expected LLVM " << LLVM_VERSION_STRING
                 << ", but got " << major << "." << minor << "." << patch
                 << "\n";
    return 0;
  }
  std::vector<std::string> libraries;
  dl_iterate_phdr(collectMLIR, &libraries);
  if (libraries.size() > 1) {
    llvm::errs() << "DiffAttnPlugin: expected a host that uses MLIR "
                 << LLVM_VERSION_STRING << " as a shared library, but got "
                 << llvm::join(libraries, " and ") << " in one process\n";
    return 0;
  }
  return MLIR_PLUGIN_API_VERSION;
}
