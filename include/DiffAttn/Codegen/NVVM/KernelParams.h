//===- KernelParams.h - parameters of attention kernels ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_NVVM_KERNELPARAMS_H
#define DIFFATTN_CODEGEN_NVVM_KERNELPARAMS_H

#include "DiffAttn/IR/MaskBuilder.h"

#include "mlir/IR/Types.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>

namespace mlir::diffattn {
struct GpuKernelSpec;

/// Parameters of attention kernels: the rows of KernelParams.def, which has
/// their meanings.
enum class GpuParam : unsigned {
#define GPU_PARAM(Name, text, Type, reader) Name,
#include "DiffAttn/Codegen/NVVM/KernelParams.def"
  Count
};

/// Types of kernel parameters, in the order in which a kernel has them. A
/// tensor map is 128 bytes, passed by value.
enum class GpuParamType { TensorMap, Pointer, I64, I32, F32 };

/// Size and alignment of a tensor map, in bytes: 64 is enough for the copy
/// engine, CUDA's header declares 128 from 13.0 on.
constexpr int64_t kTensorMapBytes = 128, kTensorMapAlignment = 128;

/// Gradients that kernels store, of these operands.
enum class GpuGradient : unsigned { Q1, K1, Q2, K2, V };
constexpr size_t kGpuGradients = 5;

struct GpuParamRow {
  llvm::StringLiteral name;
  GpuParamType type;
  /// Whether a kernel reads it, and so has it.
  bool (*isReadBy)(const GpuKernelSpec &spec);
};

const GpuParamRow &getGpuParam(GpuParam param);

/// !llvm.ptr, of a tensor map, !llvm.ptr<1>, i64, i32 or f32.
Type getGpuParamType(MLIRContext *context, GpuParam param);

/// The stride of `tensor`, a row of GPU_TENSOR, along 0: batch, 1: head, 2:
/// length, 3: width.
GpuParam getGpuStride(GpuParam tensor, unsigned axis);

/// The destination of `gradient`, a row of GPU_TENSOR, and back.
GpuParam getGpuParam(GpuGradient gradient);
std::optional<GpuGradient> findGpuGradient(GpuParam tensor);

/// An operand of which masks load elements: its pointer, and its strides along
/// the axes that it has, which follow it in the table in this order.
struct GpuMaskParams {
  GpuParam pointer;
  std::optional<GpuParam> batch, head, query, key;
};
/// None for those that limit positions, which every kernel has.
std::optional<GpuMaskParams> getGpuMaskParams(MaskOperand operand);

/// The parameters of a kernel, in the order of its arguments. Kernels of equal
/// names have the same ones.
SmallVector<GpuParam> getGpuParams(const GpuKernelSpec &spec);

} // namespace mlir::diffattn

#endif // DIFFATTN_CODEGEN_NVVM_KERNELPARAMS_H
