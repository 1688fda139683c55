//===- CpuSchedule.h - how a CPU attention kernel is cut --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_SCHEDULE_CPUSCHEDULE_H
#define DIFFATTN_SCHEDULE_CPUSCHEDULE_H

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Target/CpuTarget.h"

namespace mlir::diffattn {

/// A register block: `height` scalars are broadcast against `vectors` vectors,
/// and the loop over the contracted axis takes `unroll` steps at a time.
struct RegisterTile {
  int64_t height, vectors, unroll;
};

/// All numbers of a CPU attention kernel. It takes `rows` queries at a
/// time, as lanes of vectors, against all keys in blocks of `kvBlockSize`;
/// scores of both maps stay in a thread's scratch until their maxima are known,
/// then both maps are combined and multiplied with V once.
struct CpuSchedule {
  /// f32 elements in a vector.
  int64_t lanes = 4;
  int64_t rows = 48;
  /// keys x vectors of rows, and rows x vectors of value columns.
  RegisterTile scores{4, 3, 4}, product{6, 2, 4};
  int64_t kvBlockSize = 128;
  /// With more keys than this the scratch would be too large: each KV block is
  /// then multiplied with V for both maps apart and merged as an online state.
  int64_t twoPassKeys = 16384;
  /// With at most this many queries, keys are split over threads in blocks of
  /// `splitKeys`.
  int64_t splitRows = 8, splitKeys = 512;
  /// Multiply bf16 pairs as they are; else 16-bit types are widened to f32 as
  /// they are loaded.
  bool bf16Dot = false;
};

/// What a schedule may depend on. Sizes that are not known are
/// `ShapedType::kDynamic`.
struct AttentionShape {
  Type elementType;
  int64_t queries = ShapedType::kDynamic, keys = ShapedType::kDynamic;
  int64_t headDim = ShapedType::kDynamic, valueDim = ShapedType::kDynamic;
};

/// The kernel for `shape` on `target`.
CpuSchedule selectCpuSchedule(const AttentionShape &shape,
                              const CpuTarget &target);

/// How the products of a kernel are multiplied, and their tiles on one kind of
/// CPU. lib/Codegen/CPU has an emitter for each kind of product.
struct CpuMicroKernel {
  llvm::StringLiteral name;
  /// What the target must have: a feature, or "", and so many registers.
  llvm::StringLiteral feature;
  int64_t registers;
  /// Multiply bf16 pairs as they are: operands must be bf16. Else f32, to which
  /// any type is widened.
  bool bf16Dot;
  RegisterTile scores, product;
  int64_t kvBlockSize;

  bool takes(Type elementType, const CpuTarget &target) const;
};

/// Best first; the last one takes every type on every target.
ArrayRef<CpuMicroKernel> getCpuMicroKernels();

/// To and from the attribute that shows the choice in the IR.
ScheduleAttr getScheduleAttr(MLIRContext *context, const CpuSchedule &schedule,
                             const CpuTarget &target);
CpuSchedule getCpuSchedule(ScheduleAttr attr);

/// The attribute that leaves an op to the decomposition into linalg.
ScheduleAttr getLinalgScheduleAttr(MLIRContext *context);

} // namespace mlir::diffattn

#endif // DIFFATTN_SCHEDULE_CPUSCHEDULE_H
