//===- GpuSharedLayout.h - shared memory of a GPU block ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_SCHEDULE_GPUSHAREDLAYOUT_H
#define DIFFATTN_SCHEDULE_GPUSHAREDLAYOUT_H

#include "DiffAttn/IR/DiffAttn.h"

namespace mlir::diffattn {

/// The cut of a kernel of 16-bit tiles: the numbers of its schedule, whichever
/// family that is of.
struct GpuTiles {
  GpuPlacement placement = GpuPlacement::Both;
  int64_t warps = 4, rowTiles = 1, keys = 32, stages = 2;
  bool qInRegisters = false;
  /// Not 0: few queries, all maps in one tile of rows, keys split in blocks.
  int64_t splitKeys = 0;
  /// Whether one warp more copies K and V by tensor maps.
  bool bulk = false;
  /// Maps of a row: with 1 there is no Q2 and no K2.
  int64_t maps = 2;

  static GpuTiles of(ScheduleAttrInterface schedule, int64_t maps = 2);
  /// Tiles of one of the two kernels of gradients: with `ofKeys` a block has
  /// rows of keys, and `keys` of its tiles are queries. `byWarpgroups`: of the
  /// kernel of wgmma, whose `warps` are those that multiply.
  static GpuTiles ofGradients(GpuBackwardAttr schedule, bool ofKeys,
                              int64_t maps = 2, bool byWarpgroups = false);
  /// Query rows of a block.
  int64_t getRows() const;
};

/// The multiple of elements to which rows in shared memory are padded, so that
/// one or two rows fill whole 128 bytes.
constexpr int64_t kGpuWidthMultiple = 32;

/// 16-bit columns and bytes of a row of a panel, in which tensor maps copy
/// rows. 16-byte chunks are exchanged in units of 8 rows (the 128-byte
/// swizzle).
constexpr int64_t kGpuPanelWidth = 64, kGpuPanelPitch = 128;

/// The layout of a block's shared memory, in bytes, defined here alone: kernels
/// read it, and checks and choices of sizes take `total`. A new region is an
/// entry of `getRegions`.
struct GpuSharedLayout {
  GpuSharedLayout() = default;
  GpuSharedLayout(const GpuTiles &tiles, int64_t headDim, int64_t valueDim,
                  bool sharedKeys);
  /// The layout of a kernel by warpgroups: tiles lie in panels, so rows have no
  /// pitch of their own.
  GpuSharedLayout(GpuWgmmaAttr schedule, int64_t headDim, int64_t valueDim,
                  bool sharedKeys, int64_t maps = 2);
  /// The layout of a kernel of gradients. Region `queries` has the block's rows
  /// of Q1, Q2 and dX, or with `ofKeys` of K1, K2 and V, which stay; a stage of
  /// the pipeline has a tile of the other three.
  static GpuSharedLayout ofGradients(const GpuTiles &tiles, int64_t headDim,
                                     int64_t valueDim, bool sharedKeys,
                                     bool ofKeys);
  /// The layout of a kernel of gradients by warpgroups: the regions of
  /// `ofGradients`, with rows in panels.
  static GpuSharedLayout ofWgmmaGradients(const GpuTiles &tiles,
                                          int64_t headDim, int64_t valueDim,
                                          bool sharedKeys, bool ofKeys);
  /// The layout of the kernel that merges ranges of keys.
  static GpuSharedLayout ofMerge(int64_t valueDim, int64_t maps);
  /// The layout of kernels that add parts up: one number a thread.
  static GpuSharedLayout ofSums();

