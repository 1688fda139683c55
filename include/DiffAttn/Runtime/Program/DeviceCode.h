//===- DeviceCode.h - kernels and constants for a device --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_DEVICECODE_H
#define DIFFATTN_RUNTIME_PROGRAM_DEVICECODE_H

#include <cstdint>
#include <string>
#include <vector>

namespace diffattn_rt {

/// Kernels and constants of a program that runs on a device. Its host code
/// names them by their indices.
struct DeviceCode {
  struct Kernel {
    std::string name;
    std::string hash;       // SHA-256 of its LLVM IR
    std::string parameters; // as in diffattn_kernel
    bool startsEarly = false;
  };
  struct Image {
    std::string chip;
    int32_t format = 0; // diffattn_image_format
    int32_t driver = 0; // oldest CUDA version of a driver that loads it
    std::string data;
  };
  std::vector<Kernel> kernels;
  std::vector<Image> images;
  /// Contents of the slots behind those of the weights.
  std::vector<std::string> constants;
  /// Whether host code reads and writes buffers too, which only the simulator
  /// allows.
  bool hostAccess = false;
};

/// The parts of `code` that its host code relies on, as text: its kernels in
/// their order, and the sizes of its constants.
std::string getContractText(const DeviceCode &code);

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_DEVICECODE_H
