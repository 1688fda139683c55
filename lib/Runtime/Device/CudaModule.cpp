//===- CudaModule.cpp - Kernels over the CUDA driver ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CudaDevice.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

using namespace diffattn_rt::cuda;

/// The driver takes at most 4 KiB of parameters before CUDA 12.1.
static constexpr size_t kMaxParameters = 512;

/// CUDA 12.3 is the first that has launches in graphs which start early.
static constexpr int kEarlyStartDriver = 12030;

/// "sm_80" is 80. A letter at its end ties an image to this one chip.
static bool parseChip(const char *chip, int &capability, bool &exact) {
  if (strncmp(chip, "sm_", 3) != 0)
    return false;
  char *end = nullptr;
  capability = static_cast<int>(strtol(chip + 3, &end, 10));
  exact = *end != 0;
  return end != chip + 3 && capability > 0;
}

namespace {
struct Candidate {
  const diffattn_image *image;
  int rank; // the higher the better
};
} // namespace

static std::string nameOf(const diffattn_image &image) {
  const char *format = image.format == DIFFATTN_IMAGE_CUBIN ? "cubin"
                       : image.format == DIFFATTN_IMAGE_PTX ? "PTX"
                                                            : "bitcode";
  return std::string(format) + " of " + image.chip;
}

/// Why `image` cannot run on a chip of `capability` with this driver; empty if
/// it can, and then `rank` orders images: machine code of the same chip, first
/// that which is for it alone, of an earlier chip of its family, PTX of the
/// latest chip.
static std::string judge(const diffattn_image &image, int capability,
                         int driver, int &rank) {
  int of = 0;
  bool exact = false;
  if (image.format == DIFFATTN_IMAGE_BITCODE)
    return "is for the simulator";
  if (!parseChip(image.chip, of, exact))
    return "has no chip of the form sm_80";
  if (driver < image.driver)
    return "wants a driver of CUDA " + std::to_string(image.driver / 1000) +
           "." + std::to_string(image.driver % 1000 / 10);
  if (exact ? of != capability : of > capability)
    return "is for another chip";
  const bool code = image.format == DIFFATTN_IMAGE_CUBIN;
  if (code && of / 10 != capability / 10)
    return "is machine code of another family of chips";
  rank = 2 * (of + (code ? 1000 : 0)) + exact;
  return "";
}

int32_t CudaDevice::loadImage(const diffattn_image &image, Module &out,
                              std::string &reason) {
  char log[8192] = "";
  int options[] = {kJitErrorLog, kJitErrorLogBytes};
  void *values[] = {log, reinterpret_cast<void *>(sizeof log)};
  // The driver reads PTX up to a zero.
  std::string text;
  const void *data = image.data;
  if (image.format == DIFFATTN_IMAGE_PTX) {
    text.assign(static_cast<const char *>(image.data), image.bytes);
    data = text.c_str();
  }
  Result result = driver.cuModuleLoadDataEx(&out, data, 2, options, values);
  if (result == kSuccess)
    return DIFFATTN_DEVICE_OK;
  reason = driver.describe(result);
  if (log[0])
    reason += "\n" + std::string(log, strnlen(log, sizeof log));
  return DIFFATTN_DEVICE_IMAGE;
}

