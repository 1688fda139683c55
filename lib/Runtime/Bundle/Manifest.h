//===- Manifest.h - manifests of bundles ------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_RUNTIME_BUNDLE_MANIFEST_H
#define DIFFATTN_LIB_RUNTIME_BUNDLE_MANIFEST_H

#include "DiffAttn/Runtime/Program/DeviceCode.h"
#include "DiffAttn/Runtime/Program/Signature.h"

#include <optional>

namespace diffattn_rt {

/// A file of the bundle's own.
struct BundledFile {
  std::string path; // within the bundle
  uint64_t bytes = 0;
  std::string sha256;
};

/// A safetensors file. It is identified by its size and its header, which holds
/// the names, types and places of all its tensors.
struct WeightFile {
  std::string path; // absolute, or relative to the bundle
  uint64_t bytes = 0, headerBytes = 0;
  std::string headerSha256;
};

/// The place of the weight of one slot in the weight files.
struct TensorPlace {
  std::string name;
  size_t file = 0; // number of the weight file
  uint64_t offset = 0;
  DType dtype = 0;
};

/// The part of a bundle for GPUs of one chip and later ones.
struct DevicePart {
  struct Image {
    int32_t format = 0; // diffattn_image_format
    uint64_t driver = 0;
    std::string path;
  };
  std::string chip;    // sm_80
  std::string library; // host code; chips differ in their launches
  std::vector<DeviceCode::Kernel> kernels;
  std::vector<Image> images;
  std::string constants; // a file with one constant after another, or empty
  std::vector<uint64_t> constantBytes;
};

/// "sm_80" is number 80. A letter behind it, as in "sm_90a", ties code to this
/// one chip.
struct Chip {
  int number = 0;
  bool alone = false;
  /// Whether a device of number `device` runs the code.
  bool runsOn(int device) const {
    return alone ? number == device : number <= device;
  }
  /// Whether the code uses more of a device that runs both.
  bool isBetterThan(const Chip &other) const {
    return number != other.number ? number > other.number
                                  : alone && !other.alone;
  }
};
std::optional<Chip> parseChip(std::string_view chip);

struct Manifest {
  std::string tool, isa;
  std::vector<std::string> cpuFeatures;
  std::vector<DevicePart> devices; // none: the bundle is for the CPU
  std::vector<BundledFile> files;
  Signature signature;
  std::vector<WeightFile> weightFiles;
  std::vector<TensorPlace> places; // one a slot of the weight table

  const BundledFile *findFile(std::string_view path) const;
};

/// Reads a manifest. Keys that are not known are passed over; whatever is known
/// must be whole and make sense by itself: sizes, numbers of files, offsets.
/// Failures are of class Bundle and do not name the file.
Failure parseManifest(std::string_view text, Manifest &manifest);

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_BUNDLE_MANIFEST_H
