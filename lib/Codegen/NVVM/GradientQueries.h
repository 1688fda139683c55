//===- GradientQueries.h - gradients of a block of queries ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTQUERIES_H
#define DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTQUERIES_H

#include "GradientTiles.h"

namespace mlir::diffattn::gpucode {

/// A block of queries of a noise head, whatever multiplies: where it is, the
/// numbers of a lane's rows, and what becomes of products. A warp has 16 of its
/// queries.
class GradientQueryBlock {
public:
  explicit GradientQueryBlock(AttentionKernel &kernel);

protected:
  using Values = GpuBuilder::Values;
  /// Finds the block, and the tiles of keys that its queries see.
  void locate();
  /// Sets the first query of this warp.
  void locateWarp();
  /// Loads `shifts`, `rowSums` and lambda of rows g and g + 8 of the warp, of
  /// signal head `head`.
  void loadStatistics(Value head);
  /// Makes weights of the products of map `map`, of map 2 times minus lambda.
  void weigh(int64_t map, MutableArrayRef<Fragment> scores,
             const GradientTiles::Place &where, RowFragments &slopes);
  /// Fragments of the gradients of scores, as products take them.
  SmallVector<Fragment> differentiate(int64_t map, ArrayRef<Fragment> weights,
                                      ArrayRef<Fragment> dP,
                                      ArrayRef<Fragment> slopes);
  /// The tile of keys that begins at `firstKey`.
  GradientTiles::Place at(Value firstKey) {
    return {place.noiseHead, warpRow, firstKey};
  }
  /// The loop over the signal heads of the noise head; of one map, that head.
  Values forHeads(ValueRange carried,
                  function_ref<Values(Value head, ValueRange carried)> body);
  /// Stores the sums of all tiles as `gradient` of `head`.
  void store(GpuGradient gradient, ArrayRef<Fragment> sums, Value head);

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  const GpuSharedLayout &layout;
  const int64_t keys;
  GradientTiles tiles;
  QueryBlock place;
  Value perNoise, signalHeads, warpRow, firstTile, endTile;

private:
  /// Numbers of each row: shifts of map 1 and 2, sums D1 and D2, minus lambda.
  std::array<std::array<Value, 2>, 2> shifts, rowSums;
  std::array<Value, 2> minusLambda;
};

/// The kernel by warpgroups; the other one is by mma.sync.
void emitWgmmaGradientQueries(AttentionKernel &kernel);

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTQUERIES_H
