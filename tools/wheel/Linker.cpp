//===- Linker.cpp - LLVM's linker as a function ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "../EntryPoints.h"

#include "lld/Common/Driver.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Plugins/PassPlugin.h"
#include "llvm/Support/raw_ostream.h"

LLD_HAS_DRIVER(elf)

/// LLVM's link-time optimization calls this where LLVM was built with Polly.
/// Our objects are machine code, which is not optimized again.
llvm::PassPluginLibraryInfo getPollyPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "none", "", [](llvm::PassBuilder &) {}};
}

int diffattn_ld_main(int argc, char **argv) {
  llvm::SmallVector<const char *> arguments(argv, argv + argc);
  // Beginning of error messages.
  arguments[0] = "ld.lld";
  return !lld::elf::link(arguments, llvm::outs(), llvm::errs(),
                         /*exitEarly=*/true, /*disableOutput=*/false);
}
