//===- BundleC.cpp - C interface to bundles -------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "LoadedBundle.h"

#include "DiffAttn/Runtime/Program/CInterface.h"

#include "diffattn-c/Bundle.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <sstream>

using namespace diffattn_rt;

struct diffattn_bundle {
  LoadedBundle loaded;
};

static thread_local LastError lastError;

static int32_t fail(const Failure &failure) { return lastError.keep(failure); }

static Program &programOf(const diffattn_bundle *bundle) {
  return const_cast<diffattn_bundle *>(bundle)->loaded;
}

#define DIFFATTN_HANDLE diffattn_bundle
#define DIFFATTN_NAME(name) diffattn_bundle_##name
#define DIFFATTN_NOUN "bundle"
#include "DiffAttn/Runtime/Program/CFunctions.inc"

int32_t diffattn_bundle_api_version(void) {
  return DIFFATTN_BUNDLE_API_MAJOR * 1000 + DIFFATTN_BUNDLE_API_MINOR;
}

const char *diffattn_bundle_last_error(void) { return lastError.get(); }

static std::string orEmpty(const char *text) { return text ? text : ""; }

static int32_t open(const char *directory,
                    const diffattn_bundle_options *options,
                    diffattn_bundle **bundle) {
  if (Failure failure =
          checkPointers({{"directory", directory}, {"bundle", bundle}}))
    return fail(failure);
  // Options that an older caller's header does not declare are zero.
  diffattn_bundle_options known = {};
  if (options)
    memcpy(&known, options,
           std::min<size_t>(std::max(options->struct_bytes, 0), sizeof known));
  BundlePlaces places;
  places.weightsFolder = orEmpty(known.weights);
  places.gpu = known.gpu;
  places.cudaDriver = orEmpty(known.cuda_driver);
  places.cublasLt = orEmpty(known.cublaslt);
  std::istringstream folders(orEmpty(known.package_folders));
  for (std::string folder; std::getline(folders, folder, ':');)
    places.packageFolders.push_back(folder);
  if (known.device)
    places.device = DeviceHandle(known.device, [](diffattn_device *) {});
  BundleOpening opening;
  opening.readOnly = known.read_only != 0;
  if (known.progress || known.go_on)
    opening.progress = [&](int64_t done, int64_t total) {
      if (known.progress)
        known.progress(known.progress_data, done, total);
      return !known.go_on || known.go_on(known.progress_data, done, total) != 0;
    };
  auto opened = std::make_unique<diffattn_bundle>();
  if (Failure failure = opened->loaded.open(directory, places, opening))
    return fail(failure);
  *bundle = opened.release();
  return DIFFATTN_OK;
}

int32_t diffattn_bundle_open_with(const char *directory,
                                  const diffattn_bundle_options *options,
                                  diffattn_bundle **bundle) {
  return withMemory([&] { return open(directory, options, bundle); });
}

int32_t diffattn_bundle_open(const char *directory, const char *weights,
                             diffattn_bundle **bundle) {
  diffattn_bundle_options options = {};
  options.struct_bytes = sizeof options;
  options.weights = weights;
  return diffattn_bundle_open_with(directory, &options, bundle);
}

void diffattn_bundle_close(diffattn_bundle *bundle) { delete bundle; }

int32_t diffattn_bundle_has_device(const diffattn_bundle *bundle) {
  return isGiven(bundle) && bundle->loaded.getDevice() != nullptr;
}
