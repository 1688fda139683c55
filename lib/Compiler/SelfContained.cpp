//===- SelfContained.cpp - a shared object's needs of a system ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SelfContained.h"

#include "llvm/Object/ELF.h"
#include "llvm/Support/VersionTuple.h"

using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
using llvm::Twine;
namespace object = llvm::object;
using ELF = object::ELF64LE;

/// Debian 10, Red Hat 8 and Ubuntu 18.10 have it.
static constexpr unsigned kGlibcMajor = 2, kGlibcMinor = 28;

static llvm::Error wrong(const Twine &message) {
  return makeError(ErrorClass::Compile, message);
}

static llvm::Error checkVersion(StringRef library, StringRef version) {
  llvm::VersionTuple needed;
  StringRef number = version;
  if (number.consume_front("GLIBC_") && !needed.tryParse(number) &&
      needed < llvm::VersionTuple(kGlibcMajor, kGlibcMinor + 1))
    return llvm::Error::success();
  return wrong("expected symbols of at most GLIBC_" + Twine(kGlibcMajor) + "." +
               Twine(kGlibcMinor) + ", but got " + version + " of " + library);
}

static llvm::Error noSharedObject(llvm::Error error) {
  return wrong("expected the linker to write a shared object, but got: " +
               llvm::toString(std::move(error)));
}

namespace {
/// The entries of a dynamic section that say what an object needs.
struct Dynamic {
  std::vector<uint64_t> needed; // places in the string table
  uint64_t versions = 0, strings = 0;
  bool hasVersions = false, writesCode = false;
};
} // namespace

static Dynamic readDynamic(ELF::DynRange entries) {
  Dynamic dynamic;
  for (const ELF::Dyn &entry : entries)
    switch (entry.getTag()) {
    case llvm::ELF::DT_NEEDED:
      dynamic.needed.push_back(entry.getVal());
      break;
    case llvm::ELF::DT_STRTAB:
      dynamic.strings = entry.getPtr();
      break;
    case llvm::ELF::DT_VERNEED:
      dynamic.versions = entry.getPtr();
      dynamic.hasVersions = true;
      break;
    case llvm::ELF::DT_TEXTREL:
      dynamic.writesCode = true;
      break;
    default:
      break;
    }
  return dynamic;
}

/// The records of symbol versions lie in a chain, each with a chain of its own.
static llvm::Error checkVersions(const uint8_t *first, const char *strings) {
  for (const uint8_t *at = first;;) {
    const auto *need = reinterpret_cast<const ELF::Verneed *>(at);
    const uint8_t *inner = at + need->vn_aux;
    for (unsigned i = 0; i < need->vn_cnt; ++i) {
      const auto *version = reinterpret_cast<const ELF::Vernaux *>(inner);
      if (llvm::Error error = checkVersion(strings + need->vn_file,
                                           strings + version->vna_name))
        return error;
      inner += version->vna_next;
    }
    if (need->vn_next == 0)
      return llvm::Error::success();
    at += need->vn_next;
  }
}

llvm::Error mlir::diffattn::checkSelfContained(StringRef bytes) {
  auto file = object::ELFFile<ELF>::create(bytes);
  if (!file)
    return noSharedObject(file.takeError());
  auto entries = file->dynamicEntries();
  if (!entries)
    return noSharedObject(entries.takeError());
  Dynamic dynamic = readDynamic(*entries);
  auto strings = file->toMappedAddr(dynamic.strings);
  if (!strings)
    return noSharedObject(strings.takeError());
  const char *text = reinterpret_cast<const char *>(*strings);
  for (uint64_t at : dynamic.needed) {
    StringRef name = text + at;
    if (name != "libc.so.6" && name != "libm.so.6")
      return wrong("expected a shared object that needs libc and libm alone, "
                   "but it needs " +
                   name);
  }
  if (dynamic.writesCode)
    return wrong("expected a shared object without relocations of its code");
  if (!dynamic.hasVersions)
    return llvm::Error::success();
  auto versions = file->toMappedAddr(dynamic.versions);
  if (!versions)
    return noSharedObject(versions.takeError());
  return checkVersions(*versions, text);
}
