//===- LoadedBundle.cpp - a compiled model without its compiler -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "LoadedBundle.h"
#include "CpuFeatures.h"
#include "Sha256.h"
#include "WeightHeader.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Bundle/BundleFormat.h"
#include "DiffAttn/Runtime/Program/ConvertWeight.h"

#include <sys/stat.h>
#include <unistd.h>

using namespace diffattn_rt;

static constexpr size_t kMaxManifestBytes = 100'000'000;

/// `failure`, with the file that it is in before its message.
static Failure in(const std::string &path, const Failure &failure) {
  return {failure.getClass(), path + ": " + failure.getMessage()};
}

static Failure checkSize(const std::string &path, std::string_view bytes,
                         uint64_t expected, ErrorClass errorClass) {
  if (bytes.size() == expected)
    return {};
  return {errorClass, path + ": expected " + std::to_string(expected) +
                          " bytes, but got " + std::to_string(bytes.size()) +
                          (bytes.size() < expected ? " (truncated)" : "")};
}

LoadedBundle::~LoadedBundle() {
  for (int64_t i = 0; table && i < getSignature().getNumWeightSlots(); ++i)
    diffattn_rt_weight_release(&table[i]);
  // Only code with products of constants has it.
  if (void *release = image.find(bundle::kReleaseSymbol))
    reinterpret_cast<void (*)()>(release)();
}

Failure LoadedBundle::open(const std::string &path, const BundlePlaces &places,
                           const BundleOpening &opening) {
  directory = path;
  if (Failure failure = readManifest())
    return failure;
  if (opening.readOnly) {
    for (const BundledFile &listed : manifest.files) {
      FileMapping file;
      if (Failure failure = checkFile(listed, /*isCode=*/false, file))
        return failure;
    }
    return {};
  }
  if (Failure failure = checkCpu())
    return failure;
  if (!manifest.devices.empty())
    if (Failure failure = openDevice(places))
      return failure;
  if (Failure failure = loadCode())
    return failure;
  if (part)
    if (Failure failure = loadOnDevice())
      return failure;
  return bindWeights(places.weightsFolder, opening.progress);
}

Failure LoadedBundle::readManifest() {
  struct stat status;
  if (stat(directory.c_str(), &status) || !S_ISDIR(status.st_mode))
    return {ErrorClass::Bundle,
            directory + ": expected the folder of a bundle, but there is none"};
  std::string path = directory + "/" + bundle::kManifest;
  FileMapping file;
  if (Failure failure = file.map(path, ErrorClass::Bundle))
    return failure;
  if (file.bytes().size() > kMaxManifestBytes)
    return {ErrorClass::Bundle, path + ": expected at most 100 MB, but got " +
                                    std::to_string(file.bytes().size()) +
                                    " bytes"};
  if (Failure failure = parseManifest(file.bytes(), manifest))
    return in(path, failure);
  return {};
}

Failure LoadedBundle::checkCpu() const {
  std::string missing;
  for (const std::string &feature : manifest.cpuFeatures) {
    FeatureState state = getCpuFeature(feature);
    if (state == FeatureState::Present)
      continue;
    missing += (missing.empty() ? "" : ", ") + feature;
    if (state == FeatureState::Unknown)
      missing += " (not known to this loader)";
    if (state == FeatureState::Refused)
      missing += " (the system does not let this process use it)";
  }
  if (missing.empty())
    return {};
  return {ErrorClass::Bundle, directory + ": expected a CPU that runs " +
                                  manifest.isa + " code, but this one lacks " +
                                  missing};
}

/// The device that `places` name.
static Failure openCuda(const BundlePlaces &places, DeviceHandle &device) {
  diffattn_cuda_options options = {};
  options.ordinal = places.gpu;
  if (!places.cudaDriver.empty())
    options.driver_library = places.cudaDriver.c_str();
  if (!places.cublasLt.empty())
    options.gemm_library = places.cublasLt.c_str();
  std::vector<const char *> folders;
  for (const std::string &folder : places.packageFolders)
    folders.push_back(folder.c_str());
  options.package_folders = folders.data();
  options.num_package_folders = static_cast<int32_t>(folders.size());
  diffattn_device *opened = nullptr;
  if (diffattn_cuda_open(&options, &opened))
    return {ErrorClass::Bundle,
            std::string(diffattn_cuda_open_error()) +
                "\na driver library that the loader does not find is named by "
                "diffattn --cuda-driver, or cuda_driver of the interface"};
  device = DeviceHandle(opened, [](diffattn_device *d) { d->close(d); });
  return {};
}

