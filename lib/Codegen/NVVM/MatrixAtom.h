//===- MatrixAtom.h - the matrix instruction of a kernel --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_MATRIXATOM_H
#define DIFFATTN_LIB_CODEGEN_NVVM_MATRIXATOM_H

#include "AttentionKernel.h"

namespace mlir::diffattn::gpucode {

/// Fragments of one tile of 16 rows: of queries, one for each 16 columns; of
/// scores and sums, one for each 8 columns, of which a lane has the columns
/// 2 * laneColumn and the next one in the rows laneRow and laneRow + 8; of
/// probabilities, one for each 16 keys. Where a lane has one row
/// (GpuKernelSpec::getLaneRows), the others are zeros in operands, and nobody
/// reads them in results.
using RowFragments = SmallVector<Fragment>;
/// For each tile of rows: the scores of one tile of keys; the sums of one map.
using ScoreTile = SmallVector<RowFragments>;
using Accumulator = SmallVector<RowFragments>;
using Probabilities = SmallVector<ArrayRef<Fragment>>;

/// The queries that a warp multiplies: in registers, or in shared memory from
/// `base` on.
struct QueryRows {
  int64_t tiles = 1;
  Value base;
  SmallVector<RowFragments> fragments;
};

/// The two products of attention by one kind of matrix instruction, with tiles
/// of K and V in shared memory as the tile loader leaves them. A new
/// instruction is a class in a file of its own.
class MatrixAtom {
public:
  virtual ~MatrixAtom() = default;

  /// Loads one tile of rows of the queries that begin at `base` into registers.
  virtual RowFragments loadQueries(Value base, int64_t rowTile) = 0;
  /// Q K^T of each of `queries` with each of `keyTiles`, addresses of `keys`
  /// rows, of which either has one: that is read once for all of the other.
  virtual SmallVector<ScoreTile> multiplyKeys(ArrayRef<QueryRows> queries,
                                              ArrayRef<Value> keyTiles,
                                              int64_t keys) = 0;
  /// Adds P V to the sums of each map. V, from `values` on, is read once for
  /// all of them.
  virtual void multiplyValues(Value values,
                              ArrayRef<Probabilities> probabilities,
                              MutableArrayRef<Accumulator> sums) = 0;
};

/// mma.sync.m16n8k16 on operands that ldmatrix reads. With `valueChunk`, 0 or
/// 2, two warps take turns at 16 columns of V, and this one begins at that
/// chunk of 8; else a warp takes all.
std::unique_ptr<MatrixAtom> createMmaSync16816(AttentionKernel &kernel,
                                               Value valueChunk);

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_MATRIXATOM_H
