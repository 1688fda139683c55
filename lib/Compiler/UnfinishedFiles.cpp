//===- UnfinishedFiles.cpp - files that an interrupt removes --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/UnfinishedFiles.h"

#include <cstdlib>
#include <cstring>
#include <unistd.h>

using namespace mlir::diffattn;

/// List of unfinished files, without a lock, which the thread that a signal
/// interrupts could hold; entries stay, since the list may be walked at any
/// time.
static std::atomic<UnfinishedFile::Entry *> newest;

UnfinishedFile::UnfinishedFile(llvm::StringRef path) {
  char *copy = ::strndup(path.data(), path.size());
  for (entry = newest; entry; entry = entry->next) {
    char *none = nullptr;
    if (entry->path.compare_exchange_strong(none, copy))
      return;
  }
  entry = new Entry{{copy}, newest};
  while (!newest.compare_exchange_weak(entry->next, entry)) {
  }
}

UnfinishedFile::~UnfinishedFile() {
  // Null if it is just being removed.
  std::free(entry->path.exchange(nullptr));
}

void mlir::diffattn::removeUnfinishedFiles() {
  // A folder once it is empty.
  for (bool removed = true; removed;) {
    removed = false;
    for (UnfinishedFile::Entry *entry = newest; entry; entry = entry->next) {
      char *path = entry->path.exchange(nullptr);
      if (!path)
        continue;
      if (::unlink(path) == 0 || ::rmdir(path) == 0)
        removed = true;
      else
        entry->path = path;
    }
  }
}
