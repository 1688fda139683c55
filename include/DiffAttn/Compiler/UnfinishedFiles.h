//===- UnfinishedFiles.h - files that an interrupt removes ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_UNFINISHEDFILES_H
#define DIFFATTN_COMPILER_UNFINISHEDFILES_H

#include "llvm/ADT/StringRef.h"

#include <atomic>

namespace mlir::diffattn {

/// The name of a file or folder that is being written and will get another one.
/// While it lives, `removeUnfinishedFiles` removes what has that name. The list
/// of them belongs to the process, as signals do.
class UnfinishedFile {
public:
  explicit UnfinishedFile(llvm::StringRef path);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile &) = delete;
  UnfinishedFile &operator=(const UnfinishedFile &) = delete;

  struct Entry {
    std::atomic<char *> path;
    Entry *next;
  };

private:
  Entry *entry;
};

/// Removes the files, and the folders if nothing else is in them. A handler of
/// a signal may call it; after it, the process has to end.
void removeUnfinishedFiles();

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_UNFINISHEDFILES_H
