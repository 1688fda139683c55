//===- CacheFolder.h - the files of a cache ---------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Code is loaded from these files, so only those are looked at that nobody but
// their owner, this user, can write: regular files, under the names of records.
// Everything else in the folder is left alone.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_CACHEFOLDER_H
#define DIFFATTN_LIB_COMPILER_CACHEFOLDER_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/MemoryBuffer.h"

#include <memory>
#include <string>
#include <system_error>
#include <vector>

namespace mlir::diffattn {

struct CacheFile {
  std::string path, key;
  int64_t bytes = 0;
  /// Since it was written or read last.
  int64_t secondsOld = 0;
};

/// Makes the folder if it is not there; an error if others may write in it.
std::error_code makePrivateFolder(llvm::StringRef directory);

std::string getCacheFilePath(llvm::StringRef directory, llvm::StringRef key);

/// The contents of a record's file, which counts as used now; null if there is
/// none. The contents are a copy.
std::unique_ptr<llvm::MemoryBuffer> readCacheFile(llvm::StringRef path);

llvm::Error writeCacheFile(llvm::StringRef path, llvm::StringRef contents);

/// The records, those used last first.
llvm::Expected<std::vector<CacheFile>>
listCacheFiles(llvm::StringRef directory);

/// Counts the records. Beyond `maxBytes` the records that were not used for
/// longest are removed, until an eighth of `maxBytes` is free; and so are the
/// files of processes that were killed.
llvm::Error trimCacheFolder(llvm::StringRef directory, int64_t maxBytes);

/// To be called once a record of `bytes` was written: trims the folder where it
/// may hold more than `maxBytes`. To look at every record after each one would
/// take longer than to compile it, so a file beside them has their total; it is
/// not exact where processes write at once, and made anew in time.
llvm::Error makeRoomAfter(llvm::StringRef directory, int64_t bytes,
                          int64_t maxBytes);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_CACHEFOLDER_H
