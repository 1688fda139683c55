//===- cuda_headers.cpp - Our declarations against NVIDIA's ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiled by scripts/check-cuda-headers.sh alone. A difference is a static
// assertion that names the function, the number or the field.
//
//===----------------------------------------------------------------------===//
#include <cublasLt.h>
#include <cuda.h>

#include "CublasLt.h"
#include "CudaDriver.h"

#include <cstdio>

// A type with what we name otherwise folded: enums are int, and a pointer to
// any struct is a pointer to this one.
struct AnyStruct;

template <typename T, typename = void>
struct Folded {
  using type = T;
};
template <typename T>
struct Folded<T, std::enable_if_t<std::is_enum_v<T>>> {
  static_assert(sizeof(T) == sizeof(int));
  using type = int;
};
template <typename T>
struct Folded<const T> {
  using type = const typename Folded<T>::type;
};
template <typename T>
struct Folded<T, std::enable_if_t<std::is_class_v<T> && !std::is_const_v<T>>> {
  using type = AnyStruct;
};
template <typename T>
struct Folded<T *> {
  using type = typename Folded<T>::type *;
};
template <typename R, typename... A>
struct Folded<R (*)(A...)> {
  using type = typename Folded<R>::type (*)(typename Folded<A>::type...);
};

#define SAME_FUNCTION(name, ...)                                               \
  static_assert(std::is_same_v<                                                \
                    Folded<std::decay_t<__VA_ARGS__>>::type,                   \
                    Folded<std::remove_reference_t<decltype(&::name)>>::type>, \
                #name);
#define SAME(ours, theirs)                                                     \
  static_assert((long long)(ours) == (long long)(theirs), #theirs);
#define SAME_FIELD(name)                                                       \
  static_assert(offsetof(HeuristicResult, name) ==                             \
                    offsetof(cublasLtMatmulHeuristicResult_t, name),           \
                #name);

namespace driver {
using namespace diffattn_rt::cuda;
DIFFATTN_CUDA_DRIVER_FUNCTIONS(SAME_FUNCTION)
static_assert(std::is_same_v<Pointer, CUdeviceptr>);
SAME(kSuccess, CUDA_SUCCESS)
SAME(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY)
SAME(kNoDevice, CUDA_ERROR_NO_DEVICE)
SAME(kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
SAME(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
SAME(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
SAME(kMaxSharedMemoryPerBlockOptin,
     CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
SAME(kFunctionMaxDynamicShared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
SAME(kStreamNonBlocking, CU_STREAM_NON_BLOCKING)
SAME(kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
SAME(kLaunchProgrammaticSerialization,
     CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
SAME(sizeof(LaunchAttribute), sizeof(CUlaunchAttribute))
SAME(offsetof(LaunchAttribute, value), offsetof(CUlaunchAttribute, value))
SAME(sizeof(LaunchConfig), sizeof(CUlaunchConfig))
SAME(offsetof(LaunchConfig, sharedBytes),
     offsetof(CUlaunchConfig, sharedMemBytes))
SAME(offsetof(LaunchConfig, stream), offsetof(CUlaunchConfig, hStream))
SAME(offsetof(LaunchConfig, attributes), offsetof(CUlaunchConfig, attrs))
SAME(offsetof(LaunchConfig, numAttributes), offsetof(CUlaunchConfig, numAttrs))
SAME(sizeof(TensorMap), sizeof(CUtensorMap))
// 64 in CUDA 12, and 128 from CUDA 13 on.
static_assert(alignof(TensorMap) % alignof(CUtensorMap) == 0, "CUtensorMap");
SAME(kTensorFloat16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16)
SAME(kTensorBfloat16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
SAME(kInterleaveNone, CU_TENSOR_MAP_INTERLEAVE_NONE)
SAME(kSwizzle128B, CU_TENSOR_MAP_SWIZZLE_128B)
SAME(kPromotion128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B)
SAME(kFillZeros, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
SAME(kJitErrorLog, CU_JIT_ERROR_LOG_BUFFER)
SAME(kJitErrorLogBytes, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
} // namespace driver

namespace products {
using diffattn_rt::cuda::Stream;
using namespace diffattn_rt::cuda::lt;
DIFFATTN_CUBLASLT_FUNCTIONS(SAME_FUNCTION)
SAME(kR32F, CUDA_R_32F)
SAME(kR64F, CUDA_R_64F)
SAME(kR16F, CUDA_R_16F)
SAME(kR16BF, CUDA_R_16BF)
SAME(kCompute32F, CUBLAS_COMPUTE_32F)
SAME(kCompute64F, CUBLAS_COMPUTE_64F)
SAME(kTransA, CUBLASLT_MATMUL_DESC_TRANSA)
SAME(kTransB, CUBLASLT_MATMUL_DESC_TRANSB)
SAME(kBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
SAME(kStridedBatchOffset, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
SAME(kMaxWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
SAME(kReductionSchemeMask, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
SAME(kMinAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
SAME(kMinAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)
SAME(kMinAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)
SAME(kMinAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
SAME(kReductionInComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
SAME(kOpNone, CUBLAS_OP_N)
SAME(kOpTranspose, CUBLAS_OP_T)
SAME(sizeof(Algo), sizeof(cublasLtMatmulAlgo_t))
SAME(sizeof(HeuristicResult), sizeof(cublasLtMatmulHeuristicResult_t))
SAME_FIELD(algo)
SAME_FIELD(workspaceSize)
SAME_FIELD(state)
SAME_FIELD(wavesCount)
SAME_FIELD(reserved)
} // namespace products

int main() {
  printf("the declarations agree with CUDA %d.%d and cuBLAS %d.%d.%d\n",
         CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, CUBLAS_VER_MAJOR,
         CUBLAS_VER_MINOR, CUBLAS_VER_PATCH);
}
