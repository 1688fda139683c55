//===- WeightFiles.cpp - tensors in safetensors files ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/WeightFiles.h"
#include "ForeignInput.h"

#include "DiffAttn/Compiler/InputFile.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Support/StrictJson.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"

#include <limits>
#include <map>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;
using llvm::Twine;

/// Limits of the format; they bound the memory that a wrong length costs.
static constexpr uint64_t kMaxHeaderBytes = 100'000'000;
static constexpr int64_t kMaxIndexBytes = 100'000'000;
static constexpr size_t kMaxRank = 32;

static llvm::Error weightError(const Twine &message) {
  return makeError(ErrorClass::Weights, message);
}

namespace {
struct FileType {
  StringRef name;
  int64_t bits;
  std::optional<DType> dtype; // none: may lie in a file, cannot be bound
};

struct RawTensor {
  std::string dtype;
  llvm::SmallVector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};
} // namespace

static const FileType *findType(StringRef name) {
  static const FileType types[] = {
      {"F32", 32, DIFFATTN_F32},    {"F16", 16, DIFFATTN_F16},
      {"BF16", 16, DIFFATTN_BF16},  {"F64", 64, DIFFATTN_F64},
      {"I64", 64, DIFFATTN_I64},    {"I32", 32, DIFFATTN_I32},
      {"I16", 16, DIFFATTN_I16},    {"I8", 8, DIFFATTN_I8},
      {"U8", 8, DIFFATTN_U8},       {"BOOL", 8, DIFFATTN_BOOL},
      {"U16", 16, std::nullopt},    {"U32", 32, std::nullopt},
      {"U64", 64, std::nullopt},    {"C64", 64, std::nullopt},
      {"F8_E4M3", 8, std::nullopt}, {"F8_E4M3FNUZ", 8, std::nullopt},
      {"F8_E5M2", 8, std::nullopt}, {"F8_E5M2FNUZ", 8, std::nullopt},
      {"F8_E8M0", 8, std::nullopt}, {"F6_E2M3", 6, std::nullopt},
      {"F6_E3M2", 6, std::nullopt}, {"F4", 4, std::nullopt},
  };
  for (const FileType &type : types)
    if (type.name == name)
      return &type;
  return nullptr;
}

static bool readTensor(StrictJson &json, RawTensor &tensor) {
  bool haveType = false, haveShape = false, haveOffsets = false;
  bool read = json.object([&](StringRef key) {
    if (key == "dtype") {
      haveType = true;
      return json.string(tensor.dtype);
    }
    if (key == "shape") {
      haveShape = true;
      return json.array([&] {
        uint64_t size;
        if (tensor.shape.size() == kMaxRank)
          return json.fail("expected at most 32 sizes");
        if (!json.integer(size))
          return false;
        tensor.shape.push_back(static_cast<int64_t>(size));
        return true;
      });
    }
    if (key == "data_offsets") {
      haveOffsets = true;
      int count = 0;
      bool list = json.array([&] {
        if (++count > 2)
          return json.fail("expected two offsets, but got more");
        return json.integer(count == 1 ? tensor.begin : tensor.end);
      });
      return list && (count == 2 || json.fail("expected two offsets, but got " +
                                              std::to_string(count)));
    }
    return json.fail("expected dtype, shape or data_offsets, but got '" +
                     key.str() + "'");
  });
  if (!read)
    return false;
  if (!haveType || !haveShape || !haveOffsets)
    return json.fail("expected dtype, shape and data_offsets");
  return true;
}

/// Checks one entry against its own sizes and the data section.
static llvm::Error checkTensor(StringRef name, const RawTensor &tensor,
                               uint64_t dataBytes) {
  const FileType *type = findType(tensor.dtype);
  if (!type)
    return weightError("tensor '" + name +
                       "': expected a known element type, but got '" +
                       tensor.dtype + "'");
  if (tensor.end < tensor.begin)
    return weightError("tensor '" + name +
                       "': expected data_offsets in order, "
                       "but got " +
                       Twine(tensor.begin) + " and " + Twine(tensor.end));
  if (tensor.end > dataBytes)
    return weightError(
        "tensor '" + name + "': expected data within the " + Twine(dataBytes) +
        " bytes of the file, but it ends at " + Twine(tensor.end));
  std::optional<int64_t> elements = getByteSize(tensor.shape, DIFFATTN_U8);
  if (!elements || *elements > std::numeric_limits<int64_t>::max() / type->bits)
    return weightError("tensor '" + name +
                       "': expected a shape that memory can hold");
  int64_t bits = *elements * type->bits;
  if (bits % 8)
    return weightError("tensor '" + name + "': expected whole bytes, but got " +
                       Twine(*elements) + " elements of " + Twine(type->bits) +
                       " bits");
  int64_t bytes = bits / 8;
  if (static_cast<uint64_t>(bytes) != tensor.end - tensor.begin)
    return weightError("tensor '" + name + "': expected " + Twine(bytes) +
                       " bytes for its shape and type, but data_offsets span " +
                       Twine(tensor.end - tensor.begin));
  return llvm::Error::success();
}

