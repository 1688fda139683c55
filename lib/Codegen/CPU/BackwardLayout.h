//===- BackwardLayout.h - memory of gradients -------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Scratch of a thread, the sums of gradients that queries add to, and the
// memory that all work items share. Sizes count f32.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_BACKWARDLAYOUT_H
#define DIFFATTN_LIB_CODEGEN_CPU_BACKWARDLAYOUT_H

#include "BackwardSpec.h"
#include "PrefillLayout.h"

namespace mlir::diffattn {

/// Sizes of a call, as values in the caller or in a function of the kernel.
struct BackwardSizes : CallSizes {
  Value groups, slices, sliceQueries;
  /// Heads of each operand in a group, and signal heads of a noise head.
  Value groupSignal, groupNoise, groupKeys[2], groupValues, perNoise;
  /// Columns of rows of scratch, in whole vectors, and in whole vectors of
  /// packs.
  Value paddedHeadDim, paddedValueDim, roundedValueDim;
};

BackwardSizes getBackwardSizes(KernelBuilder &b, const BackwardSpec &spec,
                               function_ref<Value(const SpecSize &)> read);

/// Parts for a block of queries beside those of the forward kernel's phases.
struct BackwardParts {
  /// [lane] 1 / sum of a map, 0 where it has no keys.
  Value inverses[2];
  /// [lane] sums over keys of weights times products: D1 and D2.
  Value rowSums[2];
  /// [lane] the gradient of lambda, which several heads may share, and
  /// lambda before its activation.
  Value lambdaGradients, logits;
  /// The gradients of X: [row][column] in rows of `paddedValueDim`, and
  /// [column][lane].
  Value rowGradients, laneGradients;
  /// The gradients of X in packs of rows, [row / pack][column] in rows of
  /// `paddedValueDim`: by single numbers, `rowGradients`.
  Value packedGradients;
  /// The gradients of X as 16-bit floats, in rows of `roundedValueDim` with
  /// zeros behind the last column; null unless products are of pairs.
  Value roundedGradients;
  /// Queries in packs of rows, [row / pack][column], and their gradients,
  /// [row][column], in rows of `paddedHeadDim`. Queries are scaled where the
  /// product scales them.
  Value queryRows[2], queryGradients[2];
  /// [key][lane] of the planes of scores: gradients of X times values.
  Value products;
  /// Rounded numbers of one KV block: the difference of the maps and gradients
  /// of the scores of each, [key][lane]; the latter also as [key / 2][lane].
  /// Null unless products are of pairs.
  Value roundedRows[3], roundedPairs[2];
  /// Keys of one KV block and map, [key / 2][column] in rows of
  /// `paddedHeadDim`; null unless products are of pairs.
  Value packedKeys;
  /// A panel for values of one KV block; null unless products are by matrix
  /// tiles.
  Value tiledValues;
  /// Scratch of one row.
  Value row;
};

struct BackwardLayout : PrefillLayout, BackwardParts {};

BackwardLayout layOutBackward(ScratchParts &parts, const BackwardSpec &spec,
                              const BackwardSizes &sizes);

/// Sums over the queries of a slice: for each head of a group and key, a row of
/// `paddedHeadDim` or `paddedValueDim`. Null where no gradient is wanted;
/// both maps have the same where they share their keys.
struct GradientSums {
  Value keys[2], values;
};

GradientSums takeGradientSums(ScratchParts &parts, const BackwardSpec &spec,
                              const BackwardSizes &sizes);
/// Their size.
Value getGradientSumsSize(KernelBuilder &b, const BackwardSpec &spec,
                          const BackwardSizes &sizes);

/// Memory that work items share; parts that are not wanted are null.
struct SharedParts {
  /// [batch][group][slice][column] sums of d_norm_weight.
  Value normWeights;
  /// [batch][slice][signal head] sums of d_lambda.
  Value lambdas;
  /// [batch][group][slice] the gradient sums, where slices are work items.
  Value sums;
};

SharedParts takeSharedParts(ScratchParts &parts, const BackwardSpec &spec,
                            const BackwardSizes &sizes);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_BACKWARDLAYOUT_H
