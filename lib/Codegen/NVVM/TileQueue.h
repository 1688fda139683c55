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

  /// By all lanes of the warp that brings: the number of the block's first
  /// tile, and then the next one, in lane 0. Without a counter there is none:
  /// every tile has a block.
  Value first();
  Value next();
  /// Whether there is a tile of that number.
  Value exists(Value number);
  /// The tile of that number, by the same warp. Of packed sequences it may have
  /// no queries.
  QueryBlock locate(Value number);

  /// By one thread: leaves the ticket of a tile, or one that says that there is
  /// none. A barrier must then hand it on.
  void publish(const QueryBlock &place);
  void publishEnd();
  /// By any thread: whether the ticket says that there is no tile, and the tile
  /// otherwise. It may be read as often as wanted.
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
