//===- GradientTiles.h - common parts of gradient kernels -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Both kernels of gradients have a tile of 16 rows a warp, of keys or of
// queries, and meet tiles of the other kind. Scores, dX V^T and probabilities
// are fragments of these rows and columns, and so, as they lie, the first
// operand of the products that sum over the columns.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTTILES_H
#define DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTTILES_H

#include "MatrixAtom.h"
#include "MatrixReader.h"

namespace mlir::diffattn::gpucode {

/// Products of tiles in shared memory whose rows have one width and pitch.
class RowProducts {
public:
  RowProducts(AttentionKernel &kernel, int64_t pitch, int64_t paddedWidth);
  /// A B^T, f32, of the 16 rows from `rows` on with `count` rows from `others`
  /// on: a fragment for each 8 of them.
  RowFragments multiply(Value rows, Value others, int64_t count);
  /// Adds A B to `sums`, of which each has 8 columns, for rows of B from
  /// `others` on and fragments of A for each 16 of them.
  void accumulate(ArrayRef<Fragment> a, Value others,
                  MutableArrayRef<Fragment> sums);
  /// Zeros for that.
  RowFragments getZeros() const;

private:
  /// Adds the products of `a` with both halves of `other` to two fragments.
  void multiplyPair(const Fragment &a, const Fragment &other, Fragment *sums);

  AttentionKernel &kernel;
  GpuBuilder &b;
  int64_t steps;
  MatrixReader rowReader, columnReader, valueReader;
};

/// Fragments as the numbers that a loop carries, and back.
GpuBuilder::Values toValues(ArrayRef<Fragment> fragments);
RowFragments toFragments(ValueRange values);

/// Element `i` of fragment `n`.
using ElementOf = function_ref<Value(int64_t n, int64_t i)>;

/// Weights and gradients of a tile's scores, for both kernels.
/// `columnsAreQueries`: rows are keys, as in the kernel of keys.
class GradientTiles {
public:
  GradientTiles(AttentionKernel &kernel, bool columnsAreQueries);

  /// The rows of a warp and the columns of a tile, i32.
  struct Place {
    Value noiseHead, row, column;
  };
  /// Probabilities of products of queries and keys, f32: of `sums`, logarithms
  /// as `getShift` gives them, 2^(unit * (score - sum)), 0 where the query does
  /// not see the key. With a softcap, `slopes` becomes the part of a score's
  /// gradient that is left below it, else it stays empty.
  void weigh(MutableArrayRef<Fragment> scores, const Place &place,
             ElementOf sums, RowFragments &slopes);
  /// The number that `weigh` wants in place of a row's logarithm of a sum; 0
  /// for a row without keys, whose scores are all hidden.
  Value getShift(Value logarithm);
  /// weight * (dP - row sum), times the slope.
  RowFragments differentiate(ArrayRef<Fragment> weights, ArrayRef<Fragment> dP,
                             ElementOf rowSums, ArrayRef<Fragment> slopes);
  SmallVector<Fragment> pack(ArrayRef<Fragment> numbers) {
    return softmax.pack(numbers);
  }
  /// Stores `sums`, times `factor` unless that is null, as rows of the gradient
  /// `param`, whose head begins at `base`: rows g and g + 8 from `row` on,
  /// those below `limit`.
  void store(ArrayRef<Fragment> sums, Value factor, GpuGradient gradient,
             Value base, Value row, Value limit);
  /// dX of (batch, head), contiguous, of `heads` signal heads.
  Value getRowGradients(Value batch, Value head, Value heads);
  /// Element (batch, head, 0) of `param`, contiguous f32 [B,Hs,Tq].
  Value getRowSums(GpuParam param, Value batch, Value head, Value heads);
  /// The address of the logarithms of the sums of `map`, with any strides.
  Value getLogSums(int64_t map, Value batch, Value head);
  Value getLogSumStride(int64_t map) {
    return kernel.param(map ? GpuParam::Lse2T : GpuParam::Lse1T);
  }

private:
  Value queryOf(const Place &place, int64_t n, int64_t i);
  Value keyOf(const Place &place, int64_t n, int64_t i);
  Value locate(Value from, bool isColumn, int64_t n, int64_t i);
  void addElements(MutableArrayRef<Fragment> scores, const Place &place);
  void hide(MutableArrayRef<Fragment> scores, const Place &place);

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  const bool columnsAreQueries;
  OnlineSoftmax softmax;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_GRADIENTTILES_H