  /// The phases in which a region is in use: while queries come in and go to
  /// registers, in the loop over keys, and after it. Regions of one phase do
  /// not overlap.
  enum Phase : unsigned { Load = 1, Loop = 2, Finish = 4 };
  struct Region {
    StringRef name;
    int64_t offset = 0, bytes = 0, alignment = 16;
    unsigned phases = 0;
    int64_t end() const { return offset + bytes; }
  };
  /// Bytes from one row to the next, of queries and keys, and of values.
  int64_t headPitch = 0, valuePitch = 0;
  /// Bytes of the queries of one map; of all maps where keys are split.
  int64_t queryBytes = 0;
  /// Bytes from one key of a tile to the next. Its 64 columns may lie in panels
  /// of their own.
  int64_t keyPitch = 0;
  /// A stage of the pipeline: K1, K2 unless it is K1, V.
  int64_t keyBytes = 0, valueOffset = 0, stageBytes = 0;
  /// Offsets of kernels of gradients: of dX or V of the block's rows in
  /// `queries`; in a stage, of numbers of the tile's queries, an f32 of each:
  /// lse1 and D1, and with two maps lse2, D2 and lambda.
  int64_t rowValueOffset = 0, statisticsOffset = 0;
  /// Bytes of the numbers of a tile's queries.
  static constexpr int64_t getStatisticsBytes(int64_t queries, int64_t maps) {
    return (maps == 2 ? 5 : 2) * queries * static_cast<int64_t>(sizeof(float));
  }
  /// Data that a warp of a pair passes to the other: for each tile of rows,
  /// fragments of P of 16 keys each, then two factors a lane.
  int64_t fragmentBytes = 0, factorBytes = 0, exchangeTileBytes = 0,
          exchangeWarpBytes = 0;
  /// Bytes that a group of rows passes from the second map to the first.
  /// Persistent blocks, whose ring is filled ahead meanwhile, pass them through
  /// the region of the queries or, where they do not fit there, through a stage
  /// that the ring leaves free (`combinesInStage`).
  int64_t combineGroupBytes = 0;
  bool combinesInStage = false;
  /// A warp's state with split keys: `stateRows` rows, 8 of each map, of
  /// `statePitch` floats, so that no two lanes that store together meet in a
  /// bank, then maxima and sums.
  int64_t stateRows = 0, statePitch = 0, stateWarpBytes = 0;
  /// Panels of tensor maps: their number in a row of queries or keys and in a
  /// row of values; the bytes of a panel of queries, and of keys or values.
  int64_t headPanels = 0, valuePanels = 0, queryPanelBytes = 0,
          keyPanelBytes = 0;
  /// Warps that merge ranges of keys, and offsets in `merge`: of weights of as
  /// many ranges as there are threads, of maxima and of sums that warps
  /// exchange, and of their columns, each for every map.
  static constexpr int64_t kMergeWarps = 8;
  /// Warps of a block that adds parts up.
  static constexpr int64_t kSumWarps = 32;
  int64_t mergeWeights = 0, mergeMaxima = 0, mergeSums = 0, mergeColumns = 0;
  /// Bytes of an mbarrier, and of those of `stages` stages: one for the
  /// queries; for each stage one for K, one for V and one for its release.
  /// Blocks that refill their rows have one more, for the release of the
  /// queries; kernels of gradients of keys one more for each stage, for numbers
  /// of its queries.
  static constexpr int64_t kBarrierBytes = 8;
  static int64_t barrierBytes(int64_t stages) {
    return (1 + 3 * stages) * kBarrierBytes;
  }
  /// Bytes of a fragment that a thread parks.
  static constexpr int64_t kParkedBytes = 16;
  /// The swizzle of tensor maps repeats after 8 rows of a panel, where every
  /// tile begins.
  static constexpr int64_t kSwizzleAlignment = 8 * kGpuPanelPitch;
  /// i32 words through which the warps of a persistent block learn which
  /// queries it has taken (TileQueue).
  static constexpr int64_t kTicketWords = 7;

  /// `ahead` is the part of `pipeline` that is filled while queries that go to
  /// registers come in.
  /// `parked` has weights of map 1, f32, while those of map 2 are made in their
  /// registers: 16 bytes of each thread that multiplies, one thread after the
  /// other, for each 8 columns of a tile.
  /// `result` has the rows of the result, in panels as queries, before they are
  /// stored by a tensor map: each warp's where its own queries were.
  Region queries{"queries"}, ahead{"ahead"}, pipeline{"pipeline"},
      exchange{"exchange"}, combine{"combine"}, states{"states"},
      merge{"merge"}, sums{"sums"}, result{"result"}, parked{"parked"},
      barriers{"barriers"}, ticket{"ticket"};
  int64_t total = 0;

  /// The regions that the kernel has, which are those with bytes.
  SmallVector<Region> getRegions() const;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_SCHEDULE_GPUSHAREDLAYOUT_H
