//===- TemporaryFiles.h - bytes that have a path ----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_FUZZ_TEMPORARYFILES_H
#define DIFFATTN_FUZZ_TEMPORARYFILES_H

#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringRef.h"

#include <string>

namespace mlir::diffattn::fuzz {

/// A file that lies in memory alone, and no other process can open.
class MemoryFile {
public:
  MemoryFile();
  void write(llvm::StringRef bytes);
  llvm::StringRef getPath() const { return path; }

private:
  int descriptor;
  std::string path;
};

/// A folder that goes with the process.
class TemporaryFolder {
public:
  TemporaryFolder();
  ~TemporaryFolder();
  /// Writes a file anew and returns its path.
  std::string write(llvm::StringRef name, llvm::StringRef bytes);
  llvm::StringRef getPath() const { return path; }

private:
  llvm::SmallString<128> path;
};

} // namespace mlir::diffattn::fuzz

#endif // DIFFATTN_FUZZ_TEMPORARYFILES_H
