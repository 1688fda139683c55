//===- BundleFormat.h - names that bundles are made of ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_BUNDLE_BUNDLEFORMAT_H
#define DIFFATTN_RUNTIME_BUNDLE_BUNDLEFORMAT_H

#include "DiffAttn/Runtime/ABI/Table.h"

namespace diffattn_rt {

/// Names of files and symbols that the writer and the loader of a bundle share;
/// docs/bundles.md describes the manifest.
namespace bundle {

constexpr const char *kFormat = "diffattn bundle";
/// Version of the format; grows when older loaders could not read a new bundle.
constexpr int kVersion = 1;
constexpr const char *kArchitecture = "x86_64";

constexpr const char *kManifest = "manifest.json";
constexpr const char *kLibrary = "model.so";
constexpr const char *kWeightsFolder = "weights";
/// Files of a bundle for GPUs, in a folder for each chip, beside its library:
/// the constants, one after another, and an image in each of the formats, in
/// the order of diffattn_image_format.
constexpr const char *kConstants = "constants.bin";
constexpr const char *kImageFormats[] = {"cubin", "ptx", "bitcode"};
constexpr const char *kImages[] = {"kernels.cubin", "kernels.ptx",
                                   "kernels.bc"};

/// Symbols of the library beside the entry points: its requirements on the
/// runtime (diffattn_rt_needs), the function that takes the runtime's table,
/// the table of weights, with the constants of a device behind them, and the
/// SHA-256 of getContractText, of the signature and of the device's code if
/// there is any, as 64 hexadecimal digits.
constexpr const char *kNeedsSymbol = "diffattn_bundle_needs";
constexpr const char *kInitSymbol = "diffattn_bundle_init";
constexpr const char *kWeightsSymbol = DIFFATTN_WEIGHTS_SYMBOL;
constexpr const char *kContractSymbol = "diffattn_bundle_contract";
/// A function that is called last and frees packed constants; only in code with
/// products of constants.
constexpr const char *kReleaseSymbol = DIFFATTN_RELEASE_SYMBOL;

} // namespace bundle
} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_BUNDLE_BUNDLEFORMAT_H
