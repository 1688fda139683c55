//===- TileQueue.h - tiles of queries that blocks share out -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_TILEQUEUE_H
#define DIFFATTN_LIB_CODEGEN_NVVM_TILEQUEUE_H

#include "AttentionKernel.h"

namespace mlir::diffattn::gpucode {

/// The tiles of queries of a launch, which persistent blocks share out. A block
/// has that of its own number first; the warp that brings takes the next ones
/// from a counter in global memory, finds the tile, and leaves a ticket in
/// shared memory, by which the warps that multiply find it too. Nothing that a
/// tile computes depends on who takes it.
///
/// Heads are cut in sections whose keys and values fit the L2
/// (kGpuSectionBytes), and the numbers go through one section after the other:
/// of all its heads the last tiles, which see most keys under a causal mask,
/// then those before them.
class TileQueue {
public:
  explicit TileQueue(AttentionKernel &kernel) : kernel(kernel), b(kernel.b) {}

  /// The number of the block's first tile, and of the next one, in lane 0.
  /// Without a counter there is no next one: every tile has a block. Called by
  /// all lanes of the warp that brings.
  Value first();
  Value next();
  /// Whether there is a tile of that number.
  Value exists(Value number);
  /// The tile of that number, which may have no queries of packed sequences.
  /// Called by the same warp.
  QueryBlock locate(Value number);

  /// Writes the ticket of a tile, or one that marks the end, by one thread. A
  /// barrier must follow before others read it.
  void publish(const QueryBlock &place);
  void publishEnd();
  /// Whether the ticket marks the end; and the tile, if not. Any thread may
  /// read the ticket, any number of times.
  Value readEnd();
  QueryBlock read();

private:
  /// The address of a word of the ticket.
  Value address(int64_t word);
  void store(int64_t first, ArrayRef<Value> words);
  SmallVector<Value> load(int64_t first, int64_t count);

  AttentionKernel &kernel;
  GpuBuilder &b;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_TILEQUEUE_H
