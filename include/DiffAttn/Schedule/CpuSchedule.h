//===- CpuSchedule.h - choice of CPU schedules ------------------*- C++ -*-===//
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

/// Properties of an attention that its schedule may depend on. Unknown sizes
/// are `ShapedType::kDynamic`.
struct AttentionShape {
  Type elementType;
  int64_t queries = ShapedType::kDynamic, keys = ShapedType::kDynamic;
  int64_t headDim = ShapedType::kDynamic, valueDim = ShapedType::kDynamic;
  float scale = 1.0f;
  /// Maps: two, or one.
  int64_t maps = 2;
  /// Signal heads that share a head of keys or values.
  int64_t group = 1;
};

/// The kind of a kernel's products, and their tiles on one kind of CPU.
/// lib/Codegen/CPU has an atom for each kind of product.
struct CpuMicroKernel {
  llvm::StringLiteral name;
  /// Requirements on the target: a feature, or "", and a number of vector
  /// registers.
  llvm::StringLiteral feature;
  int64_t registers;
  CpuProduct product;
  RegisterTile qk, pv;
  int64_t kvBlockSize;
  int64_t qBlockSize = 48;
  /// Keys of a block in the kernel of gradients: a multiple of the keys of both
  /// tiles, so that none are left over. 0 where gradients have no such
  /// products.
  int64_t backwardKvBlockSize = 0;
  /// Queries of a block in that kernel. Each block reads and writes the sums of
  /// gradients of all keys: taller ones do it less often, and keep more of the
  /// maps.
  int64_t backwardQBlockSize = 48;

  bool takes(const AttentionShape &shape, const CpuTarget &target) const;
};

/// Best first; the last one takes every shape on every target.
ArrayRef<CpuMicroKernel> getCpuMicroKernels();
const CpuMicroKernel &selectCpuMicroKernel(const AttentionShape &shape,
                                           const CpuTarget &target);

/// The kernel for blocks of queries (CpuPrefillSchedule.cpp), that for few
/// (CpuSplitKVSchedule.cpp), and that for gradients (CpuBackwardSchedule.cpp).
CpuPrefillAttr selectCpuPrefill(const AttentionShape &shape,
                                const CpuTarget &target);
CpuSplitKVAttr selectCpuSplitKV(const AttentionShape &shape,
                                const CpuTarget &target);

CpuBackwardAttr selectCpuBackward(const AttentionShape &shape,
                                  const CpuTarget &target);

/// The most queries for which keys are split over threads. Where the number of
/// queries is not known, there must also be more keys than this: few keys are
/// not worth splitting then, and a short sequence that attends to itself is cut
/// as a long one is, so its rows are the same when it is padded.
constexpr int64_t kCpuSplitKVQueries = 8;

/// The parameters of `size_bounds` that leave out the kernels which a call of
/// so many queries and keys does not take: half of the code. Calls of the other
/// kind are compiled when the first one comes.
std::string getCallSizeBounds(int64_t queries, int64_t keys);

/// The schedules of an op, in the order in which they are tried.
SmallVector<Attribute> selectCpuSchedules(const AttentionShape &shape,
                                          const CpuTarget &target);

} // namespace mlir::diffattn

#endif // DIFFATTN_SCHEDULE_CPUSCHEDULE_H
