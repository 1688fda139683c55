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
#include <sstream>

using namespace diffattn_rt;

struct diffattn_bundle {
  LoadedBundle loaded;
};

static thread_local std::string lastError;

static int32_t fail(const Failure &failure) {
  if (!failure)
    return DIFFATTN_OK;
  lastError = failure.getMessage();
  return static_cast<int32_t>(failure.getClass());
}

int32_t diffattn_bundle_api_version(void) {
  return DIFFATTN_BUNDLE_API_MAJOR * 1000 + DIFFATTN_BUNDLE_API_MINOR;
}

const char *diffattn_bundle_last_error(void) { return lastError.c_str(); }

static std::string orEmpty(const char *text) { return text ? text : ""; }

int32_t diffattn_bundle_open_with(const char *directory,
                                  const diffattn_bundle_options *options,
                                  diffattn_bundle **bundle) {
  if (Failure failure =
          checkPointers({{"directory", directory}, {"bundle", bundle}}))
    return fail(failure);
  // What a caller of an older header does not have is zero.
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

int32_t diffattn_bundle_open(const char *directory, const char *weights,
                             diffattn_bundle **bundle) {
  diffattn_bundle_options options = {};
  options.struct_bytes = sizeof options;
  options.weights = weights;
  return diffattn_bundle_open_with(directory, &options, bundle);
}

void diffattn_bundle_close(diffattn_bundle *bundle) { delete bundle; }

/// Whether `bundle` is one; otherwise the last error says so, for functions
/// that return none.
static bool isGiven(const diffattn_bundle *bundle) {
  return fail(checkPointers({{"bundle", bundle}})) == DIFFATTN_OK;
}

int32_t diffattn_bundle_num_entries(const diffattn_bundle *bundle) {
  if (!isGiven(bundle))
    return 0;
  return static_cast<int32_t>(bundle->loaded.getSignature().functions.size());
}

/// The name of element `i`, or null if there is none.
template <typename Named>
static const char *nameOf(const std::vector<Named> &list, int32_t i) {
  bool known = i >= 0 && static_cast<size_t>(i) < list.size();
  return known ? list[i].name.c_str() : nullptr;
}

const char *diffattn_bundle_entry_name(const diffattn_bundle *bundle,
                                       int32_t i) {
  if (!isGiven(bundle))
    return nullptr;
  return nameOf(bundle->loaded.getSignature().functions, i);
}

/// Calls `use` with the signature of `entry`. `out` is where it writes.
template <typename Use>
static int32_t withFunction(const diffattn_bundle *bundle, const char *entry,
                            NamedPointer out, Use use) {
  if (Failure failure =
          checkPointers({{"bundle", bundle}, {"entry", entry}, out}))
    return fail(failure);
  const FunctionSignature *function;
  if (Failure failure = bundle->loaded.getSignature().get(entry, function))
    return fail(failure);
  return fail(use(*function));
}

int32_t diffattn_bundle_num_arguments(const diffattn_bundle *bundle,
                                      const char *entry, int32_t *count) {
  return withFunction(
      bundle, entry, {"count", count}, [&](const FunctionSignature &function) {
        *count = static_cast<int32_t>(function.arguments.size());
        return Failure();
      });
}

int32_t diffattn_bundle_num_results(const diffattn_bundle *bundle,
                                    const char *entry, int32_t *count) {
  return withFunction(bundle, entry, {"count", count},
                      [&](const FunctionSignature &function) {
                        *count = static_cast<int32_t>(function.results.size());
                        return Failure();
                      });
}

int32_t diffattn_bundle_argument_type(const diffattn_bundle *bundle,
                                      const char *entry, int32_t i,
                                      diffattn_type *type) {
  return withFunction(bundle, entry, {"type", type},
                      [&](const FunctionSignature &function) {
                        return describeValue(function.arguments, i, type);
                      });
}

int32_t diffattn_bundle_result_type(const diffattn_bundle *bundle,
                                    const char *entry, int32_t i,
                                    diffattn_type *type) {
  return withFunction(bundle, entry, {"type", type},
                      [&](const FunctionSignature &function) {
                        return describeValue(function.results, i, type);
                      });
}

int32_t diffattn_bundle_num_weights(const diffattn_bundle *bundle) {
  if (!isGiven(bundle))
    return 0;
  return static_cast<int32_t>(bundle->loaded.getSignature().weights.size());
}

const char *diffattn_bundle_weight_name(const diffattn_bundle *bundle,
                                        int32_t i) {
  if (!isGiven(bundle))
    return nullptr;
  return nameOf(bundle->loaded.getSignature().weights, i);
}

int32_t diffattn_bundle_call(diffattn_bundle *bundle, const char *entry,
                             const diffattn_array *arguments,
                             int32_t num_arguments, int32_t threads,
                             diffattn_result *results, int32_t num_results) {
  if (Failure failure = checkPointers({{"bundle", bundle}, {"entry", entry}}))
    return fail(failure);
  std::vector<ArrayView> views;
  Failure wrong = viewArguments(bundle->loaded.getSignature(), entry, arguments,
                                num_arguments, views);
  if (!wrong)
    wrong = checkResults(bundle->loaded.getSignature(), entry, results,
                         num_results);
  if (wrong)
    return fail(wrong);
  std::vector<CallResult> called;
  if (Failure failure = bundle->loaded.call(entry, views, threads, called))
    return fail(failure);
  return fail(giveResults(std::move(called), views, results));
}

void diffattn_bundle_free(void *data) { std::free(data); }

int32_t diffattn_bundle_has_device(const diffattn_bundle *bundle) {
  return isGiven(bundle) && bundle->loaded.getDevice() != nullptr;
}

/// Calls `use`, which may fail, with what the bundle has on its device. `host`
/// is the memory of the caller that it reads or writes.
template <typename Use>
static int32_t withDevice(const diffattn_bundle *bundle,
                          std::initializer_list<NamedPointer> host, Use use) {
  Failure failure = checkPointers({{"bundle", bundle}});
  if (!failure)
    failure = checkPointers(host);
  if (failure)
    return fail(failure);
  DeviceProgram *device = bundle->loaded.getDevice();
  if (!device)
    return fail({ErrorClass::Usage, "expected a bundle that runs on a device, "
                                    "but got one without"});
  return fail(use(*device));
}

int32_t diffattn_bundle_memory_allocate(diffattn_bundle *bundle, int64_t bytes,
                                        uint64_t *address) {
  return withDevice(bundle, {{"address", address}}, [&](DeviceProgram &device) {
    return device.allocate(bytes, *address);
  });
}

int32_t diffattn_bundle_memory_free(diffattn_bundle *bundle, uint64_t address) {
  return withDevice(bundle, {}, [&](DeviceProgram &device) {
    return device.release(address);
  });
}

int32_t diffattn_bundle_memory_write(diffattn_bundle *bundle, uint64_t to,
                                     const void *from, int64_t bytes) {
  return withDevice(
      bundle, {{"from", bytes ? from : &bytes}},
      [&](DeviceProgram &device) { return device.write(to, from, bytes); });
}

int32_t diffattn_bundle_memory_read(diffattn_bundle *bundle, void *to,
                                    uint64_t from, int64_t bytes) {
  return withDevice(
      bundle, {{"to", bytes ? to : &bytes}},
      [&](DeviceProgram &device) { return device.read(to, from, bytes); });
}

int32_t diffattn_bundle_memory_fill(diffattn_bundle *bundle, uint64_t to,
                                    int32_t value, int64_t bytes) {
  return withDevice(bundle, {}, [&](DeviceProgram &device) {
    return device.fill(to, value, bytes);
  });
}

int32_t diffattn_bundle_memory_copy(diffattn_bundle *bundle, uint64_t to,
                                    int64_t to_pitch, uint64_t from,
                                    int64_t from_pitch, int64_t bytes,
                                    int64_t rows) {
  return withDevice(bundle, {}, [&](DeviceProgram &device) {
    return device.copyRows(to, to_pitch, from, from_pitch, bytes, rows);
  });
}

int32_t diffattn_bundle_memory_stream(diffattn_bundle *bundle, void *stream) {
  return withDevice(bundle, {}, [&](DeviceProgram &device) {
    return device.setStream(stream);
  });
}

int32_t diffattn_bundle_memory_traffic(const diffattn_bundle *bundle,
                                       diffattn_traffic *traffic) {
  return withDevice(bundle, {{"traffic", traffic}},
                    [&](DeviceProgram &device) -> Failure {
                      *traffic = device.getTraffic();
                      return {};
                    });
}

int32_t diffattn_bundle_replay_create(diffattn_bundle *bundle,
                                      const char *entry,
                                      const diffattn_array *arguments,
                                      int32_t num_arguments,
                                      diffattn_replay **replay) {
  return withFunction(
      bundle, entry, {"replay", replay}, [&](const FunctionSignature &) {
        std::vector<ArrayView> views;
        auto created = std::make_unique<diffattn_replay>();
        Failure failure = viewArguments(bundle->loaded.getSignature(), entry,
                                        arguments, num_arguments, views);
        if (!failure)
          failure = bundle->loaded.replay(entry, views, created->call);
        if (!failure)
          *replay = created.release();
        return failure;
      });
}

void diffattn_bundle_replay_destroy(diffattn_replay *replay) { delete replay; }

int32_t diffattn_bundle_replay_run(diffattn_replay *replay, int32_t threads,
                                   diffattn_result *results,
                                   int32_t num_results) {
  if (Failure failure = checkPointers({{"replay", replay}}))
    return fail(failure);
  return fail(runReplay(*replay, threads, results, num_results));
}

const char *diffattn_bundle_replay_refusal(const diffattn_replay *replay) {
  if (fail(checkPointers({{"replay", replay}})))
    return "";
  return replay->call->getRefusal().c_str();
}