Failure LoadedBundle::openDevice(const BundlePlaces &places) {
  device = places.device;
  if (!device)
    if (Failure failure = openCuda(places, device))
      return in(directory, failure);
  diffattn_device_properties facts;
  if (Failure failure =
          deviceFailure(*device, device->properties(device.get(), &facts)))
    return in(directory, failure);
  // Code of the latest chip that is not later than the device's.
  const int number = parseChip(facts.chip).value_or(Chip()).number;
  std::string chips;
  for (const DevicePart &candidate : manifest.devices) {
    chips += (chips.empty() ? "" : ", ") + candidate.chip;
    const Chip chip = *parseChip(candidate.chip);
    if (chip.runsOn(number) &&
        (!part || chip.isBetterThan(*parseChip(part->chip))))
      part = &candidate;
  }
  if (part)
    return {};
  return {ErrorClass::Bundle,
          directory + ": expected kernels for " + facts.name + " (" +
              facts.chip + "), but got ones for " + chips + " and later chips"};
}

void LoadedBundle::takeDeviceFile(const std::string &path,
                                  std::string_view bytes) {
  for (const DevicePart::Image &listed : part->images)
    if (listed.path == path)
      deviceCode.images.push_back({part->chip, listed.format,
                                   static_cast<int32_t>(listed.driver),
                                   std::string(bytes)});
  if (path != part->constants)
    return;
  // The manifest's reader has checked that these are all of the file.
  for (uint64_t size : part->constantBytes) {
    const std::string_view constant = bytes.substr(0, size);
    deviceCode.constants.emplace_back(constant);
    bytes.remove_prefix(constant.size());
  }
}

Failure LoadedBundle::loadOnDevice() {
  table = static_cast<diffattn_weight *>(image.find(bundle::kWeightsSymbol));
  if (!table)
    return lacksSymbol(bundle::kWeightsSymbol);
  Failure failure = DeviceProgram::create(
      deviceCode, device, table + getSignature().getNumWeightSlots(), program);
  if (failure)
    return {ErrorClass::Bundle, directory + ": " + failure.getMessage()};
  deviceCode = {};
  return {};
}

Failure LoadedBundle::lacksSymbol(const std::string &symbol) const {
  return {ErrorClass::Bundle, directory + "/" + getLibrary() +
                                  ": expected the symbol " + symbol +
                                  ", but the code lacks it"};
}

/// Maps a file of the bundle itself and checks that it has not changed.
Failure LoadedBundle::checkFile(const BundledFile &listed, bool isCode,
                                FileMapping &file) const {
  const std::string path = directory + "/" + listed.path;
  if (Failure failure = file.map(path, ErrorClass::Bundle))
    return failure;
  if (Failure failure =
          checkSize(path, file.bytes(), listed.bytes, ErrorClass::Bundle))
    return failure;
  // Before the checksum, because its message is more precise.
  if (isCode)
    if (Failure failure = checkElfHeader(file.bytes()))
      return in(path, failure);
  if (std::string got = sha256(file.bytes()); got != listed.sha256)
    return {ErrorClass::Bundle, path + ": expected SHA-256 " + listed.sha256 +
                                    ", but got " + got +
                                    " (the file has been changed)"};
  return {};
}

Failure LoadedBundle::loadCode() {
  const std::string library = getLibrary();
  if (!manifest.findFile(library))
    return {ErrorClass::Bundle, directory + "/" + bundle::kManifest +
                                    ": expected " + library +
                                    " among the files"};
  for (const BundledFile &listed : manifest.files) {
    bool isCode = listed.path == library;
    FileMapping file;
    if (Failure failure = checkFile(listed, isCode, file))
      return failure;
    if (isCode)
      if (Failure failure = image.load(file.bytes()))
        return in(directory + "/" + listed.path, failure);
    if (part)
      takeDeviceFile(listed.path, file.bytes());
  }
  for (const FunctionSignature &function : manifest.signature.functions) {
    std::string symbol = getEntryPointName(function.name);
    void *address = image.find(symbol.c_str());
    if (!address)
      return lacksSymbol(symbol);
    entries.push_back(reinterpret_cast<EntryPoint>(address));
  }
  // Calls trust the manifest's types, so they must be those of the code.
  std::string terms = getContractText(manifest.signature);
  if (part) {
    deviceCode.kernels = part->kernels;
    terms += getContractText(deviceCode);
  }
  std::string contract = sha256(terms);
  auto *own = static_cast<const char *>(image.find(bundle::kContractSymbol));
  if (!own)
    return lacksSymbol(bundle::kContractSymbol);
  if (std::string_view(own, contract.size()) != contract)
    return {ErrorClass::Bundle, directory + "/" + bundle::kManifest +
                                    ": expected the " +
                                    (part ? "functions, weights and kernels"
                                          : "functions and weights") +
                                    " of " + library + ", but got others"};
  return {};
}

