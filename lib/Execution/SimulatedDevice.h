//===- SimulatedDevice.h - a GPU that is simulated --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_EXECUTION_SIMULATEDDEVICE_H
#define DIFFATTN_LIB_EXECUTION_SIMULATEDDEVICE_H

#include "DiffAttn/Execution/Error.h"
#include "DiffAttn/Simulator/Simulator.h"

#include "llvm/IR/Module.h"

#include <map>
#include <mutex>

namespace mlir::diffattn {

/// Runs the launches of a program on the simulator, on memory of the host.
class SimulatedDevice {
public:
  /// `kernels` is LLVM bitcode.
  static llvm::Expected<std::unique_ptr<SimulatedDevice>>
  create(llvm::StringRef kernels, llvm::StringRef chip);

  /// What compiled host code must be linked with beside `makeAllocator`.
  std::vector<std::pair<llvm::StringRef, void *>> getSymbols();
  /// An allocator in the place of the runtime's, which tells the device of what
  /// it gives.
  static std::unique_ptr<llvm::Module>
  makeAllocator(llvm::LLVMContext &context, const llvm::DataLayout &layout);

  /// Memory that pointers may point into.
  void forgetMemory();
  void addMemory(void *data, int64_t bytes, std::string name);

private:
  struct Range {
    int64_t bytes;
    std::string name;
  };
  struct Registered;

  SimulatedDevice() = default;
  /// Ends the call with message number `status`, from 1, unless that is 0.
  static void checkEntry(const int32_t *status, const char *messages);
  static void launchEntry(SimulatedDevice *device, const char *kernel,
                          const uint32_t *shape, const uint64_t *arguments);
  static void *allocateEntry(SimulatedDevice *device, int64_t bytes);
  /// Returns what went wrong, or "".
  std::string launch(llvm::StringRef kernel, const uint32_t *shape,
                     const uint64_t *arguments);

  std::unique_ptr<sim::Simulator> simulator;
  std::mutex mutex;
  std::map<char *, Range> ranges;
  std::string failure;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_EXECUTION_SIMULATEDDEVICE_H
