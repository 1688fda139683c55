//===- ObjectCache.cpp - compiled modules on disk -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The folder and its files must be their user's alone (CacheFolder.h), because
// whoever can write a record can run code.
//
#include "BuildId.h"
#include "CacheFolder.h"
#include "CacheRecord.h"
#include "Codegen.h"
#include "DiffAttn/Compiler/CallerOptions.h"
#include "DiffAttn/Compiler/Compile.h"
#include "DiffAttn/Runtime/Program/SignatureReader.h"
#include "DiffAttn/Runtime/Support/TraceSpan.h"
#include "DiffAttn/Target/CpuTarget.h"
#include "DiffAttn/Target/HostFacts.h"
#include "SerializeDeviceCode.h"
#include "WriteSignature.h"

#include "llvm/ADT/SmallString.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <chrono>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
namespace json = llvm::json;

std::string mlir::diffattn::getToolchainKey(StringRef isa) {
  CodegenCpu cpu = getCodegenCpu(isa);
  std::string key = "build " + getBuildId() +
                    "; LLVM " LLVM_VERSION_STRING "; cpu " + cpu.cpu +
                    "; features " + cpu.features;
  // One CPU has another target for each process that may not use its tiles.
  if (isa == "native")
    key += "; " + writeHostFacts(getHostFacts()) + "; " +
           getCpuTarget(isa)->name.str();
  return key;
}

llvm::Expected<std::string> ObjectCache::getKey(StringRef ir,
                                                const CompileOptions &options) {
  llvm::Expected<ExecutionTarget> target = parseTarget(options.target);
  if (!target)
    return target.takeError();
  // The assembler is not in it: a program without machine code is as good.
  const std::string choices = "isa " + target->isa + "; chip " + target->chip +
                              "; " + getKeyOfOptions(options);
  return sha256({ir, choices, getToolchainKey(target->isa)});
}

/// Texts are this build's alone, as objects are.
static std::string getTextKey(StringRef key) {
  return sha256({"text", key, getBuildId()});
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
  return writeCacheRecord(CacheRecordKind::Object, key,
                          {metadata, signature, module.object, blobs});
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
  const TraceSpan span("cache", "look up");
  std::unique_ptr<llvm::MemoryBuffer> buffer = readCacheFile(path);
  if (!buffer)
    return std::nullopt;
  std::optional<CacheRecord> record =
      parseCacheRecord(CacheRecordKind::Object, buffer->getBuffer(), key);
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

llvm::Expected<CompiledModule>
ObjectCache::compile(StringRef ir, const CompileOptions &options) {
  auto target = parseTarget(options.target);
  if (!target)
    return target.takeError();
  // Kernels to simulate are there to be changed: they are not kept.
  if (target->device == ExecutionDevice::CudaSim)
    return compileModule(ir, options);
  auto start = std::chrono::steady_clock::now();
  recallHost(options.target);
  llvm::Expected<std::string> key = getKey(ir, options);
  if (!key)
    return key.takeError();
  if (!makePrivateFolder(directory))
    if (std::optional<CompiledModule> kept =
            readModule(getCacheFilePath(directory, *key), *key, options)) {
      kept->seconds = std::chrono::duration<double>(
                          std::chrono::steady_clock::now() - start)
                          .count();
      return std::move(*kept);
    }
  llvm::Expected<CompiledModule> module = compileModule(ir, options);
  if (!module)
    return module;
  if (llvm::Error error = keep(*key, writeRecord(*key, options, *module)))
    module->diagnostics.push_back(
        {DiagnosticKind::Warning, "diffattn-cache", "NotKept",
         describeError(std::move(error)).second, /*file=*/""});
  return module;
}

void ObjectCache::recallHost(StringRef text) const {
  llvm::Expected<ExecutionTarget> target = parseTarget(text);
  // A text that is no target is a list of chips, whose host code is for native,
  // or an error that other code reports.
  const bool isNative = !target || target->isa == "native";
  if (!target)
    llvm::consumeError(target.takeError());
  if (!isNative || knowsHostFacts() || makePrivateFolder(directory))
    return;
  const TraceSpan span("cache", "measure this machine");
  // No record: it is neither listed nor cleared, and nothing makes room for it.
  // Machines that share a home may differ.
  const std::string signature = getHostSignature();
  llvm::SmallString<128> path(directory);
  llvm::sys::path::append(path, "cpu-" + sha256({signature}).substr(0, 16));
  if (std::unique_ptr<llvm::MemoryBuffer> kept = readCacheFile(path))
    if (std::optional<HostFacts> facts = parseHostFacts(kept->getBuffer()))
      return recallHostFacts(*facts);
  // Where they cannot be kept the next process measures them again.
  if (maxBytes > 0)
    llvm::consumeError(writeCacheFile(path, writeHostFacts(getHostFacts())));
}

llvm::Error ObjectCache::keep(StringRef key, StringRef record) {
  const TraceSpan span("cache", "keep");
  // Where others may write, or this user may not, there is no cache.
  std::string problem;
  const std::error_code folder = makePrivateFolder(directory);
  if (folder == std::errc::permission_denied) {
    problem = "expected a folder that this user alone can write";
  } else if (folder) {
    problem = "expected a folder, but got: " + folder.message();
  } else if (static_cast<int64_t>(record.size()) <= maxBytes) {
    // A larger one would push out all others, and go next.
    llvm::Error error =
        writeCacheFile(getCacheFilePath(directory, key), record);
    if (!error)
      error = makeRoomAfter(directory, static_cast<int64_t>(record.size()),
                            maxBytes);
    if (error)
      problem = describeError(std::move(error)).second;
  }
  if (problem.empty())
    return llvm::Error::success();
  return makeError(ErrorClass::Output, "compiled code is not kept in " +
                                           directory + ": " + problem);
}

std::optional<std::string> ObjectCache::readText(StringRef key) const {
  if (makePrivateFolder(directory))
    return std::nullopt;
  const std::string ownKey = getTextKey(key);
  std::unique_ptr<llvm::MemoryBuffer> buffer =
      readCacheFile(getCacheFilePath(directory, ownKey));
  if (!buffer)
    return std::nullopt;
  std::optional<CacheRecord> record =
      parseCacheRecord(CacheRecordKind::Text, buffer->getBuffer(), ownKey);
  if (!record)
    return std::nullopt;
  return record->object.str();
}

llvm::Error ObjectCache::keepText(StringRef key, StringRef description,
                                  StringRef text) {
  std::string metadata;
  llvm::raw_string_ostream(metadata)
      << json::Value(json::Object{{"description", json::fixUTF8(description)}});
  const std::string ownKey = getTextKey(key);
  return keep(ownKey, writeCacheRecord(CacheRecordKind::Text, ownKey,
                                       {metadata, "", text, ""}));
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
    if (auto record = parseCacheRecord((*buffer)->getBuffer(), entry.key)) {
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
