//===- CudaDriver.cpp - Opens the CUDA driver -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CudaDriver.h"

using namespace diffattn_rt;
using namespace diffattn_rt::cuda;

/// Paths of the driver's library, for systems whose loader does not find it.
/// The stub of a toolkit is none of them: it opens, and every call of it fails.
static const std::vector<std::string> kPlaces = {
    "libcuda.so.1",
    "libcuda.so",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/local/cuda/compat/libcuda.so.1"};

bool Driver::open(const std::string &path, std::string &error) {
  std::string tried;
  const std::vector<std::string> places =
      path.empty() ? kPlaces : std::vector<std::string>{path};
  if (!library.open(places, /*onlyLoaded=*/false, tried)) {
    error = "expected the CUDA driver's library (it comes with NVIDIA's "
            "driver), but could open none of:" +
            tried;
    return false;
  }
  std::string missing;
#define DIFFATTN_CUDA_LOOKUP(name, ...)                                        \
  name = reinterpret_cast<decltype(name)>(library.find(#name));                \
  if (!name)                                                                   \
    missing += missing.empty() ? #name : ", " #name;
  DIFFATTN_CUDA_DRIVER_FUNCTIONS(DIFFATTN_CUDA_LOOKUP)
#undef DIFFATTN_CUDA_LOOKUP
  if (missing.empty())
    return true;
  error = "expected a CUDA driver of CUDA 12.0 or newer, but " +
          library.getPath() + " lacks " + missing;
  return false;
}

std::string Driver::describe(Result result) const {
  const char *name = nullptr, *text = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &text);
  if (!name)
    return "CUDA error " + std::to_string(result);
  return std::string(name) + (text ? " (" + std::string(text) + ")" : "");
}
