//===- KVPipeline.h - tiles of keys and values under way --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_KVPIPELINE_H
#define DIFFATTN_LIB_CODEGEN_NVVM_KVPIPELINE_H

#include "AttentionKernel.h"

namespace mlir::diffattn::gpucode {

/// The multi-buffered pipeline through which K1, K2 and V of one head come into
/// shared memory, a tile of keys at a time. A stage is an i32, its offset in
/// bytes from the first one. A tile that no query of the block sees, by the
/// masks that are decided for tiles, is not copied.
///
/// Safety. (1) A stage is read only after this thread's wait for its copies and
/// the block's barrier after it. (2) A stage is refilled only after the barrier
/// of the next tile, which every warp passes after its last read.
class KVPipeline {
public:
  /// A pipeline of the heads of keys and values that signal head `head`, with
  /// noise head `noiseHead`, reads in `batch`.
  KVPipeline(AttentionKernel &kernel, Value batch, Value head, Value noiseHead);

  struct Tile {
    Value number, stage;
    /// i1: whether some query of the block does not see some key of it, by the
    /// masks that are decided for tiles; null without such masks.
    Value isPartial;
  };
  using Compute = function_ref<GpuBuilder::Values(const Tile &, ValueRange)>;
  /// Starts the first copies of the tiles from `first` to `end`. Copies of
  /// `beside`, after those of the first tile, arrive with that tile.
  void start(Value first, Value end, function_ref<void()> beside = nullptr);
  /// Waits for the oldest copies. After it, all warps may read their stage, and
  /// the one before it may be filled.
  void wait();
  /// Loops over the tiles. `compute` maps the values that the loop carries, at
  /// first `initial`, to those after a tile; it is not called for tiles that no
  /// query of the block sees. All warps run it together, and may read the tile.
  GpuBuilder::Values loop(ValueRange initial, Compute compute);

  /// Addresses of K of the first map, and of V, in shared memory.
  Value keys(Value stage);
  Value values(Value stage);

private:
  GpuBuilder::Values loopOverVisible(ValueRange initial, Compute compute);
  void issue(Value tile, Value stage);
  /// Starts the copy of `tile`, if it exists, and with it those of `beside`.
  void bring(Value tile, Value exists, function_ref<Value()> stage,
             function_ref<void()> beside = nullptr);
  Value getFreeStage(Value stage);
  /// The stage after `stage`.
  Value following(Value stage);

  AttentionKernel &kernel;
  GpuBuilder &b;
  int64_t stages, tileKeys;
  Value key1, key2, value;
  Value firstTile, endTile;
  /// The tiles whose copies start before the loop, as GpuMasks::findSeen gives
  /// them.
  SmallVector<Value> visibleTiles;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_KVPIPELINE_H
