//===- DeviceCode.cpp - kernels and constants for a device ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/DeviceCode.h"

std::string diffattn_rt::getContractText(const DeviceCode &code) {
  std::string text;
  for (const DeviceCode::Kernel &kernel : code.kernels)
    text += "kernel " + kernel.name + " " + kernel.hash + " " +
            kernel.parameters + "\n";
  for (const std::string &constant : code.constants)
    text += "constant " + std::to_string(constant.size()) + "\n";
  return text;
}
