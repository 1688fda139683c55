//===- Targets.h - functions of bytes that fuzzers call ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A target gives bytes to a reader, a pass or an interface and holds the
// outcome to what is promised of it. libFuzzer calls one (LibFuzzer.cpp,
// scripts/fuzz.sh), the unit tests call each with its corpus (unittests/Fuzz)
// and with damaged files of their own (unittests/Compiler/ReaderFuzzTest.cpp).
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_FUZZ_TARGETS_H
#define DIFFATTN_FUZZ_TARGETS_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"

namespace mlir::diffattn::fuzz {

struct FuzzTarget {
  /// The name of the folder of its corpus, too.
  llvm::StringLiteral name;
  /// Whether the bytes were taken and not refused. Ends the process at a
  /// finding.
  bool (*run)(llvm::StringRef bytes);
};

llvm::ArrayRef<FuzzTarget> getTargets();
/// The target of that name; null: there is none.
const FuzzTarget *findTarget(llvm::StringRef name);

/// Ends the process with `message`, unless `condition` holds.
void require(bool condition, const llvm::Twine &message);

// Readers.cpp
bool readJson(llvm::StringRef bytes);
bool readSafetensors(llvm::StringRef bytes);
bool readWeightIndex(llvm::StringRef bytes);
bool readNpyFile(llvm::StringRef bytes);
bool readSignatureText(llvm::StringRef bytes);
bool readManifest(llvm::StringRef bytes);
bool readCacheRecord(llvm::StringRef bytes);
bool readOptions(llvm::StringRef bytes);
// Modules.cpp
bool printModule(llvm::StringRef bytes);
bool compileModuleText(llvm::StringRef bytes);
bool runPasses(llvm::StringRef bytes);
bool selectByHand(llvm::StringRef bytes);
// Kernels.cpp
bool simulateKernel(llvm::StringRef bytes);
// Interfaces.cpp
bool openBundle(llvm::StringRef bytes);
bool callProgram(llvm::StringRef bytes);

} // namespace mlir::diffattn::fuzz

#endif // DIFFATTN_FUZZ_TARGETS_H
