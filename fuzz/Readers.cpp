//===- Readers.cpp - bytes for the readers of files -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Targets.h"
#include "TemporaryFiles.h"

#include "CacheRecord.h"
#include "Manifest.h"
#include "WeightHeader.h"
#include "WriteSignature.h"

#include "DiffAttn/Compiler/CallerOptions.h"
#include "DiffAttn/Compiler/ExecutionTarget.h"
#include "DiffAttn/Compiler/Npy.h"
#include "DiffAttn/Compiler/WeightFiles.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Program/SignatureReader.h"
#include "DiffAttn/Runtime/Support/StrictJson.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/JSON.h"

#include <set>

using namespace mlir::diffattn;
using namespace mlir::diffattn::fuzz;
using namespace diffattn_rt;
using llvm::StringRef;
using llvm::Twine;

/// An error may name what the file names, and not much more.
static void requireShort(StringRef message, size_t inputBytes) {
  require(!message.empty() && message.size() < 4 * inputBytes + 1000,
          "a message of " + Twine(message.size()) + " bytes for " +
              Twine(inputBytes) + ": " + message.take_front(200));
}

static void requireFileError(llvm::Error error, ErrorClass expected,
                             StringRef path, size_t inputBytes) {
  auto [errorClass, message] = describeError(std::move(error));
  require(errorClass == expected, "an error of another class: " + message);
  require(StringRef(message).contains(path), "no path in: " + message);
  require(StringRef(message).contains("expected") ||
              StringRef(message).contains("malformed"),
          "nothing expected in: " + message);
  requireShort(message, inputBytes);
}

bool mlir::diffattn::fuzz::readJson(StringRef bytes) {
  StrictJson json(bytes);
  if (!json.skip() || !json.end()) {
    requireShort(json.getError(), bytes.size());
    return false;
  }
  if (!llvm::json::isUTF8(bytes))
    return false; // its callers ask first
  auto other = llvm::json::parse(bytes);
  require(static_cast<bool>(other), "taken, and no JSON");
  return true;
}

/// Every tensor lies in its file, agrees with its shape and can be read.
/// Returns how many bytes those behind the first `skipped` have.
static int64_t requireWhole(const WeightFiles &files, size_t skipped = 0) {
  std::set<std::string> names;
  int64_t used = 0;
  volatile uint64_t sum = 0;
  for (const auto &[i, name] : llvm::enumerate(files.getNames())) {
    require(names.insert(name).second, "a name twice: " + name);
    const FileTensor *tensor = files.find(name);
    require(tensor, "no tensor of the name " + name);
    if (tensor->dtype)
      require(getByteSize(tensor->shape, *tensor->dtype) == tensor->bytes,
              "another size than the shape's: " + name);
    for (int64_t byte = 0; byte < tensor->bytes; ++byte)
      sum = sum + static_cast<unsigned char>(tensor->data[byte]);
    if (i < 8)
      require(files.suggest(name) == name, "another suggestion than " + name);
    used += i < skipped ? 0 : tensor->bytes;
  }
  return used;
}

/// A manifest that takes a tensor of each type from the file.
static const Manifest &getPlaces() {
  static const Manifest manifest = [] {
    Manifest made;
    made.weightFiles.resize(1);
    made.places = {{"w", 0, 0, DIFFATTN_F32}, {"h", 0, 8, DIFFATTN_F16}};
    return made;
  }();
  return manifest;
}

bool mlir::diffattn::fuzz::readSafetensors(StringRef bytes) {
  static MemoryFile file;
  file.write(bytes);
  // As the compiler reads it.
  WeightFiles files;
  llvm::Error error = files.add(file.getPath());
  const bool taken = !error;
  if (error) {
    requireFileError(std::move(error), ErrorClass::Weights, file.getPath(),
                     bytes.size());
    require(files.getNames().empty(), "tensors of a file that is refused");
  } else {
    uint64_t header = llvm::support::endian::read64le(bytes.data());
    require(8 + header + requireWhole(files) == bytes.size(),
            "bytes that belong to no tensor");
  }
  // As the loader of bundles does, which knows beforehand what it wants.
  if (Failure failure = checkWeightHeader(bytes, getPlaces(), 0)) {
    require(failure.getClass() == ErrorClass::Weights, "another class");
    requireShort(failure.getMessage(), bytes.size());
  }
  return taken;
}

