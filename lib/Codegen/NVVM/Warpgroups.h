//===- Warpgroups.h - roles of the warpgroups of a block --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_WARPGROUPS_H
#define DIFFATTN_LIB_CODEGEN_NVVM_WARPGROUPS_H

#include "MatrixAtom.h"
#include "TensorRing.h"

namespace mlir::diffattn::gpucode {

/// Elements that one wgmma instruction contracts.
inline constexpr int64_t kWgmmaDepth = 16;

/// The named barriers of a kernel by warpgroups, but 0: one of both warpgroups
/// that multiply, and for each of these one at which it waits for its turn, and
/// one of its own threads.
struct WgmmaBarriers {
  static constexpr int64_t kReaders = 1, kTurn = 2, kGroup = 4;
  /// Threads that multiply.
  static constexpr int64_t kReadingThreads = 2 * GpuWgmmaAttr::kGroupThreads;
};

/// Registers of a thread that brings and of one that multiplies: 128 and 256
/// threads of a block that has 168 for each.
struct WarpgroupRegisters {
  int64_t bringing, multiplying;
};

/// Sums of gradients of two maps in a thread that leave registers for numbers
/// of the thread from tile to tile, and, while the product that adds gradients
/// of scores of map 1 reads them, for scores of map 2. Beside more sums these
/// numbers are computed anew for each tile, and that product ends first.
inline constexpr int64_t kMostSumsWithRoom = 96;

/// Starts the product `startAdding` to `sums`, which reads `operands`, and the
/// product `startNext`, whose result `next` is there then. With room the next
/// one comes first, and the other one is the caller's to wait for; without,
/// that one ends before the next begins.
void addBeside(HopperBuilder &hopper, bool hasRoom, HopperBuilder::Sums &sums,
               MutableArrayRef<Fragment> operands,
               function_ref<void()> startAdding, HopperBuilder::Sums &next,
               function_ref<void()> startNext);

/// Emits the rest of a kernel by warpgroups: makes the barriers of `ring`; then
/// warpgroup 0 runs the code of `bring`, and 1 and 2 that of `multiply`.
void emitWarpgroups(AttentionKernel &kernel, TensorRing &ring,
                    const WarpgroupRegisters &registers,
                    function_ref<void()> bring, function_ref<void()> multiply);

/// Index of this thread's warpgroup among the two that multiply: 0 or 1, an
/// i32, known to be uniform in a warp.
Value getReadingGroup(AttentionKernel &kernel);
/// Synchronizes the threads of both.
void meetReaders(GpuBuilder &b);

/// Rows of 16-bit columns in panels of shared memory: the matrix description
/// for a product of warpgroups, and the bytes from one panel to the next.
struct PanelRows {
  Value description;
  int64_t panelBytes;
};
/// The 64 rows of warpgroup `group`, 0 or 1, of the block's rows that begin
/// `offset` bytes behind the first of them.
PanelRows getGroupRows(AttentionKernel &kernel, TensorRing &ring, Value group,
                       int64_t offset);
/// The rows of a tile at the shared address `base`.
PanelRows getTileRows(AttentionKernel &kernel, Value base);

/// Starts A B^T, of 64 rows of A and 8 of B for each of `sums`, which it
/// replaces; both have `width` columns, or zeros up to the next 16. `offset`:
/// bytes that B lies behind its description. The commit is the caller's.
void startRowProduct(HopperBuilder &hopper, HopperBuilder::Sums &sums,
                     const PanelRows &a, const PanelRows &b, int64_t width,
                     Type type, int64_t offset = 0);
/// Starts the addition of A B, of fragments of A for each 16 rows of B, whose
/// description tells where its further panels lie.
void startColumnProduct(HopperBuilder &hopper, HopperBuilder::Sums &sums,
                        ArrayRef<Fragment> a, Value b, Type type);

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_WARPGROUPS_H
