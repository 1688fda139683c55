//===- TileSlices.h - operands of a tile ------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_IR_TILESLICES_H
#define DIFFATTN_LIB_IR_TILESLICES_H

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/Utils/StaticValueUtils.h"
#include "mlir/Interfaces/TilingInterface.h"

#include <numeric>

namespace mlir::diffattn {

/// A tile along one axis.
struct TileRange {
  OpFoldResult offset, size;
};

/// A tile of attention: batches, groups of heads, queries and keys. Heads are
/// cut between groups only, so that every head of a tile finds the key, value
/// and noise heads that it reads in the same tile.
struct AttentionTile {
  TileRange batch, group, query, key;
};

/// Makes the slices that one tile of an op reads and writes.
class TileSlicer {
public:
  /// `groups` is the number of groups that the heads are cut into.
  TileSlicer(OpBuilder &builder, Location loc, const AttentionTile &tile,
             int64_t groups)
      : builder(builder), loc(loc), tile(tile), groups(groups) {}

  /// The part of `axis`, the heads, of an operand.
  TileRange heads(Value value, int64_t axis);
  /// The whole of an axis.
  TileRange whole(Value value, int64_t axis);
  /// `range` of an axis that is broadcast where its size, which may be known
  /// only at run time, is 1: then the whole of it.
  TileRange unlessBroadcast(Value value, int64_t axis, TileRange range);
  /// `value` restricted along each axis.
  Value slice(Value value, ArrayRef<TileRange> ranges);

  /// `value` restricted along the axes that a tile has a part of.
  Value slice(Value value, ArrayRef<AxisRole> axes);
  /// The operands of `op` on the tile, with `inits` as destinations, and
  /// `qOffset` as q_offset where the op has one.
  SmallVector<Value> operands(DifferentialMapsOpInterface op, ValueRange inits,
                              Value qOffset);

  /// The position of the first query of the tile, [B] of the tile, on tensors:
  /// `base[b] + queries before the tile`.
  Value shiftedOffset(Value base);

  OpBuilder &builder;
  Location loc;
  const AttentionTile &tile;
  int64_t groups;

private:
  /// The tile's part of an axis of `value`.
  TileRange getRange(Value value, int64_t axis, AxisRole::Kind kind);
};

/// Groups of heads that share no key, value or noise head; one group where the
/// heads of an operand are not known, which cannot be cut along them.
int64_t countHeadGroups(DifferentialMapsOpInterface op);

/// Whether a tile of so many groups has heads whose number is known. One group
/// is all of them, whatever a loop over it computes its size as.
bool hasStaticHeads(DifferentialMapsOpInterface op, OpFoldResult groups);

/// The result of tiling: the tiled op, its results and the slices it reads.
TilingResult makeTilingResult(Operation *tiled);

/// Sizes of `value` as attributes or as tensor.dim / memref.dim.
OpFoldResult sizeOf(OpBuilder &builder, Location loc, Value value,
                    int64_t axis);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_IR_TILESLICES_H