int32_t CudaDevice::loadModule(const diffattn_image *images, int32_t numImages,
                               const diffattn_kernel *kernels,
                               int32_t numKernels, diffattn_module **out) {
  std::vector<Candidate> candidates;
  std::string refused;
  for (int32_t i = 0; i < numImages; ++i) {
    int rank = 0;
    std::string reason = judge(images[i], capability, facts.driver, rank);
    if (reason.empty())
      candidates.push_back({&images[i], rank});
    else
      refused += "\n  " + nameOf(images[i]) + ": " + reason;
  }
  std::sort(
      candidates.begin(), candidates.end(),
      [](const Candidate &a, const Candidate &b) { return a.rank > b.rank; });
  Current current(*this);
  if (current.result != kSuccess)
    return failed("the device's context", current.result);
  auto module = std::make_unique<ModuleState>();
  for (const Candidate &candidate : candidates) {
    std::string reason;
    if (!loadImage(*candidate.image, module->native, reason))
      break;
    module->native = nullptr;
    refused += "\n  " + nameOf(*candidate.image) + ": " + reason;
  }
  if (!module->native)
    return fail(DIFFATTN_DEVICE_IMAGE,
                std::string("expected kernels that run on ") + facts.name +
                    " (" + facts.chip +
                    "), but got:" + (refused.empty() ? " none" : refused));
  for (int32_t i = 0; i < numKernels; ++i) {
    KernelState kernel;
    kernel.name = kernels[i].name;
    kernel.parameters = kernels[i].parameters;
    // Older drivers do not capture such launches.
    kernel.startsEarly =
        kernels[i].starts_early && facts.driver >= kEarlyStartDriver;
    Result result = driver.cuModuleGetFunction(&kernel.function, module->native,
                                               kernels[i].name);
    int32_t status = DIFFATTN_DEVICE_OK;
    if (result != kSuccess)
      status = failed("kernel " + kernel.name + " in its module", result);
    else if (kernel.parameters.size() > kMaxParameters)
      status =
          fail(DIFFATTN_DEVICE_INVALID,
               "kernel " + kernel.name + ": expected at most " +
                   std::to_string(kMaxParameters) + " parameters, but got " +
                   std::to_string(kernel.parameters.size()));
    if (status) {
      driver.cuModuleUnload(module->native);
      return status;
    }
    module->kernels.push_back(std::move(kernel));
  }
  *out = reinterpret_cast<diffattn_module *>(module.release());
  return DIFFATTN_DEVICE_OK;
}

int32_t CudaDevice::launchKernel(ModuleState &module, int32_t number,
                                 const diffattn_launch_shape &shape,
                                 Stream stream, const uint64_t *arguments) {
  if (number < 0 || static_cast<size_t>(number) >= module.kernels.size())
    return fail(DIFFATTN_DEVICE_INVALID,
                "expected a kernel from 0 to " +
                    std::to_string(int64_t(module.kernels.size()) - 1) +
                    ", but got " + std::to_string(number));
  if (uint64_t(shape.grid[0]) * shape.grid[1] * shape.grid[2] == 0)
    return DIFFATTN_DEVICE_OK;
  KernelState &kernel = module.kernels[number];
  void *parameters[kMaxParameters];
  for (size_t i = 0; i < kernel.parameters.size(); ++i)
    parameters[i] = kernel.parameters[i] == 'm'
                        ? reinterpret_cast<void *>(arguments[i])
                        : const_cast<uint64_t *>(arguments + i);
  Current current(*this);
  Result result = current.result;
  if (result == kSuccess && shape.shared_bytes > kernel.sharedLimit) {
    result =
        driver.cuFuncSetAttribute(kernel.function, kFunctionMaxDynamicShared,
                                  static_cast<int>(shape.shared_bytes));
    if (result == kSuccess)
      kernel.sharedLimit = shape.shared_bytes;
  }
  if (result == kSuccess) {
    LaunchAttribute early = {kLaunchProgrammaticSerialization, {1}};
    const LaunchConfig config = {
        shape.grid[0],  shape.grid[1],     shape.grid[2],      shape.block[0],
        shape.block[1], shape.block[2],    shape.shared_bytes, stream,
        &early,         kernel.startsEarly};
    result =
        driver.cuLaunchKernelEx(&config, kernel.function, parameters, nullptr);
  }
  if (result == kSuccess)
    return DIFFATTN_DEVICE_OK;
  auto triple = [](const uint32_t *n) {
    return std::to_string(n[0]) + "x" + std::to_string(n[1]) + "x" +
           std::to_string(n[2]);
  };
  return failed("kernel " + kernel.name + " to launch with " +
                    triple(shape.grid) + " blocks of " + triple(shape.block) +
                    " threads and " + std::to_string(shape.shared_bytes) +
                    " of " + std::to_string(facts.shared_bytes) +
                    " bytes of shared memory",
                result);
}
