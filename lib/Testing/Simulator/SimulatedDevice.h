//===- SimulatedDevice.h - a GPU that is simulated --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_SIMULATEDDEVICE_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_SIMULATEDDEVICE_H

#include "SimulatedMemory.h"

#include "DiffAttn/Runtime/ABI/Device.h"
#include "DiffAttn/Testing/Simulator/Simulator.h"
#include "DiffAttn/Testing/Simulator/TensorMap.h"

#include "llvm/ADT/ArrayRef.h"

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace mlir::diffattn::sim {

/// The runtime's table over the simulator. Work is done when it is given: a
/// stream is a place to record a graph, an event a count of launches.
class SimulatedDevice final : public diffattn_device {
public:
  SimulatedDevice(SimChip chip, bool hostAccess);

private:
  /// Something that was given to a stream; returns a status.
  using Work = std::function<int32_t()>;
  struct Stream {
    bool capturing = false;
    std::thread::id capturer; // the thread that captures it
    std::vector<Work> recorded;
  };
  struct Event {
    bool recorded = false;
    uint64_t launches = 0;
  };
  struct Graph {
    std::vector<Work> work;
  };
  struct Module {
    std::unique_ptr<Simulator> simulator;
    std::vector<std::string> kernels;
  };

  void fillMemory();
  void fillStreams();
  void fillKernels();
  int32_t give(diffattn_stream *stream, Work work);
  /// The stream that this thread captures, or null: another thread's capture
  /// does not concern it, as with the CUDA device.
  Stream *getOwnCapture() const;
  int32_t load(llvm::ArrayRef<diffattn_image> images,
               llvm::ArrayRef<diffattn_kernel> kernels, Module &module);
  /// A word for each parameter; tensor maps by themselves, in their order.
  struct Arguments {
    std::vector<uint64_t> words;
    std::vector<sim::TensorMapHandle> maps;
  };
  int32_t launchKernel(Module &module, int32_t number,
                       const diffattn_launch_shape &shape,
                       const Arguments &arguments);
  int32_t multiply(const diffattn_product &product);
  /// Whether `stream` may be given a copy between the device and `memory`.
  int32_t checkHostMemory(diffattn_stream *stream, const void *memory,
                          int64_t bytes);

  static SimulatedDevice &self(diffattn_device *device) {
    return *static_cast<SimulatedDevice *>(device);
  }

  SimChip chip;
  SimulatedMemory memory;
  std::mutex mutex;
  uint64_t launches = 0;
  std::set<Stream *> capturing;               // streams that are being captured
  std::map<const char *, int64_t> hostMemory; // of `host_allocate`
};

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_SIMULATEDDEVICE_H
