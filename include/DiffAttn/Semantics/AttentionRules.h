//===- AttentionRules.h - attributes of attention, decoded ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every code generator reads an op through these, so that each attribute and
// operand is understood in one place.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_SEMANTICS_ATTENTIONRULES_H
#define DIFFATTN_SEMANTICS_ATTENTIONRULES_H

#include "DiffAttn/IR/DiffAttn.h"

#include <array>

namespace mlir::diffattn {

/// How scores are made and masked: scale, softcap, bias, mask, in this order.
/// The same for both maps.
struct ScoreRules {
  float scale = 1.0f;
  std::optional<float> softcap;
  SmallVector<MaskAttrInterface> masks;
  /// How far a query sees by all masks together.
  KeyReach reach;

  /// Whether each score needs a test: the ranges of keys and the relations of
  /// tiles do not decide all.
  bool hasElementMasks() const;
  /// Whether tiles of keys need a test.
  bool hasTileMasks() const;
};

/// Attributes of the steps after the softmax.
struct EpilogueRules {
  bool lambdaSigmoid = false;
  bool rmsNorm = false;
  /// Added to the mean of squares, or to its root.
  float eps = 0.0f;
  bool epsOutside = false;
  float outScale = 1.0f;
};

ScoreRules getScoreRules(DifferentialMapsOpInterface op);
EpilogueRules getEpilogueRules(HeadEpilogueOpInterface op);
EpilogueRules getEpilogueRules(AttentionBackwardOp op);

/// An operand, null where it is absent, and which of its axes count batches,
/// heads, rows and columns; -1: it does not vary with them. Rows are queries,
/// or the keys of K and V; columns are widths, or the keys of a bias. Pages
/// count as batches of K and V, and as rows of the table that names them;
/// sequences as rows of their bounds.
struct OperandView {
  enum Role { Batch, Head, Row, Column };
  Value value;
  std::array<int64_t, 4> axes = {-1, -1, -1, -1};
  /// Whether one of size 1 is used for every place.
  std::array<bool, 4> mayBroadcast = {};

  explicit operator bool() const { return static_cast<bool>(value); }
  ShapedType getType() const { return cast<ShapedType>(value.getType()); }
};

/// The operands of attention. What each is per head of: q1, gate and output of
/// signal heads, q2 and bias of noise heads, k1, k2 and v of their own. Without
/// a second map q2, k2 and lambda are null. `x` is what comes before norm and
/// gate, and `o2` map 2 times the values, which attention writes and its
/// gradient reads. `sinks` and `lses` are of map 1 and map 2, of attention, of
/// its gradient and of the end of its form on states.
struct AttentionOperands {
  OperandView q1, k1, q2, k2, v, lambda, normWeight, gate, output, x, o2,
      queryBounds, keyBounds, blockTable;
  std::array<OperandView, 2> sinks, lses;
  /// Operands read by the masks, indexed by `MaskOperand`.
  std::array<OperandView, std::size(kMaskOperands)> masks;
  const OperandView &mask(MaskOperand operand) const {
    return masks[static_cast<size_t>(operand)];
  }
};

/// Operands of `op`: those of the maps if it has DifferentialMapsOpInterface,
/// those of the end if it has HeadEpilogueOpInterface. Others are null.
AttentionOperands getAttentionOperands(Operation *op);

/// The operands of `attention_backward`: those of attention, whose `output` is
/// null, the gradient of the output, and the destinations of gradients but that
/// of a bias; null where absent.
struct BackwardOperands : AttentionOperands {
  OperandView dOut, dQ1, dK1, dQ2, dK2, dV, dLambda, dNormWeight, dGate;
};

BackwardOperands getBackwardOperands(AttentionBackwardOp op);

} // namespace mlir::diffattn

#endif // DIFFATTN_SEMANTICS_ATTENTIONRULES_H
