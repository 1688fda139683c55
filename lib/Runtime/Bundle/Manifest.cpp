//===- Manifest.cpp - manifests of bundles --------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Manifest.h"

#include "DiffAttn/Runtime/Bundle/BundleFormat.h"
#include "DiffAttn/Runtime/Program/ConvertWeight.h"
#include "DiffAttn/Runtime/Program/SignatureReader.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>

using namespace diffattn_rt;

namespace {

/// Reads the parts of a manifest. Every function returns false on an error,
/// which the reader of the JSON keeps.
class ManifestReader : SignatureReader {
public:
  ManifestReader(std::string_view text, Manifest &manifest)
      : SignatureReader(text), manifest(manifest) {}

  Failure read();

private:
  bool digest(std::string &value);
  bool machine();
  bool batchInvariant();
  bool devicePart();
  bool image(DevicePart::Image &image);
  bool checkDevices();
  bool file();
  bool weightFile();
  bool weight();
  bool checkTensors(const WeightDeclaration &declared,
                    const std::vector<TensorPlace> &places);
  bool checkPlaces();
  bool root();

  Manifest &manifest;
  uint64_t version = 0;
  /// Set for manifests that are sound and not for this loader.
  std::string foreign;
};

} // namespace

bool ManifestReader::digest(std::string &value) {
  if (!text(value))
    return false;
  bool hexadecimal =
      value.size() == 64 &&
      value.find_first_not_of("0123456789abcdef") == std::string::npos;
  return hexadecimal ||
         json.fail("expected 64 hexadecimal digits, but got '" + value + "'");
}

/// Only checks the value; `diffattn info` shows it.
bool ManifestReader::batchInvariant() {
  std::string chosen;
  if (!text(chosen))
    return false;
  return chosen == "true" || chosen == "false" || chosen == "auto" ||
         json.fail("expected 'batch_invariant' to be true, false or auto, but "
                   "got '" +
                   chosen + "'");
}

bool ManifestReader::machine() {
  std::string architecture;
  bool read = record({"architecture", "isa", "features"}, [&](auto key) {
    if (key == "architecture")
      return text(architecture);
    if (key == "isa")
      return text(manifest.isa);
    if (key == "features")
      return json.array(
          [&] { return text(manifest.cpuFeatures.emplace_back()); });
    return json.skip();
  });
  if (read && architecture != bundle::kArchitecture)
    foreign = std::string("expected a bundle for ") + bundle::kArchitecture +
              ", but got one for " + architecture;
  return read;
}

std::optional<Chip> diffattn_rt::parseChip(std::string_view chip) {
  Chip result;
  if (chip.substr(0, 3) != "sm_")
    return std::nullopt;
  chip.remove_prefix(3);
  const char *last = chip.data() + chip.size();
  auto [end, error] = std::from_chars(chip.data(), last, result.number);
  if (error != std::errc() || result.number <= 0)
    return std::nullopt;
  result.alone = end + 1 == last && *end == 'a';
  if (end != last && !result.alone)
    return std::nullopt;
  return result;
}

bool ManifestReader::image(DevicePart::Image &image) {
  std::string format;
  bool read = record({"format", "path", "driver"}, [&](auto key) {
    if (key == "format")
      return text(format);
    if (key == "path")
      return text(image.path);
    if (key == "driver")
      return number(image.driver);
    return json.skip();
  });
  if (!read)
    return false;
  auto *it =
      std::find(std::begin(bundle::kImageFormats),
                std::end(bundle::kImageFormats), std::string_view(format));
  if (it == std::end(bundle::kImageFormats))
    return json.fail("expected a known format of kernels, but got '" + format +
                     "'");
  image.format = static_cast<int32_t>(it - std::begin(bundle::kImageFormats));
  return image.driver <= std::numeric_limits<int32_t>::max() ||
         json.fail("expected the version of a driver, but got " +
                   std::to_string(image.driver));
}

