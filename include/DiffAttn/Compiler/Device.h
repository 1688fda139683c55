//===- Device.h - devices for compiled code ---------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_DEVICE_H
#define DIFFATTN_COMPILER_DEVICE_H

#include "DiffAttn/Compiler/ExecutionTarget.h"
#include "DiffAttn/Runtime/Program/DeviceProgram.h"

#include <memory>
#include <string>
#include <vector>

namespace mlir::diffattn {

/// Where libraries of CUDA lie that the system's loader does not find; see
/// diffattn_cuda_options.
struct CudaLibraries {
  std::string driver, cublasLt;
  /// Folders of Python packages.
  std::vector<std::string> packageFolders;
};

/// The device of a target that is not the CPU. An error of class Usage if there
/// is none: no driver, no GPU, no such chip.
llvm::Expected<diffattn_rt::DeviceHandle>
openDevice(const ExecutionTarget &target, const CudaLibraries &libraries);

/// A GPU that is simulated. Its memory is not the host's: to touch it faults,
/// unless `hostAccess` is set, for programs whose host code computes too.
llvm::Expected<diffattn_rt::DeviceHandle>
openSimulatedDevice(llvm::StringRef chip, bool hostAccess = false);
/// A simulated GPU for a caller who ends it with its own function `close`.
llvm::Expected<diffattn_device *> makeSimulatedDevice(llvm::StringRef chip,
                                                      bool hostAccess = false);

/// `text` with its open parts filled in: "cuda" becomes "cuda:sm_90@0" where
/// that is this machine's GPU. An error if there is none.
llvm::Expected<std::string> resolveTarget(llvm::StringRef text,
                                          const CudaLibraries &libraries);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_DEVICE_H