bool mlir::diffattn::fuzz::readWeightIndex(StringRef bytes) {
  // Header, then data; they are read as they are.
  static TemporaryFolder folder;
  static const bool once = [] {
    auto write = [](StringRef name, StringRef header, size_t dataBytes) {
      char length[8];
      llvm::support::endian::write64le(length, header.size());
      folder.write(name, (StringRef(length, 8) + header).str() +
                             std::string(dataBytes, '\1'));
    };
    write("a.safetensors",
          R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", 12);
    write("b.safetensors",
          R"({"v":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
          R"("u":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}})",
          10);
    return true;
  }();
  (void)once;
  const std::string path = folder.write("model.safetensors.index.json", bytes);
  WeightFiles files;
  llvm::Error error = files.add(path);
  const bool taken = !error;
  if (error)
    requireFileError(std::move(error), ErrorClass::Weights, folder.getPath(),
                     bytes.size());
  requireWhole(files);
  return taken;
}

bool mlir::diffattn::fuzz::readNpyFile(StringRef bytes) {
  static MemoryFile file;
  file.write(bytes);
  auto array = readNpy(file.getPath());
  if (!array) {
    requireFileError(array.takeError(), ErrorClass::Input, file.getPath(),
                     bytes.size());
    return false;
  }
  require(getByteSize(array->shape, array->dtype) == array->getNumBytes(),
          "another size than the shape's");
  require(array->getNumBytes() < static_cast<int64_t>(bytes.size()),
          "more bytes than the file has");
  if (array->dtype == DIFFATTN_BOOL)
    for (int64_t i = 0; i < array->getNumBytes(); ++i)
      require(static_cast<unsigned char>(array->data.get()[i]) <= 1,
              "a truth value that is neither");
  else
    require(bytes.ends_with(StringRef(array->data.get(), array->getNumBytes())),
            "other bytes than the file's");
  return true;
}

bool mlir::diffattn::fuzz::readSignatureText(StringRef bytes) {
  Signature signature;
  if (Failure failure = parseSignature(bytes, signature)) {
    require(failure.getClass() == ErrorClass::Compile, "another class");
    requireShort(failure.getMessage(), bytes.size());
    return false;
  }
  for (const WeightDeclaration &weight : signature.weights) {
    require(getByteSize(weight.shape, weight.dtype).has_value(),
            "a weight of no size");
    require(weight.getNumSlots() >= 1 && weight.getNumSlots() <= 65536,
            "a weight of " + Twine(weight.getNumSlots()) + " slots");
    std::string last = weight.getFileName(weight.getNumSlots() - 1);
    require(weight.layers == 0 || !StringRef(last).contains("{}"),
            "a layer without a name: " + last);
  }
  if (!llvm::json::isUTF8(bytes))
    return false; // the writer changes what is none
  Signature back;
  const std::string written = writeSignature(signature);
  require(!parseSignature(written, back), "refused again: " + written);
  require(writeSignature(back) == written, "written otherwise: " + written);
  return true;
}

bool mlir::diffattn::fuzz::readManifest(StringRef bytes) {
  Manifest manifest;
  if (Failure failure = parseManifest(bytes, manifest)) {
    require(failure.getClass() == ErrorClass::Bundle, "another class");
    requireShort(failure.getMessage(), bytes.size());
    return false;
  }
  size_t slot = 0;
  for (const WeightDeclaration &weight : manifest.signature.weights)
    for (int64_t i = 0; i < weight.getNumSlots(); ++i, ++slot) {
      require(slot < manifest.places.size(), "a slot without a place");
      const TensorPlace &place = manifest.places[slot];
      require(place.file < manifest.weightFiles.size(), "a place in no file");
      const WeightFile &file = manifest.weightFiles[place.file];
      auto size = getByteSize(weight.shape, place.dtype);
      require(size && place.offset >= file.headerBytes &&
                  place.offset + *size <= file.bytes,
              "a place outside of its file");
    }
  require(slot == manifest.places.size(), "a place of no slot");
  return true;
}

bool mlir::diffattn::fuzz::readCacheRecord(StringRef bytes) {
  constexpr StringRef key = "key";
  if (auto record = parseCacheRecord(bytes, key)) {
    auto within = [&](StringRef part) {
      return part.empty() ||
             (part.begin() >= bytes.begin() && part.end() <= bytes.end());
    };
    require(within(record->metadata) && within(record->signature) &&
                within(record->object) && within(record->blobs),
            "a part outside of the record");
    return true;
  }
  // Few bytes are a record by chance, so parts of them are made one, which then
  // has one byte changed.
  size_t third = bytes.size() / 3;
  CacheRecord parts{bytes.take_front(third), bytes.slice(third, 2 * third),
                    bytes.drop_front(2 * third), bytes.take_front(7)};
  std::string written = writeCacheRecord(CacheRecordKind::Object, key, parts);
  auto back = parseCacheRecord(CacheRecordKind::Object, written, key);
  require(back && back->metadata == parts.metadata &&
              back->signature == parts.signature &&
              back->object == parts.object && back->blobs == parts.blobs,
          "a record that comes back otherwise");
  require(!parseCacheRecord(CacheRecordKind::Text, written, key),
          "a record of another kind");
  size_t place = bytes.empty() ? 0 : bytes.size() * 7919 % written.size();
  written[place] ^= 1;
  require(!parseCacheRecord(CacheRecordKind::Object, written, key),
          "a record that is taken with byte " + Twine(place) + " changed");
  return true;
}

bool mlir::diffattn::fuzz::readOptions(StringRef bytes) {
  // Takes longer than the rest.
  static const size_t listBytes = describeOptions().size();
  CallerOptions options;
  bool taken = true;
  for (StringRef line : llvm::split(bytes, '\n')) {
    auto [name, text] = line.split('=');
    std::string before = getKeyOfOptions(options.compile);
    if (llvm::Error error = setOption(options, name, text)) {
      auto [errorClass, message] = describeError(std::move(error));
      require(errorClass == ErrorClass::Usage, "another class: " + message);
      requireShort(message, bytes.size() + listBytes);
      require(getKeyOfOptions(options.compile) == before,
              "an option that is refused and set: " + name);
      taken = false;
    } else {
      require(findOption(name), "an option that is not there: " + name);
    }
  }
  if (auto target = parseTarget(options.compile.target))
    require(target->device == ExecutionDevice::Cpu || target->ordinal >= 0,
            "a GPU of a number below 0");
  else
    requireShort(describeError(target.takeError()).second, bytes.size());
  return taken;
}
