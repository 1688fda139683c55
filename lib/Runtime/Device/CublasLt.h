//===- CublasLt.h - Matrix products by cuBLASLt -----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Declared by hand from the cuBLAS documentation, as CudaDriver.h is, and
// compared in the same way with cublasLt.h of cuBLAS 12.9.3 and 13.10.0. The
// libraries of these two versions export every function of the list, and take
// every attribute with the size that it is set with here; neither needs a GPU.
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_LIB_RUNTIME_DEVICE_CUBLASLT_H
#define DIFFATTN_LIB_RUNTIME_DEVICE_CUBLASLT_H

#include "../Support/DynamicLibrary.h"

#include "DiffAttn/Runtime/ABI/Device.h"

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <type_traits>

namespace diffattn_rt::cuda {

using Stream = struct StreamTag *; // CUstream, and the runtime's cudaStream_t

namespace lt {
using Status = int;
using Handle = struct HandleTag *;
using MatmulDesc = struct MatmulDescTag *;
using Layout = struct LayoutTag *;
using Preference = struct PreferenceTag *;

struct Algo {
  uint64_t data[8];
};
struct HeuristicResult {
  Algo algo;
  size_t workspaceSize;
  Status state;
  float wavesCount;
  int reserved[4];
};

enum DataType : int { kR32F = 0, kR64F = 1, kR16F = 2, kR16BF = 14 };
/// 32F is full f32; its fast relatives, 74 to 77, are not for us.
enum ComputeType : int { kCompute32F = 68, kCompute64F = 70 };
enum MatmulAttribute : int { kTransA = 3, kTransB = 4 };
enum LayoutAttribute : int { kBatchCount = 5, kStridedBatchOffset = 6 };
enum PreferenceAttribute : int {
  kMaxWorkspaceBytes = 1,
  kReductionSchemeMask = 3,
  kMinAlignmentA = 5,
  kMinAlignmentB = 6,
  kMinAlignmentC = 7,
  kMinAlignmentD = 8,
};
constexpr uint32_t kReductionInComputeType = 2;
constexpr int32_t kOpNone = 0, kOpTranspose = 1;

#define DIFFATTN_CUBLASLT_FUNCTIONS(X)                                         \
  X(cublasLtGetVersion, size_t (*)())                                          \
  X(cublasLtGetStatusString, const char *(*)(Status))                          \
  X(cublasLtCreate, Status (*)(Handle *))                                      \
  X(cublasLtDestroy, Status (*)(Handle))                                       \
  X(cublasLtMatmulDescCreate, Status (*)(MatmulDesc *, int, int))              \
  X(cublasLtMatmulDescDestroy, Status (*)(MatmulDesc))                         \
  X(cublasLtMatmulDescSetAttribute,                                            \
    Status (*)(MatmulDesc, int, const void *, size_t))                         \
  X(cublasLtMatrixLayoutCreate,                                                \
    Status (*)(Layout *, int, uint64_t, uint64_t, int64_t))                    \
  X(cublasLtMatrixLayoutDestroy, Status (*)(Layout))                           \
  X(cublasLtMatrixLayoutSetAttribute,                                          \
    Status (*)(Layout, int, const void *, size_t))                             \
  X(cublasLtMatmulPreferenceCreate, Status (*)(Preference *))                  \
  X(cublasLtMatmulPreferenceDestroy, Status (*)(Preference))                   \
  X(cublasLtMatmulPreferenceSetAttribute,                                      \
    Status (*)(Preference, int, const void *, size_t))                         \
  X(cublasLtMatmulAlgoGetHeuristic,                                            \
    Status (*)(Handle, MatmulDesc, Layout, Layout, Layout, Layout, Preference, \
               int, HeuristicResult *, int *))                                 \
  X(cublasLtMatmul,                                                            \
    Status (*)(Handle, MatmulDesc, const void *, const void *, Layout,         \
               const void *, Layout, const void *, const void *, Layout,       \
               void *, Layout, const Algo *, void *, size_t, Stream))

struct Functions {
#define DIFFATTN_CUBLASLT_MEMBER(function, ...)                                \
  std::decay_t<__VA_ARGS__> function = nullptr;
  DIFFATTN_CUBLASLT_FUNCTIONS(DIFFATTN_CUBLASLT_MEMBER)
#undef DIFFATTN_CUBLASLT_MEMBER
};
} // namespace lt

class CublasLt : private lt::Functions {
public:
  /// Workspace that a stream keeps for products. NVIDIA advises 32 MiB for
  /// Hopper; smaller ones leave algorithms out.
  static constexpr size_t kWorkspaceBytes = 32 << 20;

  /// Opens the library and makes a handle in the current context. Null on
  /// failure; `error` then names every path that was tried.
  static std::unique_ptr<CublasLt>
  open(const std::string &path, const std::vector<std::string> &packageFolders,
       std::string &error);
  ~CublasLt();

  /// Path and version.
  const std::string &getName() const { return name; }

  /// Enqueues a product without empty dimensions. `workspace` has
  /// kWorkspaceBytes. On failure `error` has the library's message.
  bool multiply(const diffattn_product &product, Stream stream,
                uint64_t workspace, std::string &error);

private:
  /// Types, sizes, strides and alignment, on which the algorithm depends.
  using Key = std::tuple<int32_t, int32_t, int32_t, int32_t, int64_t, int64_t,
                         int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                         int64_t, int64_t, bool, uint64_t>;
  /// Descriptors and the algorithm for one key.
  struct Plan;

  CublasLt() = default;
  Plan *getPlan(const diffattn_product &product, std::string &error);
  bool makePlan(const diffattn_product &product, Plan &plan,
                std::string &error);
  lt::Status chooseAlgorithm(const diffattn_product &product, Plan &plan,
                             int &numAlgorithms);
  std::string describe(const diffattn_product &product,
                       lt::Status status) const;

  DynamicLibrary library;
  std::string name;
  lt::Handle handle = nullptr;
  std::mutex mutex;
  std::map<Key, std::unique_ptr<Plan>> plans;
};

} // namespace diffattn_rt::cuda

#endif // DIFFATTN_LIB_RUNTIME_DEVICE_CUBLASLT_H