/// Data must be used without holes and without overlaps.
static llvm::Error
checkLayout(const std::vector<std::pair<std::string, RawTensor>> &tensors,
            uint64_t dataBytes) {
  std::vector<const std::pair<std::string, RawTensor> *> order;
  for (const auto &entry : tensors)
    order.push_back(&entry);
  llvm::sort(order, [](const auto *a, const auto *b) {
    return std::pair(a->second.begin, a->second.end) <
           std::pair(b->second.begin, b->second.end);
  });
  uint64_t position = 0;
  for (const auto *entry : order) {
    if (entry->second.begin != position)
      return weightError(
          "tensor '" + entry->first + "': expected its data at offset " +
          Twine(position) + ", but got " + Twine(entry->second.begin) +
          (entry->second.begin < position ? " (an overlap)" : " (a hole)"));
    position = entry->second.end;
  }
  if (position != dataBytes)
    return weightError("expected the tensors to fill the file, but " +
                       Twine(dataBytes - position) + " bytes follow them");
  return llvm::Error::success();
}

static llvm::Error
parseHeader(StringRef header,
            std::vector<std::pair<std::string, RawTensor>> &tensors) {
  size_t offset;
  if (!llvm::json::isUTF8(header, &offset))
    return weightError("expected a header in UTF-8, but byte " + Twine(offset) +
                       " of it is not");
  if (!header.starts_with("{"))
    return weightError("expected a header that starts with '{'");
  StrictJson json(header);
  std::string where;
  bool read = json.object([&](StringRef key) {
    where = key.str();
    if (key == "__metadata__") {
      std::string ignored;
      return json.object([&](StringRef) { return json.string(ignored); });
    }
    RawTensor tensor;
    if (!readTensor(json, tensor))
      return false;
    tensors.push_back({key.str(), std::move(tensor)});
    return true;
  });
  if (read && json.end())
    return llvm::Error::success();
  std::string in = where.empty() ? "" : " (in '" + where + "')";
  return weightError("malformed header" + in + ": " + json.getError());
}

llvm::Error WeightFiles::addFile(StringRef path,
                                 std::vector<std::string> *added) {
  auto within = [&](llvm::Error error) {
    auto [errorClass, message] = describeError(std::move(error));
    return makeError(errorClass, path + ": " + message);
  };
  auto file = openRegularFile(path, INT64_MAX, ErrorClass::Weights);
  if (!file)
    return file.takeError();
  const auto fileBytes = static_cast<uint64_t>(file->bytes);
  if (fileBytes < 8)
    return weightError(path + ": expected at least 8 bytes, but got " +
                       Twine(fileBytes));
  std::error_code ec;
  llvm::sys::fs::mapped_file_region mapping(
      file->descriptor, llvm::sys::fs::mapped_file_region::readonly, fileBytes,
      0, ec);
  if (ec)
    return weightError(path +
                       ": expected to map the file, but got: " + ec.message());
  StringRef bytes(mapping.const_data(), fileBytes);
  if (std::string advice = adviseOnWeightFile(bytes); !advice.empty())
    return weightError(path + ": expected a safetensors file, but got " +
                       advice);
  uint64_t headerBytes = llvm::support::endian::read64le(bytes.data());
  if (headerBytes > kMaxHeaderBytes)
    return weightError(path +
                       ": expected a header of at most 100 MB, but its "
                       "length says " +
                       Twine(headerBytes));
  if (headerBytes > fileBytes - 8)
    return weightError(path + ": expected a header of " + Twine(headerBytes) +
                       " bytes, but the file has " + Twine(fileBytes - 8) +
                       " more");
  std::vector<std::pair<std::string, RawTensor>> rawTensors;
  if (llvm::Error error = parseHeader(bytes.substr(8, headerBytes), rawTensors))
    return within(std::move(error));
  StringRef data = bytes.substr(8 + headerBytes);
  for (const auto &[name, tensor] : rawTensors)
    if (llvm::Error error = checkTensor(name, tensor, data.size()))
      return within(std::move(error));
  if (llvm::Error error = checkLayout(rawTensors, data.size()))
    return within(std::move(error));
  // All names are checked before one is added: what is added must stay mapped.
  for (const auto &[name, tensor] : rawTensors)
    if (auto it = tensors.find(name); it != tensors.end())
      return weightError(path + ": tensor '" + name +
                         "': expected each name once, but it is in " +
                         it->second.file + " too");
  for (auto &[name, raw] : rawTensors) {
    FileTensor tensor;
    tensor.dtypeName = raw.dtype;
    tensor.dtype = findType(raw.dtype)->dtype;
    tensor.shape = raw.shape;
    tensor.data = data.data() + raw.begin;
    tensor.offset = static_cast<int64_t>(8 + headerBytes + raw.begin);
    tensor.bytes = static_cast<int64_t>(raw.end - raw.begin);
    tensor.file = path.str();
    tensors.try_emplace(name, std::move(tensor));
    names.push_back(name);
    if (added)
      added->push_back(name);
  }
  mappings.push_back(std::move(mapping));
  return llvm::Error::success();
}

