//===- SoftmaxSteps.h - scores, masks and sums of one map -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_SOFTMAXSTEPS_H
#define DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_SOFTMAXSTEPS_H

#include "DiffAttn/Semantics/AttentionRules.h"
#include "StructuredBuilder.h"

namespace mlir::diffattn {

/// Inputs of the scores that both maps share.
struct ScoreInputs {
  ScoreRules rules;
  /// The operands that masks read, and the axes of those that are there.
  SmallVector<std::pair<MaskOperand, Value>> masked;
  SmallVector<SmallVector<AxisRole>> maskedAxes;
  /// The position (i64) of the first key; null: 0.
  Value keyOffset;
  Layout qLayout, kLayout;
};

/// The inputs of an attention or an online step, all but the position of the
/// first key.
ScoreInputs getScoreInputs(DifferentialMapsOpInterface op);

/// The operands of one map. Head `h` reads key head `h / keyGroup` and bias
/// head `h / biasGroup`.
struct MapOperands {
  Value q, k;
  OpFoldResult heads, keyGroup, biasGroup;
};

/// The places in a head-split operand: batch, head, length and width in the
/// order of `layout`.
SmallVector<Axis> layoutAxes(Layout layout, Axis batch, Axis head, Axis length,
                             Axis width);

/// Q * K^T of one map, f32 [B,heads,Tq,Tk], without the scale.
Value buildProduct(StructuredBuilder &sb, const MapOperands &map,
                   const ScoreInputs &inputs);

/// Scores of one map, f32 [B,heads,Tq,Tk]; -inf where the query does not see
/// the key, and nowhere else unless the product itself is -inf.
Value buildScores(StructuredBuilder &sb, const MapOperands &map,
                  const ScoreInputs &inputs);

/// Overwrites `out`, f32 [B,heads,Tq,Tk]: -inf where the query does not see the
/// key, and nowhere else.
Value buildVisibility(StructuredBuilder &sb, const MapOperands &map,
                      const ScoreInputs &inputs, Value out);

/// `init` [B,heads,Tq] raised to the maximum of each row of `scores`. NaN wins.
Value buildRowMax(StructuredBuilder &sb, Value scores, Value init);

/// Overwrites `scores` by exp(scores - max), 0 for a score of -inf.
Value buildExp(StructuredBuilder &sb, Value scores, Value max, Value out);

/// Adds the sum of each row of `weights` to `init` [B,heads,Tq].
Value buildRowSum(StructuredBuilder &sb, Value weights, Value init);

/// One map before it is divided by its sum: scores and weights are f32
/// [B,heads,Tq,Tk]; of each row, f32 [B,heads,Tq], the maximum of its scores,
/// the maximum that its weights are relative to, and its sum.
struct SoftmaxMap {
  Value scores, weights, scoreMax, max, sum;
};

/// A map in storage of its own. `sink`, float [heads] or null, is one score
/// more in each sum, without a weight.
SoftmaxMap buildSoftmax(StructuredBuilder &sb, const MapOperands &map,
                        const ScoreInputs &inputs, Value sink = {});

/// Overwrites `out`, f32 [B,heads,Tq], by the logarithm of each row's sum of
/// exponentials; -inf for a row that sees no key.
Value buildLogSum(StructuredBuilder &sb, const SoftmaxMap &map, Value out);

/// Widens an element of f16 or bf16 to f32.
Value widen(ImplicitLocOpBuilder &b, Value element);

/// True where `score` is -inf: the key is not seen.
Value isHidden(ImplicitLocOpBuilder &b, Value score);

/// An f32 constant.
Value f32(ImplicitLocOpBuilder &b, float value);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CONVERSION_DIFFATTNTOLINALG_SOFTMAXSTEPS_H
