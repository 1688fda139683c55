//===- GpuSchedule.h - how a GPU attention kernel is cut --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_SCHEDULE_GPUSCHEDULE_H
#define DIFFATTN_SCHEDULE_GPUSCHEDULE_H

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Target/GpuTarget.h"

namespace mlir::diffattn {

/// What the choice of a GPU kernel may depend on. `queries` may be
/// `ShapedType::kDynamic`.
struct GpuAttentionShape {
  Type elementType;
  int64_t headDim, valueDim;
  int64_t queries = ShapedType::kDynamic;
  /// Signal heads that share their heads of K1, K2 and V, or as many of them as
  /// one block of decode takes.
  int64_t group = 1;
  /// Bias, boolean mask, softcap or element-wise copies: they need registers
  /// beside the tiles.
  bool needsRegisters = false;
  /// K2 is K1, and takes no memory of its own.
  bool sharedKeys = false;
};

/// A row of the table: a schedule, and what ptxas 13.0 makes of it for bf16
/// with the default features (the most of sm_80, sm_86, sm_89 and sm_90).
struct GpuScheduleRow {
  int64_t headDim, valueDim;
  GpuPlacement placement;
  int64_t warps, rowTiles, keys, stages;
  bool qInRegisters;
  int64_t registers;
  /// Whether it stays without a spill with a bias, a softcap or element-wise
  /// copies.
  bool withFeatures;
};

/// Schedules that were assembled without a spill.
ArrayRef<GpuScheduleRow> getGpuScheduleTable();

/// The cost model: cycles of an SM for 16 queries x 16 keys of both maps, with
/// as many blocks on it as fit. Infinite if none fits.
double estimateGpuCycles(const GpuScheduleRow &row, const GpuTarget &target,
                         bool sharedKeys);

/// Shared memory of a block.
int64_t getGpuSharedBytes(const GpuScheduleRow &row, bool sharedKeys);

/// The kernel for `shape` on `target`: from the table where it has the widths,
/// else the general one. Nothing, and a reason, if there is none.
GpuScheduleAttr selectGpuSchedule(MLIRContext *context,
                                  const GpuAttentionShape &shape,
                                  const GpuTarget &target, std::string &reason);

} // namespace mlir::diffattn

#endif // DIFFATTN_SCHEDULE_GPUSCHEDULE_H
