//===- WgmmaTiles.h - tiles of keys that a warpgroup multiplies -*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_WGMMATILES_H
#define DIFFATTN_LIB_CODEGEN_NVVM_WGMMATILES_H

#include "MapCombiner.h"
#include "Warpgroups.h"

namespace mlir::diffattn::gpucode {

/// Begins and ends turns at exponentials, before and after all tiles of a
/// block, for warpgroup `group`, 0 or 1, of the two that multiply. Both have
/// the same tiles. The first begins, and takes the turn that the second passes
/// last. Emits nothing where the kernel takes no turns.
void beginTurns(AttentionKernel &kernel, Value group);
void endTurns(AttentionKernel &kernel, Value group);

/// The loop over keys of a kernel by warpgroups: each of the two that multiply
/// has 64 rows, of both maps or of one.
///
/// In the plain order an iteration is the products with K of all maps of the
/// warpgroup, their end, exponentials, the products with V, their end. The two
/// take turns at exponentials, so that the products of one run beside those of
/// the other: each waits for its turn and then gives the other its own.
///
/// With `overlap` the scores of one map of a tile are a step. A step starts its
/// product with K, and the product with V of the step before: of the other map,
/// or of the tile before where the warpgroup has one map. It waits for its
/// scores alone, and computes their powers beside the other product. So the
/// first step and the last product with V lie outside of the loop. Sums are
/// rescaled and P is rounded after the end of that product, in the order of the
/// plain one: the bits are the same.
///
/// In either order no product is under way from one iteration to the next, none
/// is started under a condition that lies within the loop, and nothing touches
/// a register of one that is: else ptxas makes the products wait for each other
/// (C7510 to C7515).
class WgmmaTiles {
public:
  /// `maps` has the sums before and after, `ring` brings the tiles.
  WgmmaTiles(AttentionKernel &kernel, const QueryBlock &place, TensorRing &ring,
             OnlineSoftmax &softmax, MapSums &maps);

  /// The number of this warpgroup, 0 or 1, and the first query of this warp,
  /// both i32; descriptions of the queries in shared memory, one for each map
  /// of the warpgroup.
  Value group, warpRow;
  SmallVector<Value> queries;

  /// Multiplies the tiles from `first` to `end`, of which the ring brings the
  /// first to `position`; returns the position behind the last one. Called by
  /// all threads of both warpgroups.
  TensorRing::Position multiply(Value first, Value end,
                                TensorRing::Position position);

private:
  using Values = GpuBuilder::Values;
  using Sums = HopperBuilder::Sums;
  /// A tile of keys and its position in the ring.
  struct Tile {
    Value firstKey;
    /// Whether some key is not seen by some row of the warp.
    Value isPartial;
    TensorRing::Position position;
  };
  /// A product with V that is not started yet.
  struct Pending {
    int64_t map;
    Value firstKey;
    TensorRing::Position position;
    SmallVector<Fragment> probabilities;
  };

  int64_t numMaps() const { return maps.sums.size(); }
  Sums &sums(int64_t map) { return maps.sums[map].front(); }
  Tile enterTile(Value number, TensorRing::Position position);

  Values multiplyInTurns(Value first, Value end, TensorRing::Position position);
  void computeTile(const Tile &tile);
  Values multiplyOverlapped(Value first, Value end,
                            TensorRing::Position position);
  /// The steps of `tile` from that of map `first` on.
  void overlapSteps(const Tile &tile, int64_t first, Pending &pending);
  void finish(Pending &pending);

  /// Starts the products of one map; `commit` is the caller's.
  void startKeys(int64_t map, Sums &scores, TensorRing::Position position);
  void startValues(int64_t map, ArrayRef<Fragment> probabilities,
                   TensorRing::Position position);
  /// Waits for the values of a tile, which this warpgroup has not used yet.
  void enterValues(Value firstKey, TensorRing::Position position);
  /// Turns scores into powers, and updates the state of the map.
  OnlineSoftmax::Step exponentiate(int64_t map, Sums &scores, const Tile &tile);

  AttentionKernel &kernel;
  GpuBuilder &b;
  HopperBuilder hopper;
  const QueryBlock &place;
  TensorRing &ring;
  OnlineSoftmax &softmax;
  MapSums &maps;
  int64_t keys;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_WGMMATILES_H
