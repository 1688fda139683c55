//===- LoadedBundle.h - a compiled model without its compiler ---*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_BUNDLE_LOADEDBUNDLE_H
#define DIFFATTN_LIB_BUNDLE_LOADEDBUNDLE_H

#include "CodeImage.h"
#include "FileMapping.h"
#include "Manifest.h"

#include "DiffAttn/Host/Call.h"

struct diffattn_weight;

namespace mlir::diffattn {

class LoadedBundle {
public:
  LoadedBundle() = default;
  LoadedBundle(const LoadedBundle &) = delete;
  LoadedBundle &operator=(const LoadedBundle &) = delete;
  ~LoadedBundle();

  /// Opens the bundle in `directory`: checks every file of it, links its code
  /// and binds its weights. Weight files are looked for in `weightsFolder` by
  /// their names, or, if that is empty, where the manifest says.
  Failure open(const std::string &directory, const std::string &weightsFolder);

  const Signature &getSignature() const { return manifest.signature; }

  /// Calls a function. One call of a bundle at a time.
  Failure call(std::string_view entry, ListRef<ArrayView> args, int64_t threads,
               std::vector<CallResult> &results) const;

private:
  Failure readManifest();
  Failure checkCpu() const;
  Failure loadCode();
  Failure lacksSymbol(const std::string &symbol) const;
  Failure bindWeights(const std::string &weightsFolder);

  std::string directory;
  Manifest manifest;
  CodeImage image;
  std::vector<EntryPoint> entries; // one a function of the signature
  std::vector<FileMapping> mappings;
  std::vector<HostArray> owned;
  diffattn_weight *table = nullptr; // of the image
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_BUNDLE_LOADEDBUNDLE_H
