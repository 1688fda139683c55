//===- LibFuzzer.cpp - one target under libFuzzer -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// diffattn-fuzz --target=NAME [options and folders of libFuzzer]
//
#include "Targets.h"

#include "llvm/Support/raw_ostream.h"

#include <cstdint>
#include <cstdlib>

using namespace mlir::diffattn::fuzz;

static const FuzzTarget *chosen = nullptr;

/// Reads --target, which libFuzzer passes over.
extern "C" int LLVMFuzzerInitialize(int *argc, char ***argv) {
  llvm::StringRef name;
  for (int i = 1; i < *argc; ++i)
    if (llvm::StringRef argument = (*argv)[i];
        argument.consume_front("--target="))
      name = argument;
  chosen = findTarget(name);
  if (chosen)
    return 0;
  llvm::errs() << "expected --target=NAME, with one of";
  for (const FuzzTarget &target : getTargets())
    llvm::errs() << " " << target.name;
  llvm::errs() << ", but got '" << name << "'\n";
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  chosen->run({reinterpret_cast<const char *>(data), size});
  return 0;
}
