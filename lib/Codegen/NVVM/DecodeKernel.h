//===- DecodeKernel.h - few queries against a block of keys -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_DECODEKERNEL_H
#define DIFFATTN_LIB_CODEGEN_NVVM_DECODEKERNEL_H

#include "KVPipeline.h"
#include "MatrixAtom.h"
#include "TensorRing.h"

#include <functional>

namespace mlir::diffattn::gpucode {

class DecodeKernel {
public:
  explicit DecodeKernel(AttentionKernel &kernel)
      : kernel(kernel), b(kernel.b), spec(kernel.spec), layout(kernel.layout),
        keys(spec.getTiles().keys), sumTiles(spec.getPaddedValueDim() / 8),
        softmax(kernel) {}
  void emit();

private:
  /// The block's range of keys, its heads and its queries.
  void locate();
  void locateHeads();
  void locateKeys();
  void computeRange();
  /// The number of queries of the block: all of the batch, or as many of a
  /// packed sequence as fit in 8 rows with the block's heads.
  Value countQueries() {
    return blockQueries ? blockQueries : kernel.param(GpuParam::Queries);
  }
  /// Numbers of maxima or sums, and of elements of a fragment, in a lane.
  int64_t laneRows() const { return spec.getLaneRows(); }
  int64_t laneNumbers() const { return 2 * laneRows(); }
  /// The number of rows of each map: queries times heads of the block.
  Value countRows() {
    return b.mul(countQueries(), kernel.param(GpuParam::Group));
  }
  /// The query `query` of the block in its batch.
  Value queryAt(Value query) {
    return firstRow ? kernel.queryAt(b.add(query, firstRow)) : query;
  }
  /// An element of a query, given by its row in the tile and its column:
  /// whether it exists, and its address.
  struct QuerySource {
    Value inside, pointer;
  };
  QuerySource locateQuery(Value tileRow, Value column);
  void bringQueries();
  /// Takes the queries from shared memory, once they have arrived there.
  void keepQueries();
  RowFragments scores(Value keysBase);
  /// A tile of keys in shared memory.
  struct Tile {
    Value number, keys, values;
    /// Null, or whether masks hide a part of it.
    Value isPartial;
    /// Waits for the tile's values and clears invalid ones; null if not needed.
    function_ref<void()> waitForValues = nullptr;
  };
  GpuBuilder::Values computeTile(const Tile &tile, ValueRange carried);
  /// The values at the end of the loop over tiles, which all threads copy or,
  /// by a ring, a warp of its own.
  GpuBuilder::Values computeByPipeline(ValueRange initial);
  GpuBuilder::Values computeByRing(TensorRing &ring, ValueRange initial);
  void emitByRing();
  GpuBuilder::Values initialState();
  /// Clears values of keys that are not valid. A tensor map copies all keys in
  /// memory: invalid values may be NaN, which a probability of 0 does not hide.
  void clearHiddenValues(Value values, Value firstKey);
  /// Waits for all threads that compute.
  void meet();
  /// Leaves the warp's state in shared memory.
  void leaveState(ValueRange values);
  /// The state of a row of the tile: its maximum and sum, and a function for
  /// the accumulator of a column.
  struct Joined {
    Value max, sum;
    std::function<Value(Value column)> getColumn;
  };
  /// Joins the warps' states.
  Joined join(Value tileRow);
  /// Stores the states of the rows that exist.
  void storeStates(function_ref<Joined(Value tileRow)> getState);

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  const GpuSharedLayout &layout;
  int64_t keys, sumTiles;
  OnlineSoftmax softmax;

  Value batch, sequence, headBlock, split, firstHead;
  /// The block's first query in a packed sequence, and the number of queries.
  Value firstRow, blockQueries;
  /// Query and noise head of this lane's rows, g and, of a second map, g + 8.
  Value query, noiseHead;
  Value firstTile, endTile;
  QueryRows queries;
  std::unique_ptr<MatrixAtom> atom;
  std::optional<KVPipeline> pipeline;
  /// The heads that the block reads, for tensor maps.
  QueryBlock place;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_DECODEKERNEL_H
