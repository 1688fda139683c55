//===- ObjectCache.cpp - compiled modules on disk -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A record is one file: a line that names the format, the key, a SHA-256 of the
// rest, then sizes, metadata and the signature as JSON, the object, and the
// bytes of kernels for devices. It is written under another name and renamed,
// so readers see whole records only. The checksum catches accidents, not
// attackers: whoever can write a record can run code, which is why the folder
// and its files must be their user's alone (CacheFolder.h).
//
#include "CacheFolder.h"
#include "Codegen.h"
#include "DiffAttn/Compiler/Compile.h"
#include "DiffAttn/Runtime/Program/SignatureReader.h"
#include "SerializeDeviceCode.h"
#include "WriteSignature.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SHA256.h"
#include "llvm/Support/raw_ostream.h"

#include <chrono>
#include <link.h>
#include <unistd.h>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
namespace json = llvm::json;

static constexpr StringRef kMagic = "diffattn object 3\n";

static std::string sha256(ArrayRef<StringRef> parts) {
  llvm::SHA256 hash;
  for (StringRef part : parts) {
    // The length too, so that no two lists of parts look the same.
    std::string length = std::to_string(part.size()) + ":";
    hash.update(length);
    hash.update(part);
  }
  return llvm::toHex(hash.final(), /*LowerCase=*/true);
}

/// The build id that the linker put into the program or library that holds this
/// function; its size and time if there is none.
static std::string getBuildId() {
  struct Search {
    uintptr_t address;
    std::string id;
  } search{reinterpret_cast<uintptr_t>(&getBuildId), ""};
  dl_iterate_phdr(
      [](dl_phdr_info *info, size_t, void *data) {
        auto &search = *static_cast<Search *>(data);
        bool holds = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr) &header = info->dlpi_phdr[i];
          uintptr_t start = info->dlpi_addr + header.p_vaddr;
          holds |= header.p_type == PT_LOAD && search.address >= start &&
                   search.address < start + header.p_memsz;
        }
        if (!holds)
          return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr) &header = info->dlpi_phdr[i];
          if (header.p_type != PT_NOTE)
            continue;
          auto *at =
              reinterpret_cast<const char *>(info->dlpi_addr + header.p_vaddr);
          const char *end = at + header.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            memcpy(&note, at, sizeof note);
            const char *name = at + sizeof note;
            const char *id = name + llvm::alignTo(note.n_namesz, 4);
            if (note.n_type == 3 /*NT_GNU_BUILD_ID*/ && note.n_namesz == 4 &&
                memcmp(name, "GNU", 4) == 0)
              search.id = llvm::toHex(StringRef(id, note.n_descsz), true);
            at = id + llvm::alignTo(note.n_descsz, 4);
          }
        }
        return 1;
      },
      &search);
  return search.id;
}

std::string mlir::diffattn::getToolchainKey(StringRef isa) {
  CodegenCpu cpu = getCodegenCpu(isa);
  return "build " + getBuildId() + "; LLVM " LLVM_VERSION_STRING "; cpu " +
         cpu.cpu + "; features " + cpu.features;
}

llvm::Expected<std::string> ObjectCache::getKey(StringRef ir,
                                                const CompileOptions &options) {
  llvm::Expected<ExecutionTarget> target = parseTarget(options.target);
  if (!target)
    return target.takeError();
  // The assembler is not in it: a program without machine code is as good.
  std::string choices =
      "isa " + target->isa + "; chip " + target->chip + "; threads " +
      std::to_string(options.threads) + "; raise " +
      std::to_string(options.raise) + "; batch_invariant " +
      stringifyBatchInvariance(options.batchInvariance).str() + "; unchecked " +
      std::to_string(options.unchecked) + "; from " + options.from +
      "; reference " + std::to_string(options.reference);
  return sha256({ir, choices, getToolchainKey(target->isa)});
}

static std::string writeRecord(StringRef key, const CompileOptions &options,
                               const CompiledModule &module) {
  json::Array diagnostics;
  for (const CompileDiagnostic &diagnostic : module.diagnostics)
    diagnostics.push_back(toJSON(diagnostic));
  json::Object root{
      {"name", json::fixUTF8(options.inputName)},
      {"diagnostics", std::move(diagnostics)},
      {"description", options.inputName + " for " + options.target}};
  std::string blobs;
  if (module.device) {
    root["device"] = toJSON(*module.device);
    blobs = getBlobs(*module.device);
  }
  std::string metadata;
  llvm::raw_string_ostream(metadata) << json::Value(std::move(root));
  const std::string signature = writeSignature(module.signature);
  std::string record = kMagic.str();
  record += key.str() + "\n" +
            sha256({metadata, signature, module.object, blobs}) + "\n";
  for (StringRef part :
       {StringRef(metadata), StringRef(signature), StringRef(module.object)})
    record += std::to_string(part.size()) + "\n";
  return record + metadata + signature + module.object + blobs;
}

namespace {
struct Record {
  StringRef metadata, signature, object, blobs;
};
} // namespace

static std::optional<Record> parseRecord(StringRef bytes, StringRef key) {
  auto line = [&] {
    auto [first, rest] = bytes.split('\n');
    bytes = rest;
    return first;
  };
  if (!bytes.consume_front(kMagic) || line() != key)
    return std::nullopt;
  StringRef checksum = line();
  Record record;
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
  if (sha256({record.metadata, record.signature, record.object,
              record.blobs}) != checksum)
    return std::nullopt;
  return record;
}