bool ManifestReader::devicePart() {
  DevicePart &part = manifest.devices.emplace_back();
  bool read = record(
      {"chip", "library", "kernels", "images", "constant_bytes"},
      [&](auto key) {
        if (key == "chip")
          return text(part.chip);
        if (key == "library")
          return text(part.library);
        if (key == "images")
          return json.array([&] { return image(part.images.emplace_back()); });
        if (key == "kernels")
          return json.array([&] {
            DeviceCode::Kernel &kernel = part.kernels.emplace_back();
            return record({"name", "hash", "parameters"}, [&](auto field) {
              if (field == "name")
                return text(kernel.name);
              if (field == "hash")
                return text(kernel.hash);
              if (field == "parameters")
                return text(kernel.parameters);
              if (field == "starts_early")
                return json.boolean(kernel.startsEarly);
              return json.skip();
            });
          });
        if (key == "constants")
          return text(part.constants);
        if (key == "constant_bytes")
          return json.array(
              [&] { return number(part.constantBytes.emplace_back()); });
        return json.skip();
      });
  if (!read)
    return false;
  if (!parseChip(part.chip))
    return json.fail("expected a chip of the form sm_80, but got '" +
                     part.chip + "'");
  for (const DevicePart &other : manifest.devices)
    if (&other != &part && other.chip == part.chip)
      return json.fail("expected each chip once, but got " + part.chip +
                       " twice");
  for (const DeviceCode::Kernel &kernel : part.kernels)
    if (kernel.name.empty() ||
        kernel.parameters.find_first_not_of("pm1248") != std::string::npos)
      return json.fail(
          "kernel '" + kernel.name +
          "': expected parameters of p, m, 1, 2, 4 and 8, but got '" +
          kernel.parameters + "'");
  return true;
}

/// Checks that every file of a part is among the files, and that the file of
/// constants holds them.
bool ManifestReader::checkDevices() {
  for (const DevicePart &part : manifest.devices) {
    std::vector<std::string> paths = {part.library};
    for (const DevicePart::Image &image : part.images)
      paths.push_back(image.path);
    if (!part.constantBytes.empty())
      paths.push_back(part.constants);
    for (const std::string &path : paths)
      if (!manifest.findFile(path))
        return json.fail(part.chip + ": expected '" + path +
                         "' among the files");
    uint64_t total = 0;
    for (uint64_t bytes : part.constantBytes)
      if (__builtin_add_overflow(total, bytes, &total))
        return json.fail(part.chip +
                         ": expected constants that memory can hold");
    if (!part.constantBytes.empty() &&
        manifest.findFile(part.constants)->bytes != total)
      return json.fail(
          part.chip + ": expected a file with constants of " +
          std::to_string(total) + " bytes, but got one of " +
          std::to_string(manifest.findFile(part.constants)->bytes));
  }
  return true;
}

/// A name below the bundle and nowhere else.
static bool staysInside(const std::string &path) {
  if (path.empty() || path[0] == '/' || path.find('\0') != std::string::npos)
    return false;
  std::string padded = "/" + path + "/";
  return padded.find("/../") == std::string::npos &&
         padded.find("//") == std::string::npos;
}

bool ManifestReader::file() {
  BundledFile &file = manifest.files.emplace_back();
  bool read = record({"path", "bytes", "sha256"}, [&](auto key) {
    if (key == "path")
      return text(file.path);
    if (key == "bytes")
      return number(file.bytes);
    if (key == "sha256")
      return digest(file.sha256);
    return json.skip();
  });
  return read && (staysInside(file.path) ||
                  json.fail("expected the path of a file in the bundle, but "
                            "got '" +
                            file.path + "'"));
}

bool ManifestReader::weightFile() {
  WeightFile &file = manifest.weightFiles.emplace_back();
  bool read =
      record({"path", "bytes", "header_bytes", "header_sha256"}, [&](auto key) {
        if (key == "path")
          return text(file.path);
        if (key == "bytes")
          return number(file.bytes);
        if (key == "header_bytes")
          return number(file.headerBytes);
        if (key == "header_sha256")
          return digest(file.headerSha256);
        return json.skip();
      });
  if (!read)
    return false;
  if (file.path.empty() || file.path.find('\0') != std::string::npos)
    return json.fail("expected the path of a file, but got '" + file.path +
                     "'");
  return file.headerBytes <= file.bytes ||
         json.fail("expected a header within the file, but got " +
                   std::to_string(file.headerBytes) + " of " +
                   std::to_string(file.bytes) + " bytes");
}

