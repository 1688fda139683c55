//===- CacheRecord.h - one file of the cache --------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A record is one file: a line that names its kind and format, the key, a
// SHA-256 of the rest, then sizes, metadata and the signature as JSON, the
// object or text, and the bytes of kernels for devices. It is written under
// another name and renamed, so readers see whole records only. The checksum
// catches accidents, not attackers.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_CACHERECORD_H
#define DIFFATTN_LIB_COMPILER_CACHERECORD_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

#include <optional>
#include <string>

namespace mlir::diffattn {

enum class CacheRecordKind { Object, Text };

/// Texts have neither signature nor blobs.
struct CacheRecord {
  llvm::StringRef metadata, signature, object, blobs;
};

/// SHA-256 of `parts`, each preceded by its length: {"ab", "c"} and {"a", "bc"}
/// differ.
std::string sha256(llvm::ArrayRef<llvm::StringRef> parts);

std::string writeCacheRecord(CacheRecordKind kind, llvm::StringRef key,
                             const CacheRecord &record);

/// The parts of `bytes`; null if they are no whole record of `kind` and `key`.
std::optional<CacheRecord> parseCacheRecord(CacheRecordKind kind,
                                            llvm::StringRef bytes,
                                            llvm::StringRef key);
/// The parts of `bytes`; null if they are no whole record of `key`, of any
/// kind.
std::optional<CacheRecord> parseCacheRecord(llvm::StringRef bytes,
                                            llvm::StringRef key);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_CACHERECORD_H
