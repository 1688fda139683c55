//===- CacheRecord.cpp - one file of the cache ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CacheRecord.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/SHA256.h"

using namespace mlir::diffattn;
using llvm::ArrayRef;
using llvm::StringRef;

static StringRef getMagic(CacheRecordKind kind) {
  switch (kind) {
  case CacheRecordKind::Object:
    return "diffattn object 3\n";
  case CacheRecordKind::Text:
    return "diffattn text 1\n";
  }
  llvm_unreachable("expected a kind of record");
}

std::string mlir::diffattn::sha256(ArrayRef<StringRef> parts) {
  llvm::SHA256 hash;
  for (StringRef part : parts) {
    std::string length = std::to_string(part.size()) + ":";
    hash.update(length);
    hash.update(part);
  }
  return llvm::toHex(hash.final(), /*LowerCase=*/true);
}

static std::string getChecksum(const CacheRecord &record) {
  return sha256(
      {record.metadata, record.signature, record.object, record.blobs});
}

std::string mlir::diffattn::writeCacheRecord(CacheRecordKind kind,
                                             StringRef key,
                                             const CacheRecord &record) {
  std::string bytes = getMagic(kind).str();
  bytes += key.str() + "\n" + getChecksum(record) + "\n";
  for (StringRef part : {record.metadata, record.signature, record.object})
    bytes += std::to_string(part.size()) + "\n";
  for (StringRef part :
       {record.metadata, record.signature, record.object, record.blobs})
    bytes += part;
  return bytes;
}

std::optional<CacheRecord>
mlir::diffattn::parseCacheRecord(CacheRecordKind kind, StringRef bytes,
                                 StringRef key) {
  auto line = [&] {
    auto [first, rest] = bytes.split('\n');
    bytes = rest;
    return first;
  };
  if (!bytes.consume_front(getMagic(kind)) || line() != key)
    return std::nullopt;
  StringRef checksum = line();
  CacheRecord record;
  StringRef *parts[] = {&record.metadata, &record.signature, &record.object};
  uint64_t sizes[3];
  for (uint64_t &size : sizes)
    if (line().getAsInteger(10, size))
      return std::nullopt;
  for (auto [part, size] : llvm::zip(parts, sizes)) {
    if (size > bytes.size())
      return std::nullopt;
    *part = bytes.take_front(size);
    bytes = bytes.drop_front(size);
  }
  record.blobs = bytes;
  if (getChecksum(record) != checksum)
    return std::nullopt;
  return record;
}

std::optional<CacheRecord> mlir::diffattn::parseCacheRecord(StringRef bytes,
                                                            StringRef key) {
  for (CacheRecordKind kind : {CacheRecordKind::Object, CacheRecordKind::Text})
    if (std::optional<CacheRecord> record = parseCacheRecord(kind, bytes, key))
      return record;
  return std::nullopt;
}
