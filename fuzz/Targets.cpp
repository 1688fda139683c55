//===- Targets.cpp - the table of fuzz targets ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Targets.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

#include <cstdlib>

using namespace mlir::diffattn::fuzz;

llvm::ArrayRef<FuzzTarget> mlir::diffattn::fuzz::getTargets() {
  static constexpr FuzzTarget targets[] = {
      {"json", readJson},
      {"safetensors", readSafetensors},
      {"weight-index", readWeightIndex},
      {"npy", readNpyFile},
      {"signature", readSignatureText},
      {"manifest", readManifest},
      {"cache-record", readCacheRecord},
      {"options", readOptions},
      {"bundle", openBundle},
      {"calls", callProgram},
      {"module", printModule},
      {"passes", runPasses},
      {"schedules", selectByHand},
      {"compile", compileModuleText},
      {"simulator", simulateKernel},
  };
  return targets;
}

const FuzzTarget *mlir::diffattn::fuzz::findTarget(llvm::StringRef name) {
  const auto *found =
      llvm::find_if(getTargets(), [&](const FuzzTarget &target) {
        return target.name == name;
      });
  return found == getTargets().end() ? nullptr : found;
}

void mlir::diffattn::fuzz::require(bool condition, const llvm::Twine &message) {
  if (condition)
    return;
  llvm::errs() << "finding: " << message << "\n";
  std::abort();
}
