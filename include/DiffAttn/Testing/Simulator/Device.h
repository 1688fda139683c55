//===- Device.h - a GPU that is simulated -----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TESTING_SIMULATOR_DEVICE_H
#define DIFFATTN_TESTING_SIMULATOR_DEVICE_H

#include "DiffAttn/Runtime/ABI/Device.h"

#include "llvm/ADT/StringRef.h"

#include <string>

namespace mlir::diffattn::sim {

/// The runtime's table of a device over the simulator, which the caller ends
/// with its function `close`. Its memory is not the host's: to touch it faults,
/// unless `hostAccess` is set, for programs whose host code computes too. Null,
/// with a message, if there is no such chip.
diffattn_device *createDevice(llvm::StringRef chip, bool hostAccess,
                              std::string &message);

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_TESTING_SIMULATOR_DEVICE_H
