//===- GpuKernel.h - kernels for one attention op ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_NVVM_GPUKERNEL_H
#define DIFFATTN_CODEGEN_NVVM_GPUKERNEL_H

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

namespace mlir::diffattn {

/// The arguments of every attention kernel, in order: pointers to global
/// memory, strides in elements (i64), sizes and choices (i32), numbers (f32).
/// What a kernel does not use is ignored.
enum class GpuParam : unsigned {
  // Pointers. KvLen and QOffset may be null; Workspace is the decode kernel's.
  Q1,
  K1,
  Q2,
  K2,
  V,
  O,
  Lambda,
  Bias,
  NormWeight,
  Gate,
  KvLen,
  QOffset,
  Workspace,
  // Strides of batch, head, length and width.
  Q1B,
  Q1H,
  Q1T,
  Q1W,
  K1B,
  K1H,
  K1T,
  K1W,
  Q2B,
  Q2H,
  Q2T,
  Q2W,
  K2B,
  K2H,
  K2T,
  K2W,
  VB,
  VH,
  VT,
  VW,
  OB,
  OH,
  OT,
  OW,
  GateB,
  GateH,
  GateT,
  GateW,
  LambdaB,
  LambdaT,
  LambdaH,
  BiasB,
  BiasH,
  BiasQ,
  BiasK,
  NormWeightW,
  KvLenB,
  QOffsetB,
  // Key j is seen from position p if p - LeftLimit <= j <= p + RightLimit; -1
  // stands for no limit.
  LeftLimit,
  RightLimit,
  // Queries and keys in memory.
  Queries,
  Keys,
  // Signal heads to one noise head, to one head of K1 and of V; noise heads to
  // one head of K2;
  // signal heads to one lambda.
  SignalPerNoise,
  SignalPerKey1,
  SignalPerValue,
  NoisePerKey2,
  SignalPerLambda,
  // The limits, but from 0 to kGpuUnlimited: what loops over keys use, with
  // positions that AttentionKernel::readPositions moved near.
  WindowLeft,
  WindowRight,
  // Bits of GpuFlag.
  Flags,
  // Decode: signal heads that share K and V, and blocks of keys.
  Group,
  Splits,
  // What scores are multiplied by (also by log2 e where the kernel takes no
  // bias or softcap), the
  // growth of the maximum, in the same unit as scores before the exponential,
  // that makes the
  // kernel rescale; what turns that unit into powers of two; cap; epilogue.
  ScoreScale,
  RescaleMargin,
  ExponentScale,
  Softcap,
  NormEps,
  OutScale,
  Count
};

enum GpuFlag : unsigned {
  GpuFlagNorm = 1,
  GpuFlagEpsOutside = 2,
  GpuFlagLambdaSigmoid = 4,
  /// Neighbours along the keys of the bias lie side by side, and pairs that
  /// begin at an even key are aligned to their size.
  GpuFlagBiasPairs = 8
};

/// Kernels count queries and keys in i32: lengths are below kGpuMaxLength, and
/// no key is farther than kGpuUnlimited from a position near the keys.
constexpr int64_t kGpuMaxLength = int64_t(1) << 28;
constexpr int64_t kGpuUnlimited = 2 * kGpuMaxLength;

StringRef getGpuParamName(GpuParam param);
/// !llvm.ptr<1>, i64, i32 or f32.
Type getGpuParamType(MLIRContext *context, GpuParam param);

enum class GpuKernelKind { Forward, Decode, Merge };

/// What the code of a kernel depends on; everything else is an argument.
struct GpuKernelSpec {
  GpuKernelKind kind = GpuKernelKind::Forward;
  Type elementType;
  /// Of the result: `elementType`, or f32.
  Type resultType;
  int64_t headDim = 0, valueDim = 0;
  GpuScheduleAttr schedule;
  /// Read Q, K, V and write O element by element: any strides and alignment.
  /// Else 16 bytes are copied at a time, which wants widths, strides and
  /// pointers that are multiples of that.
  bool elementwise = false;
  /// K2 is K1.
  bool sharedKeys = false;
  /// Null if there is none. i1 is a mask.
  Type biasType, normWeightType, gateType;
  bool softcap = false;
  /// Scale scores before the maximum is taken: with a bias, a softcap or a
  /// scale that is not positive, or large.
  bool scaledScores() const {
    return scaleFirst || softcap || (biasType && !biasType.isInteger(1));
  }
  bool scaleFirst = false;

  /// A name that tells all of this, so equal names are equal kernels.
  std::string getName() const;
  /// Threads of a block.
  int64_t getThreads() const;
  /// Query rows of a block.
  int64_t getRows() const;
  /// Dynamic shared memory of a block.
  int64_t getSharedBytes() const;
  /// Widths of the tiles, padded to what the matrix instructions take.
  int64_t getPaddedHeadDim() const;
  int64_t getPaddedValueDim() const;
};

/// The kernel in `module`, made if it is not there yet. The module holds the
/// declaration of dynamic shared memory, `diffattn_shared`.
LLVM::LLVMFuncOp getOrEmitGpuKernel(gpu::GPUModuleOp module,
                                    const GpuKernelSpec &spec);

} // namespace mlir::diffattn

#endif // DIFFATTN_CODEGEN_NVVM_GPUKERNEL_H
