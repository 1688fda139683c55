//===- MapCombiner.h - from sums of two maps to the result ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_MAPCOMBINER_H
#define DIFFATTN_LIB_CODEGEN_NVVM_MAPCOMBINER_H

#include "MatrixAtom.h"
#include "PairExchange.h"

#include <functional>

namespace mlir::diffattn::gpucode {

/// The values carried by the loop over keys: the sums of the maps that a warp
/// accumulates, and the states of those of which it has the softmax.
struct MapSums {
  SmallVector<Accumulator> sums;
  SmallVector<SmallVector<RowState>> states;

  /// The values before the first key; a sum has `columns` tiles of 8 columns.
  MapSums(GpuBuilder &b, int64_t sumMaps, int64_t stateMaps, int64_t rowTiles,
          int64_t columns);
  /// Converts to values of a loop, and back.
  GpuBuilder::Values flatten() const;
  void assign(ValueRange values);
};

/// Multiplies `sums` by the factors of `steps`, one step a tile of rows, if any
/// row of the warp needs it.
void rescaleSums(OnlineSoftmax &softmax, Accumulator &sums,
                 ArrayRef<OnlineSoftmax::Step> steps);

/// The end of a block, behind the loop over keys: divides the maps by their
/// sums, subtracts the second one, if there is one, and finishes rows of the
/// result.
class MapCombiner {
public:
  /// `ownMap` is the map of this warp where a row has more than one warp.
  MapCombiner(AttentionKernel &kernel, OnlineSoftmax &softmax,
              const QueryBlock &place, GpuPlacement placement, Value ownMap)
      : kernel(kernel), b(kernel.b), softmax(softmax), place(place),
        placement(placement), ownMap(ownMap) {}

  /// The query of this lane in row 0 or 8 of a tile of 16.
  std::function<Value(int64_t rowTile, int64_t half)> queryRow;
  /// Exchange between the two warps of a pair; null without pairs.
  PairExchange *exchange = nullptr;
  /// The address through which this lane passes sums from the second map to the
  /// first, 16 bytes each 512, and the barrier of the warps that do; for maps
  /// apart.
  std::function<Value()> getPassed;
  std::function<void()> meet;
  /// Finishes and stores rows g and g + 8 instead of this class, from the
  /// norm's factors; with one tile of rows only.
  std::function<void(ArrayRef<Fragment> x, std::array<Value, 2> factors)>
      storeTile;
  /// Finish the result from the memory by which it was passed, some columns at
  /// a time, so that its registers are free for the operands of the epilogue;
  /// for maps apart and one tile of rows.
  bool finishInMemory = false;

  /// Finishes the rows from the maps that this warp has, its own first.
  void finish(const MapSums &maps);

private:
  using Factors = SmallVector<std::array<Value, 2>>;
  /// Factors of the sums of each map, by tile of rows: 1 / l1 and, with a
  /// second map, -lambda / l2; and 1 / l of each map where the kernel stores
  /// O2.
  struct RowFactors {
    SmallVector<Factors> maps, inverseSums;
  };
  RowFactors getFactors(size_t maps, ArrayRef<SmallVector<RowState>> states);
  /// The columns of a row that the quads of this warp hold.
  QuadColumns getColumns();
  /// Stores map 2 times the values, in the warps that have its sums.
  void storeSecond(const SmallVector<Accumulator> &sums,
                   ArrayRef<Factors> inverseSums);
  void pass(Accumulator &x);
  /// Sums of squares of each row of a lane.
  SmallVector<Value> sumSquares(const Accumulator &x);
  void finishRows(const Accumulator &x);
  /// Stores rows, with the factor of the norm from the sums of `squares`, if
  /// there are any.
  void storeRows(const Accumulator &x, ArrayRef<Value> squares,
                 Epilogue &epilogue);
  /// Finishes `tiles` of columns that this lane left at `passed`.
  void finishPassed(Value passed, ArrayRef<Value> squares, int64_t tiles);

  AttentionKernel &kernel;
  GpuBuilder &b;
  OnlineSoftmax &softmax;
  const QueryBlock &place;
  GpuPlacement placement;
  Value ownMap;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_MAPCOMBINER_H