bool ManifestReader::weight() {
  WeightDeclaration &declared = manifest.signature.weights.emplace_back();
  std::vector<TensorPlace> places;
  bool read = SignatureReader::weight(declared, [&](auto key) {
    if (key != "tensors")
      return json.skip();
    return json.array([&] {
      TensorPlace &place = places.emplace_back();
      return record({"name", "file", "offset", "dtype"}, [&](auto part) {
        if (part == "name")
          return text(place.name);
        if (part == "file")
          return number(place.file);
        if (part == "offset")
          return number(place.offset);
        if (part == "dtype")
          return dtype(place.dtype);
        return json.skip();
      });
    });
  });
  if (!read || !checkTensors(declared, places))
    return false;
  manifest.places.insert(manifest.places.end(),
                         std::make_move_iterator(places.begin()),
                         std::make_move_iterator(places.end()));
  return true;
}

bool ManifestReader::checkTensors(const WeightDeclaration &declared,
                                  const std::vector<TensorPlace> &places) {
  auto fail = [&](const std::string &message) {
    return json.fail("weight '" + declared.name + "': " + message);
  };
  if (static_cast<int64_t>(places.size()) != declared.getNumSlots())
    return fail("expected a tensor for each layer, but got " +
                std::to_string(places.size()));
  for (const TensorPlace &place : places)
    if (!canConvertWeight(place.dtype, declared.dtype))
      return fail("expected element type " + stringifyDType(declared.dtype) +
                  ", but got " + stringifyDType(place.dtype));
  return true;
}

/// Checks that every tensor lies behind the header of its file and ends in it.
bool ManifestReader::checkPlaces() {
  size_t slot = 0;
  for (const WeightDeclaration &declared : manifest.signature.weights)
    for (int64_t i = 0; i < declared.getNumSlots(); ++i, ++slot) {
      const TensorPlace &place = manifest.places[slot];
      std::optional<int64_t> bytes = getByteSize(declared.shape, place.dtype);
      bool known = place.file < manifest.weightFiles.size() && bytes;
      const WeightFile *file =
          known ? &manifest.weightFiles[place.file] : nullptr;
      if (!file || place.offset < file->headerBytes ||
          place.offset > file->bytes ||
          static_cast<uint64_t>(*bytes) > file->bytes - place.offset)
        return json.fail("weight '" + place.name +
                         "': expected its data within a weight file, but got "
                         "file " +
                         std::to_string(place.file) + ", offset " +
                         std::to_string(place.offset));
    }
  return true;
}

bool ManifestReader::root() {
  std::string format;
  // The first two keys decide whether the rest can be read at all.
  bool read = record(
      {"format", "version", "cpu", "files", "functions", "weight_files",
       "weights"},
      [&](auto key) {
        if (key == "format") {
          if (!text(format))
            return false;
          return format == bundle::kFormat ||
                 json.fail("expected format '" + std::string(bundle::kFormat) +
                           "', but got '" + format + "'");
        }
        if (format.empty())
          return json.fail("expected 'format' as the first key");
        if (key == "version") {
          if (!number(version))
            return false;
          if (version == bundle::kVersion)
            return true;
          foreign =
              "expected format version " + std::to_string(bundle::kVersion) +
              ", but got " + std::to_string(version) +
              (version > bundle::kVersion ? "; a newer diffattn has written it"
                                          : "");
          return json.fail(foreign);
        }
        if (!version)
          return json.fail("expected 'version' as the second key");
        if (key == "tool")
          return text(manifest.tool);
        if (key == "cpu")
          return machine();
        if (key == "batch_invariant")
          return batchInvariant();
        if (key == "devices")
          return json.array([&] { return devicePart(); });
        if (key == "files")
          return json.array([&] { return file(); });
        if (key == "functions")
          return json.array([&] { return function(manifest.signature); });
        if (key == "weight_files")
          return json.array([&] { return weightFile(); });
        if (key == "weights")
          return json.array([&] { return weight(); });
        return json.skip();
      });
  return read && json.end() && checkFollowing(manifest.signature) &&
         checkPlaces() && checkDevices();
}

Failure ManifestReader::read() {
  bool read = root();
  if (!foreign.empty())
    return {ErrorClass::Bundle, foreign};
  if (!read)
    return {ErrorClass::Bundle, "malformed manifest: " + json.getError()};
  return {};
}

const BundledFile *Manifest::findFile(std::string_view path) const {
  for (const BundledFile &file : files)
    if (file.path == path)
      return &file;
  return nullptr;
}

Failure diffattn_rt::parseManifest(std::string_view text, Manifest &manifest) {
  return ManifestReader(text, manifest).read();
}