/// Maps a weight file and checks that it is the one that the bundle was made
/// with.
static Failure mapWeights(const std::string &path, const Manifest &manifest,
                          size_t number, FileMapping &file) {
  const WeightFile &expected = manifest.weightFiles[number];
  if (Failure failure = file.map(path, ErrorClass::Weights))
    return failure;
  if (Failure failure =
          checkSize(path, file.bytes(), expected.bytes, ErrorClass::Weights))
    return failure;
  std::string_view header = file.bytes().substr(0, expected.headerBytes);
  if (sha256(header) != expected.headerSha256)
    return {ErrorClass::Weights,
            path + ": expected the header that the bundle was made with, but "
                   "got another (the file has been changed)"};
  if (Failure failure = checkWeightHeader(header, manifest, number))
    return in(path, failure);
  return {};
}

/// A bundle points at its weight files, and either may have been moved.
static Failure adviseOnMovedWeights(const std::string &path,
                                    const Failure &failure) {
  if (access(path.c_str(), F_OK) == 0)
    return failure;
  return {failure.getClass(),
          failure.getMessage() +
              "; if the bundle or its weights were moved, name the folder that "
              "holds them: diffattn --weights, or weights of the interface"};
}

Failure LoadedBundle::bindWeights(const std::string &weightsFolder,
                                  const DeviceProgram::Progress &progress) {
  for (size_t number = 0; number < manifest.weightFiles.size(); ++number) {
    std::string path = manifest.weightFiles[number].path;
    if (!weightsFolder.empty())
      path = weightsFolder + "/" + path.substr(path.rfind('/') + 1);
    else if (path[0] != '/')
      path = directory + "/" + path;
    if (Failure failure =
            mapWeights(path, manifest, number, mappings.emplace_back()))
      return adviseOnMovedWeights(path, failure);
  }
  if (manifest.places.empty())
    return {};
  table = static_cast<diffattn_weight *>(image.find(bundle::kWeightsSymbol));
  if (!table)
    return lacksSymbol(bundle::kWeightsSymbol);
  auto bytesOf = [](const WeightDeclaration &declared) {
    int64_t bytes = getDTypeBytes(declared.dtype);
    for (int64_t size : declared.shape)
      bytes *= size;
    return bytes;
  };
  int64_t total = 0, done = 0;
  for (const WeightDeclaration &declared : manifest.signature.weights)
    total += declared.getNumSlots() * bytesOf(declared);
  size_t slot = 0;
  for (const WeightDeclaration &declared : manifest.signature.weights)
    for (int64_t i = 0; i < declared.getNumSlots(); ++i, ++slot) {
      const TensorPlace &place = manifest.places[slot];
      const char *data = mappings[place.file].bytes().data() + place.offset;
      if (Failure failure = convertWeight(
              declared, {data, place.dtype, declared.getFileName(i)},
              table[slot], owned))
        return in(directory, failure);
      done += bytesOf(declared);
      // On a device it is the copies that take time.
      if (progress && !program && !progress(done, total))
        return in(directory, stoppedAfter(done, total));
    }
  if (!program)
    return {};
  if (Failure failure =
          program->loadWeights(manifest.signature, table, progress))
    return in(directory, failure);
  owned.clear();
  mappings.clear();
  return {};
}

Failure LoadedBundle::checkReady() const {
  if (!entries.empty() || getSignature().functions.empty())
    return {};
  return {ErrorClass::Usage,
          directory + ": expected a bundle that was opened to run, but got "
                      "one that was opened to be read only"};
}

EntryPoint
LoadedBundle::getEntryPoint(const FunctionSignature &function) const {
  return entries[&function - getSignature().functions.data()];
}

std::pair<std::string, std::string> LoadedBundle::describeNoDevice() const {
  return {"a bundle that runs on a device", "one without"};
}