/// The diagnostics of a record. It may be of a module that had another name.
static std::optional<CompileDiagnostics>
readDiagnostics(const json::Object &root, StringRef name) {
  const json::Array *list = root.getArray("diagnostics");
  std::optional<StringRef> oldName = root.getString("name");
  if (!list || !oldName)
    return std::nullopt;
  CompileDiagnostics diagnostics;
  for (const json::Value &value : *list) {
    std::optional<CompileDiagnostic> diagnostic = diagnosticFromJSON(value);
    if (!diagnostic)
      return std::nullopt;
    if (diagnostic->file == *oldName)
      diagnostic->file = name.str();
    diagnostics.push_back(std::move(*diagnostic));
  }
  return diagnostics;
}

static std::optional<CompiledModule> readModule(StringRef path, StringRef key,
                                                const CompileOptions &options) {
  std::unique_ptr<llvm::MemoryBuffer> buffer = readCacheFile(path);
  if (!buffer)
    return std::nullopt;
  std::optional<Record> record = parseRecord(buffer->getBuffer(), key);
  if (!record)
    return std::nullopt;
  llvm::Expected<json::Value> metadata = json::parse(record->metadata);
  if (!metadata) {
    llvm::consumeError(metadata.takeError());
    return std::nullopt;
  }
  const json::Object *root = metadata->getAsObject();
  CompiledModule module;
  if (!root || parseSignature(record->signature, module.signature))
    return std::nullopt;
  module.object = record->object.str();
  std::optional<CompileDiagnostics> diagnostics =
      readDiagnostics(*root, options.inputName);
  if (!diagnostics)
    return std::nullopt;
  module.diagnostics = std::move(*diagnostics);
  if (const json::Object *device = root->getObject("device")) {
    module.device = deviceCodeFromJSON(*device, record->blobs);
    if (!module.device)
      return std::nullopt;
  } else if (!record->blobs.empty()) {
    return std::nullopt;
  }
  module.fromCache = true;
  return module;
}

/// Keeps a record, and no more than `maxBytes` of all.
static llvm::Error store(StringRef directory, StringRef path, StringRef record,
                         int64_t maxBytes) {
  if (static_cast<int64_t>(record.size()) > maxBytes)
    return llvm::Error::success(); // it would push out all others, and go next
  if (llvm::Error error = writeCacheFile(path, record))
    return error;
  return trimCacheFolder(directory, maxBytes);
}

llvm::Expected<CompiledModule>
ObjectCache::compile(StringRef ir, const CompileOptions &options) {
  auto target = parseTarget(options.target);
  if (!target)
    return target.takeError();
  // Kernels to simulate are there to be changed: they are not kept.
  if (target->device == ExecutionDevice::CudaSim)
    return compileModule(ir, options);
  auto start = std::chrono::steady_clock::now();
  llvm::Expected<std::string> key = getKey(ir, options);
  if (!key)
    return key.takeError();
  const std::error_code folder = makePrivateFolder(directory);
  const std::string path = getCacheFilePath(directory, *key);
  if (!folder)
    if (std::optional<CompiledModule> found = readModule(path, *key, options)) {
      found->seconds = std::chrono::duration<double>(
                           std::chrono::steady_clock::now() - start)
                           .count();
      return std::move(*found);
    }
  llvm::Expected<CompiledModule> module = compileModule(ir, options);
  if (!module)
    return module;
  // Where others may write, or this user may not, there is no cache.
  std::string problem;
  if (folder == std::errc::permission_denied)
    problem = "expected a folder that this user alone can write";
  else if (folder)
    problem = "expected a folder, but got: " + folder.message();
  else if (llvm::Error error = store(
               directory, path, writeRecord(*key, options, *module), maxBytes))
    problem = describeError(std::move(error)).second;
  if (!problem.empty())
    module->diagnostics.push_back(
        {DiagnosticKind::Warning, "diffattn-cache", "NotKept",
         "compiled code is not kept in " + directory + ": " + problem,
         /*file=*/""});
  return module;
}

llvm::Expected<std::vector<ObjectCache::Entry>> ObjectCache::list() const {
  auto files = listCacheFiles(directory);
  if (!files)
    return files.takeError();
  std::vector<Entry> entries;
  for (const CacheFile &file : *files) {
    Entry entry{file.key, "damaged", file.bytes, file.secondsOld};
    auto buffer = llvm::MemoryBuffer::getFile(file.path, /*IsText=*/false,
                                              /*RequiresNullTerminator=*/false);
    if (!buffer)
      continue; // removed meanwhile
    if (auto record = parseRecord((*buffer)->getBuffer(), entry.key)) {
      llvm::Expected<json::Value> metadata = json::parse(record->metadata);
      if (!metadata)
        llvm::consumeError(metadata.takeError());
      else if (const json::Object *root = metadata->getAsObject())
        entry.description = root->getString("description").value_or("").str();
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

llvm::Expected<int64_t> ObjectCache::clear() {
  auto files = listCacheFiles(directory);
  if (!files)
    return files.takeError();
  if (llvm::Error error = trimCacheFolder(directory, /*maxBytes=*/0))
    return error;
  return static_cast<int64_t>(files->size());
}