llvm::Error WeightFiles::addIndex(StringRef path) {
  auto buffer = readRegularFile(path, kMaxIndexBytes, ErrorClass::Weights);
  if (!buffer)
    return buffer.takeError();
  StringRef text = (*buffer)->getBuffer();
  text.consume_front("\xef\xbb\xbf"); // a byte order mark is no text
  if (!llvm::json::isUTF8(text))
    return weightError(path + ": expected UTF-8");
  // File -> the tensors that the index puts there.
  std::map<std::string, std::vector<std::string>> shards;
  StrictJson json(text);
  bool haveMap = false;
  bool read = json.object([&](StringRef key) {
    if (key != "weight_map")
      return json.skip();
    haveMap = true;
    return json.object([&](StringRef name) {
      std::string file;
      if (!json.string(file))
        return false;
      // A name within the folder of the index, and nothing else.
      if (file.empty() || file == "." || file == ".." ||
          StringRef(file).find_first_of(StringRef("/\\\0", 3)) !=
              StringRef::npos)
        return json.fail("expected the name of a file beside the index for '" +
                         name.str() + "', but got '" + file + "'");
      shards[file].push_back(name.str());
      return true;
    });
  });
  if (!read || !json.end())
    return weightError(path + ": malformed index: " + json.getError());
  if (!haveMap)
    return weightError(path + ": expected a weight_map");
  for (const auto &[file, tensorNames] : shards) {
    llvm::SmallString<128> shard = llvm::sys::path::parent_path(path);
    llvm::sys::path::append(shard, file);
    std::vector<std::string> added;
    if (llvm::Error error = addFile(shard, &added))
      return error;
    llvm::StringMap<bool> present;
    for (const std::string &name : added)
      present[name] = false;
    for (const std::string &name : tensorNames) {
      auto it = present.find(name);
      if (it == present.end())
        return weightError(path + ": expected tensor '" + name + "' in " +
                           file + ", but that file lacks it");
      it->second = true;
    }
    for (const std::string &name : added)
      if (!present[name])
        return weightError(path + ": expected every tensor of " + file +
                           " in the index, but it lacks '" + name + "'");
  }
  return llvm::Error::success();
}

llvm::Error WeightFiles::add(StringRef path) {
  if (!llvm::sys::fs::is_directory(path))
    return path.ends_with(".json") ? addIndex(path) : addFile(path);
  for (StringRef name : {"model.safetensors", "model.safetensors.index.json"}) {
    llvm::SmallString<128> file = path;
    llvm::sys::path::append(file, name);
    if (llvm::sys::fs::exists(file))
      return name.ends_with(".json") ? addIndex(file) : addFile(file);
  }
  std::string advice = adviseOnWeightFolder(path);
  return weightError(path +
                     ": expected model.safetensors or "
                     "model.safetensors.index.json in the folder" +
                     (advice.empty() ? "" : ", but got " + advice));
}

llvm::Error WeightFiles::addArray(StringRef name, DType dtype,
                                  llvm::ArrayRef<int64_t> shape,
                                  const char *data) {
  FileTensor tensor;
  tensor.dtypeName = stringifyDType(dtype);
  tensor.dtype = dtype;
  tensor.shape.assign(shape.begin(), shape.end());
  tensor.data = data;
  tensor.bytes = getByteSize(SizeList(tensor.shape), dtype).value_or(0);
  tensor.file = "memory";
  if (!tensors.try_emplace(name, std::move(tensor)).second)
    return weightError("weight '" + name + "': expected each name once");
  names.push_back(name.str());
  return llvm::Error::success();
}

const FileTensor *WeightFiles::find(StringRef name) const {
  auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

std::string WeightFiles::suggest(StringRef name) const {
  std::string best;
  unsigned least = 6; // farther away it is another name
  for (const std::string &candidate : names) {
    unsigned distance =
        name.edit_distance(candidate, /*AllowReplacements=*/true, least);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}
