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

/// The named barriers of a kernel by warpgroups, but 0: where both warpgroups
/// that multiply meet, and from a number on one for each of them, where it
/// waits for its turn, and where its own threads meet.
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

/// The rest of a kernel by warpgroups: the barriers of `ring` are made, then
/// warpgroup 0 does what `bring` emits, and 1 and 2 what `multiply` does.
void emitWarpgroups(AttentionKernel &kernel, TensorRing &ring,
                    const WarpgroupRegisters &registers,
                    function_ref<void()> bring, function_ref<void()> multiply);

/// Of the two warpgroups that multiply, that of this thread: 0 or 1, i32, known
/// to be the same in all lanes of a warp.
Value getReadingGroup(AttentionKernel &kernel);
/// Where the threads of both wait for one another.
void meetReaders(GpuBuilder &b);

/// Rows of 16-bit columns in panels of shared memory: what a product of
/// warpgroups reads, and the bytes from one panel to the next.
struct PanelRows {
  Value description;
  int64_t panelBytes;
};

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
