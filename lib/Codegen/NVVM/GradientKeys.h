//===- GradientKeys.h - gradients of a block of keys and values -*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTKEYS_H
#define DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTKEYS_H

#include "GradientTiles.h"

namespace mlir::diffattn::gpucode {

/// A block of keys of one head of K1, K2 and V, whatever multiplies: where it
/// is, and where its gradients go. A warp has 16 of its keys.
class GradientKeyBlock {
public:
  /// `fragments`: of the sums of K1, or K2, of a warp.
  GradientKeyBlock(AttentionKernel &kernel, size_t fragments);

protected:
  using Values = GpuBuilder::Values;
  /// Numbers of the queries of a tile, in the order in which they lie in a
  /// stage; those of one map are the first two.
  enum Statistic { Lse1, D1, Lse2, D2, Lambda };
  /// Finds the block, its signal heads, and the tiles of queries that see it.
  void locate();
  /// Sets the first key of this warp.
  void locateWarp();
  /// Stores sums of K1, of K2 unless it is K1, and of V.
  void store(ArrayRef<Fragment> sums);

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  const GpuSharedLayout &layout;
  /// Queries of a tile, and gradients of keys: one where K2 is K1.
  const int64_t queries, keyTensors;
  const size_t fragments;
  GradientTiles tiles;
  /// `perKey` signal heads, from `firstHead` on, share the keys.
  Value batch, keyHead, firstKey, warpKey, signalHeads, perKey;
  Value firstHead, firstTile, endTile;
};

/// The kernel by warpgroups; the other one is by mma.sync.
void emitWgmmaGradientKeys(AttentionKernel &kernel);

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTKEYS_H
