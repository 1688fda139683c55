//===- CudaDriver.h - The CUDA driver's interface ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Declared by hand from the CUDA Driver API reference, so that neither a
// toolkit nor a GPU is needed to build. Where CUDA's header maps a name to a
// later version of the function (cuMemAlloc to cuMemAlloc_v2), the later name
// stands here, because that is what the library exports.
//
// Every type and number was compared with cuda.h of CUDA 12.9 and 13.5 by
// scripts/check-cuda-headers.sh: run it again after a change.
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_LIB_RUNTIME_DEVICE_CUDADRIVER_H
#define DIFFATTN_LIB_RUNTIME_DEVICE_CUDADRIVER_H

#include "../Support/DynamicLibrary.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace diffattn_rt::cuda {

using Result = int;
using Device = int;
using Context = struct ContextTag *;
using Stream = struct StreamTag *;
using Event = struct EventTag *;
using Graph = struct GraphTag *;
using GraphExec = struct GraphExecTag *;
using Module = struct ModuleTag *;
using Function = struct FunctionTag *;
using Pointer = unsigned long long; // CUdeviceptr

enum : Result {
  kSuccess = 0,
  kOutOfMemory = 2,
  kNoDevice = 100,
};

enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerBlockOptin = 97,
};

constexpr int kFunctionMaxDynamicShared = 8;
constexpr unsigned kStreamNonBlocking = 1;
constexpr int kCaptureThreadLocal = 1;

/// CUtensorMap, whose contents are private to the driver and the device.
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};
enum TensorMapDataType : int { kTensorFloat16 = 6, kTensorBfloat16 = 9 };
enum TensorMapInterleave : int { kInterleaveNone = 0 };
enum TensorMapSwizzle : int { kSwizzle128B = 3 };
enum TensorMapPromotion : int { kPromotion128B = 2 };
enum TensorMapFill : int { kFillZeros = 0 };

/// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  alignas(8) int value[16];
};
constexpr int kLaunchProgrammaticSerialization = 6;
struct LaunchConfig {
  unsigned gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes;
  Stream stream;
  LaunchAttribute *attributes;
  unsigned numAttributes;
};

enum JitOption : int { kJitErrorLog = 5, kJitErrorLogBytes = 6 };

/// Name in the library, type.
#define DIFFATTN_CUDA_DRIVER_FUNCTIONS(X)                                      \
  X(cuInit, Result (*)(unsigned))                                              \
  X(cuDriverGetVersion, Result (*)(int *))                                     \
  X(cuGetErrorName, Result (*)(Result, const char **))                         \
  X(cuGetErrorString, Result (*)(Result, const char **))                       \
  X(cuDeviceGetCount, Result (*)(int *))                                       \
  X(cuDeviceGet, Result (*)(Device *, int))                                    \
  X(cuDeviceGetName, Result (*)(char *, int, Device))                          \
  X(cuDeviceGetAttribute, Result (*)(int *, int, Device))                      \
  X(cuDeviceTotalMem_v2, Result (*)(size_t *, Device))                         \
  X(cuDevicePrimaryCtxRetain, Result (*)(Context *, Device))                   \
  X(cuDevicePrimaryCtxRelease_v2, Result (*)(Device))                          \
  X(cuCtxPushCurrent_v2, Result (*)(Context))                                  \
  X(cuCtxPopCurrent_v2, Result (*)(Context *))                                 \
  X(cuCtxSynchronize, Result (*)())                                            \
  X(cuMemAlloc_v2, Result (*)(Pointer *, size_t))                              \
  X(cuMemFree_v2, Result (*)(Pointer))                                         \
  X(cuMemHostAlloc, Result (*)(void **, size_t, unsigned))                     \
  X(cuMemFreeHost, Result (*)(void *))                                         \
  X(cuMemcpyHtoDAsync_v2, Result (*)(Pointer, const void *, size_t, Stream))   \
  X(cuMemcpyDtoHAsync_v2, Result (*)(void *, Pointer, size_t, Stream))         \
  X(cuMemcpyDtoDAsync_v2, Result (*)(Pointer, Pointer, size_t, Stream))        \
  X(cuMemsetD8Async, Result (*)(Pointer, unsigned char, size_t, Stream))       \
  X(cuStreamCreate, Result (*)(Stream *, unsigned))                            \
  X(cuStreamDestroy_v2, Result (*)(Stream))                                    \
  X(cuStreamSynchronize, Result (*)(Stream))                                   \
  X(cuStreamWaitEvent, Result (*)(Stream, Event, unsigned))                    \
  X(cuStreamBeginCapture_v2, Result (*)(Stream, int))                          \
  X(cuStreamEndCapture, Result (*)(Stream, Graph *))                           \
  X(cuEventCreate, Result (*)(Event *, unsigned))                              \
  X(cuEventDestroy_v2, Result (*)(Event))                                      \
  X(cuEventRecord, Result (*)(Event, Stream))                                  \
  X(cuEventSynchronize, Result (*)(Event))                                     \
  X(cuEventElapsedTime, Result (*)(float *, Event, Event))                     \
  X(cuGraphInstantiateWithFlags,                                               \
    Result (*)(GraphExec *, Graph, unsigned long long))                        \
  X(cuGraphDestroy, Result (*)(Graph))                                         \
  X(cuGraphLaunch, Result (*)(GraphExec, Stream))                              \
  X(cuGraphExecDestroy, Result (*)(GraphExec))                                 \
  X(cuModuleLoadDataEx,                                                        \
    Result (*)(Module *, const void *, unsigned, int *, void **))              \
  X(cuModuleUnload, Result (*)(Module))                                        \
  X(cuModuleGetFunction, Result (*)(Function *, Module, const char *))         \
  X(cuFuncSetAttribute, Result (*)(Function, int, int))                        \
  X(cuLaunchKernelEx,                                                          \
    Result (*)(const LaunchConfig *, Function, void **, void **))              \
  X(cuTensorMapEncodeTiled,                                                    \
    Result (*)(TensorMap *, TensorMapDataType, uint32_t, void *,               \
               const uint64_t *, const uint64_t *, const uint32_t *,           \
               const uint32_t *, TensorMapInterleave, TensorMapSwizzle,        \
               TensorMapPromotion, TensorMapFill))

struct Driver {
  DynamicLibrary library;
#define DIFFATTN_CUDA_MEMBER(name, ...)                                        \
  std::decay_t<__VA_ARGS__> name = nullptr;
  DIFFATTN_CUDA_DRIVER_FUNCTIONS(DIFFATTN_CUDA_MEMBER)
#undef DIFFATTN_CUDA_MEMBER

  /// Opens the library, at `path` if it is not empty. On failure `error` has
  /// the reason, with every path that was tried.
  bool open(const std::string &path, std::string &error);

  /// The name and text of a result: "CUDA_ERROR_X (text)".
  std::string describe(Result result) const;
};

} // namespace diffattn_rt::cuda

#endif // DIFFATTN_LIB_RUNTIME_DEVICE_CUDADRIVER_H
