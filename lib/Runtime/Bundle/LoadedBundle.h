//===- LoadedBundle.h - a compiled model without its compiler ---*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_RUNTIME_BUNDLE_LOADEDBUNDLE_H
#define DIFFATTN_LIB_RUNTIME_BUNDLE_LOADEDBUNDLE_H

#include "CodeImage.h"
#include "FileMapping.h"
#include "Manifest.h"

#include "DiffAttn/Runtime/Bundle/BundleFormat.h"
#include "DiffAttn/Runtime/Program/Program.h"

namespace diffattn_rt {

/// Places of weights and libraries that are not part of a bundle.
struct BundlePlaces {
  /// Folder of the weight files, which are found by name; empty: the paths of
  /// the manifest are used.
  std::string weightsFolder;
  /// The number of the GPU for bundles with kernels, and libraries that the
  /// system's loader does not find; see diffattn_cuda_options.
  int32_t gpu = 0;
  std::string cudaDriver, cublasLt;
  std::vector<std::string> packageFolders;
  /// Runs the bundle in place of a GPU of the CUDA driver, if it is set.
  DeviceHandle device;
};

/// Options of opening a bundle.
struct BundleOpening {
  /// Called between weights; may be empty.
  DeviceProgram::Progress progress;
  /// Only the manifest is read and the bundle's own files are checked.
  bool readOnly = false;
};

class LoadedBundle final : public Program {
public:
  ~LoadedBundle() override;

  /// Opens the bundle in `directory`: checks every file of it, opens the device
  /// that it is for, links its code and binds its weights.
  Failure open(const std::string &directory, const BundlePlaces &places,
               const BundleOpening &opening);

  const Signature &getSignature() const override { return manifest.signature; }

  DeviceProgram *getDevice() const override { return program.get(); }

private:
  /// Fails if the bundle was opened to be read only.
  Failure checkReady() const override;
  EntryPoint getEntryPoint(const FunctionSignature &function) const override;
  std::pair<std::string, std::string> describeNoDevice() const override;

  Failure readManifest();
  Failure checkCpu() const;
  Failure openDevice(const BundlePlaces &places);
  Failure checkFile(const BundledFile &listed, bool isCode,
                    FileMapping &file) const;
  Failure loadCode();
  void takeDeviceFile(const std::string &path, std::string_view bytes);
  Failure loadOnDevice();
  /// Path within the bundle of the code that runs here.
  std::string getLibrary() const {
    return part ? part->library : bundle::kLibrary;
  }
  Failure lacksSymbol(const std::string &symbol) const;
  Failure bindWeights(const std::string &weightsFolder,
                      const DeviceProgram::Progress &progress);

  std::string directory;
  Manifest manifest;
  /// The device of a bundle for GPUs, and the part of the bundle for it.
  DeviceHandle device;
  const DevicePart *part = nullptr;
  DeviceCode deviceCode;
  CodeImage image;
  std::vector<EntryPoint> entries; // one a function, or none: it is only read
  std::vector<FileMapping> mappings;
  std::vector<HostArray> owned;
  diffattn_weight *table = nullptr;       // of the image
  std::unique_ptr<DeviceProgram> program; // null on the CPU
};

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_BUNDLE_LOADEDBUNDLE_H
