//===- Device.cpp - devices for compiled code -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Device.h"

#include "DiffAttn/Target/GpuTarget.h"
#include "DiffAttn/Testing/Simulator/Device.h"

using namespace mlir::diffattn;
using namespace diffattn_rt;

static llvm::Expected<DeviceHandle> openCuda(const ExecutionTarget &target,
                                             const CudaLibraries &libraries) {
  diffattn_cuda_options options = {};
  options.ordinal = target.ordinal;
  if (!libraries.driver.empty())
    options.driver_library = libraries.driver.c_str();
  if (!libraries.cublasLt.empty())
    options.gemm_library = libraries.cublasLt.c_str();
  std::vector<const char *> folders;
  for (const std::string &folder : libraries.packageFolders)
    folders.push_back(folder.c_str());
  options.package_folders = folders.data();
  options.num_package_folders = static_cast<int32_t>(folders.size());
  diffattn_device *device = nullptr;
  if (diffattn_cuda_open(&options, &device))
    return makeError(
        ErrorClass::Usage,
        llvm::Twine(diffattn_cuda_open_error()) +
            "\na driver library that the loader does not find is named by "
            "--cuda-driver, or option cuda_driver; without a GPU, target "
            "cuda-sim simulates one");
  return DeviceHandle(device, [](diffattn_device *d) { d->close(d); });
}

llvm::Expected<diffattn_device *>
mlir::diffattn::makeSimulatedDevice(llvm::StringRef chip, bool hostAccess) {
  std::string message;
  diffattn_device *device = sim::createDevice(chip, hostAccess, message);
  if (!device)
    return makeError(ErrorClass::Usage, message);
  return device;
}

llvm::Expected<DeviceHandle>
mlir::diffattn::openSimulatedDevice(llvm::StringRef chip, bool hostAccess) {
  auto device = makeSimulatedDevice(chip, hostAccess);
  if (!device)
    return device.takeError();
  return DeviceHandle(*device, [](diffattn_device *d) { d->close(d); });
}

llvm::Expected<DeviceHandle>
mlir::diffattn::openDevice(const ExecutionTarget &target,
                           const CudaLibraries &libraries) {
  switch (target.device) {
  case ExecutionDevice::Cpu:
    break;
  case ExecutionDevice::CudaSim:
    return openSimulatedDevice(target.chip);
  case ExecutionDevice::Cuda:
    return openCuda(target, libraries);
  }
  return makeError(ErrorClass::Usage, "expected a target with a device");
}

llvm::Expected<std::string>
mlir::diffattn::resolveTarget(llvm::StringRef text,
                              const CudaLibraries &libraries) {
  llvm::Expected<ExecutionTarget> target = parseTarget(text);
  if (!target)
    return target.takeError();
  if (target->device != ExecutionDevice::Cuda)
    return text.str();
  // Opened in any case, so that an error comes before anything is compiled.
  llvm::Expected<DeviceHandle> device = openDevice(*target, libraries);
  if (!device)
    return device.takeError();
  if (!target->chipNamed) {
    diffattn_device_properties facts;
    if (Failure failure = deviceFailure(
            **device, (*device)->properties(device->get(), &facts)))
      return toError(failure);
    target->chip = getNativeGpuChip(facts.chip).str();
  }
  const std::string isa = target->isa == "native" ? "" : "/" + target->isa;
  return "cuda:" + target->chip + isa + "@" + std::to_string(target->ordinal);
}
