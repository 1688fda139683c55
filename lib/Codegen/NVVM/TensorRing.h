//===- TensorRing.h - tiles that one thread brings for others ---*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_TENSORRING_H
#define DIFFATTN_LIB_CODEGEN_NVVM_TENSORRING_H

#include "AttentionKernel.h"
#include "DiffAttn/Codegen/NVVM/HopperBuilder.h"

namespace mlir::diffattn::gpucode {

/// The ring of stages through which K1, K2 and V come into shared memory, and
/// the queries before it. One thread starts all copies, each by a tensor map;
/// the warps that compute read.
///
/// Safety. K and V of each stage have a barrier each that counts their bytes:
/// they are read after its phase. A third one counts the warps that have read
/// the stage: it is filled again after its phase. So readers and the thread
/// that fills are at most one phase apart, which the parity distinguishes.
///
/// The memory of the queries is like a stage that one tile of queries fills:
/// the copies' bytes arrive at a barrier of its own. In a block that refills it
/// another barrier counts the warps that no longer need it.
///
/// Kernels of gradients bring dX beside queries; in that of keys the rows of a
/// block are K1, K2 and V, and tiles Q1, Q2 and dX, in the memory of K1, K2 and
/// V. Numbers of their queries are written by a warp, each lane of which
/// arrives at a barrier of its own.
///
/// In a cluster each block brings a part of every tile for all of them. So a
/// stage is filled again after all of them have read it, each of which arrives
/// at the barriers of all; and none may end before the others' last arrivals.
class TensorRing {
public:
  explicit TensorRing(AttentionKernel &kernel);

  /// Sets the queries whose keys are brought from here on; `place` must outlive
  /// that.
  void enter(const QueryBlock &place);
  /// Initializes the barriers. One thread calls it, before `meet`.
  void initBarriers();
  /// Waits for all threads of the block, or of the cluster.
  void meet();
  /// A position in the ring: the number of a stage, and the parity of its
  /// phase, both i32.
  struct Position {
    Value stage, parity;
  };
  Position begin() { return {b.i32(0), b.i32(0)}; }
  Position following(Position position);
  Position preceding(Position position);

  /// The loop over tiles of keys, by those that bring and those that read. By
  /// warpgroups the last tile comes first: under a causal mask it is the one
  /// that is seen in part, and where near keys have the highest scores, sums
  /// are rescaled less often. In decode tiles ascend, as without a ring.
  using TileBody =
      function_ref<GpuBuilder::Values(Value tile, ValueRange carried)>;
  GpuBuilder::Values forTiles(Value first, Value end, ValueRange initial,
                              TileBody body, bool mayUnroll = true);

  /// Copies the queries of a kernel by warpgroups, or prefetches them into the
  /// L2. Called by the thread that brings.
  void prefetchQueries();
  void bringQueries();
  /// Marks for the readers that there are no more queries.
  void endQueries();
  /// Copies the tiles from `first` to `end`, in the order of forTiles, into the
  /// stages from `position` on; returns the position behind the last. Called by
  /// the same thread.
  Position bring(Value first, Value end, Position position);
  /// Stages are empty at first: as if a phase of parity 1 had ended.
  Position beginBringing() { return {b.i32(0), b.i32(1)}; }
  /// Leaves the stage `position` to the readers, who wait for it as for keys.
  /// Called by the same thread.
  Position lend(Position position);
  /// Waits until all warps of a block that refills the memory of the queries
  /// have released it, in this parity. Called by the same thread.
  void waitForQueryPlace(Value parity);

  /// Waits for a tile of queries, of this parity.
  void waitForQueries(Value parity);
  /// Releases the memory of the queries. Called by every warp of a block that
  /// refills it; `wroteThere`: threads of the block wrote to that memory.
  void releaseQueries(bool wroteThere);
  void waitForKeys(Position position);
  void waitForValues(Position position);
  /// Clears values of keys that are not valid, in the tile that begins at
  /// `firstKey`. A tensor map copies all keys in memory: invalid values may be
  /// NaN, which a probability of 0 does not hide. Called by the threads of
  /// warpgroups that read; `meetReaders` waits for all of them.
  void clearHiddenValues(Position position, Value firstKey,
                         function_ref<void()> meetReaders);
  /// Clears the rows of keys that are not valid in all operands of a tile,
  /// which gradients are products with, and in the rows of a block of keys, as
  /// `clearHiddenValues` does in values.
  void clearHiddenKeys(Position position, Value firstKey,
                       function_ref<void()> meetReaders);
  void clearHiddenRows(Value firstKey, function_ref<void()> meetReaders);
  /// Releases the stage. Called by every warp, after its last read.
  void release(Position position);
  /// By one warp, of a kernel of gradients of keys: until its lanes may write
  /// the numbers of a tile's queries, and after that. Others wait for them.
  void waitForPlace(Position position);
  void arriveWithStatistics(Position position);
  void waitForStatistics(Position position);

  /// Addresses in shared memory.
  Value queries(int64_t byteOffset);
  Value keys(Position position);
  Value values(Position position);
  Value statistics(Position position);

private:
  enum Kind : int64_t { Keys, Values, Empty, Statistics };
  Value barrier(Kind kind, Value stage);
  Value queryBarrier();
  Value queryPlaceBarrier();
  /// Panels of the block's rows or of a tile that one tensor map describes,
  /// `offset` bytes behind the first byte of these rows in shared memory.
  struct Source {
    GpuParam map;
    Value head;
    int64_t offset, panels;
  };
  SmallVector<Source> getRowSources() const;
  /// Panels of a tile; the last source arrives at the barrier of values.
  SmallVector<Source> getTileSources() const;
  /// Makes rows of hidden keys zeros, of `panels` that lie from what `getBase`
  /// emits on: only where there are some.
  void clearHidden(function_ref<Value()> getBase, int64_t panels,
                   int64_t panelBytes, int64_t rows, Value firstKey,
                   function_ref<void()> meetReaders);
  using CopyQueries =
      function_ref<void(Value target, GpuParam map, std::array<Value, 4> at)>;
  /// Calls `body` for all boxes of the block's rows.
  void forQueryBoxes(CopyQueries body);
  /// Copies all panels, which lie `panelBytes` apart, of the rows from `row` on
  /// of a head of the batch or page `batch`, to `blocks` blocks.
  void copy(Value target, int64_t panels, int64_t panelBytes, GpuParam map,
            Value row, Value head, Value batch, Value barrier, int64_t blocks);
  /// Copies the keys from `row` on, of a batch or a page, to the rows of stage
  /// `position` that begin at the byte `offset` of each panel.
  void bringKeys(Position position, Value offset, Value row, Value batch);
  /// The first key of a tile that this block brings.
  Value firstOfPart();
  /// Copies a tile from pages, each box from one page.
  void bringPages(Position position, Value firstKey);

  AttentionKernel &kernel;
  GpuBuilder &b;
  HopperBuilder hopper;
  const GpuSharedLayout &layout;
  const QueryBlock *place = nullptr;
  /// `partKeys` of a tile are brought by one of the `blocks`.
  int64_t stages, tileKeys, blocks, partKeys;
  /// Rows are keys, and tiles queries.
  bool ofKeys;
  Value key1Head, key2Head, valueHead;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_TENSORRING_H
