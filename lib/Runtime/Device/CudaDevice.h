//===- CudaDevice.h - A device over the CUDA driver -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_LIB_RUNTIME_DEVICE_CUDADEVICE_H
#define DIFFATTN_LIB_RUNTIME_DEVICE_CUDADEVICE_H

#include "CublasLt.h"
#include "CudaDriver.h"

#include "DiffAttn/Runtime/ABI/Device.h"

#include <memory>
#include <mutex>

namespace diffattn_rt::cuda {

/// Keeps `text` as this thread's message and returns `status`.
int32_t fail(int32_t status, std::string text);

/// The object behind a diffattn_stream.
struct StreamState {
  Stream native = nullptr;
  bool owned = false;
  bool capturing = false;
  /// cuBLASLt's workspace, one for each stream: products of two streams may run
  /// at once.
  Pointer workspace = 0;
};

struct KernelState {
  std::string name;
  Function function = nullptr;
  /// Kinds of the parameters, as in diffattn_kernel.
  std::string parameters;
  bool startsEarly = false;
  /// The limit of dynamic shared memory that the driver has been given.
  uint32_t sharedLimit = 48 << 10;
};

struct ModuleState {
  Module native = nullptr;
  std::vector<KernelState> kernels;
};

class CudaDevice final : public diffattn_device {
public:
  /// Opens a device. Null on failure, with the status and message kept.
  static CudaDevice *open(const diffattn_cuda_options &options,
                          int32_t &status);

private:
  CudaDevice() = default;
  void fillTable();
  int32_t openDriver(const diffattn_cuda_options &options);
  int32_t getProperties(diffattn_device_properties *out);

  int32_t loadModule(const diffattn_image *images, int32_t numImages,
                     const diffattn_kernel *kernels, int32_t numKernels,
                     diffattn_module **out);
  int32_t loadImage(const diffattn_image &image, Module &out,
                    std::string &reason);
  int32_t launchKernel(ModuleState &module, int32_t kernel,
                       const diffattn_launch_shape &shape, Stream stream,
                       const uint64_t *arguments);
  int32_t multiply(StreamState &stream, const diffattn_product &product);
  int32_t encode(const diffattn_tensor &tensor, void *map);

  /// Makes the device's context the thread's own while it lives.
  class Current {
  public:
    explicit Current(CudaDevice &device)
        : driver(device.driver),
          result(driver.cuCtxPushCurrent_v2(device.context)) {}
    ~Current() {
      Context popped;
      if (result == kSuccess)
        driver.cuCtxPopCurrent_v2(&popped);
    }
    Driver &driver;
    Result result;
  };

  /// Calls `call` with the context current; a failure's message begins with
  /// `expected`.
  template <typename Call>
  int32_t run(const char *expected, const Call &call) {
    Current current(*this);
    Result result = current.result;
    if (result == kSuccess)
      result = call();
    return result == kSuccess ? int32_t(DIFFATTN_DEVICE_OK)
                              : failed(expected, result);
  }
  int32_t failed(const std::string &expected, Result result);

  static CudaDevice &self(diffattn_device *device) {
    return *static_cast<CudaDevice *>(device);
  }
  StreamState &stateOf(diffattn_stream *stream) {
    return stream ? *reinterpret_cast<StreamState *>(stream) : defaultStream;
  }

  Driver driver;
  Device device = 0;
  Context context = nullptr;
  diffattn_device_properties facts = {};
  int capability = 0; // 90 for 9.0
  StreamState defaultStream;

  std::mutex gemmMutex;
  std::string gemmLibrary;
  std::vector<std::string> packageFolders;
  std::unique_ptr<CublasLt> gemmEngine;
};

} // namespace diffattn_rt::cuda

#endif // DIFFATTN_LIB_RUNTIME_DEVICE_CUDADEVICE_H
