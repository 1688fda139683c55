//===- AttentionRules.cpp - attributes of attention, decoded --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Semantics/AttentionRules.h"

#include <algorithm>

using namespace mlir;
using namespace mlir::diffattn;

bool ScoreRules::hasElementMasks() const {
  return llvm::any_of(masks, [](MaskAttrInterface mask) {
    return !mask.isInterval() && !mask.hasTileRelation();
  });
}

bool ScoreRules::hasTileMasks() const {
  return llvm::any_of(
      masks, [](MaskAttrInterface mask) { return mask.hasTileRelation(); });
}

/// The smaller one of two limits.
static std::optional<int64_t> nearer(std::optional<int64_t> a,
                                     std::optional<int64_t> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

ScoreRules mlir::diffattn::getScoreRules(DifferentialMapsOpInterface op) {
  ScoreRules rules;
  rules.scale = op.getScale().convertToFloat();
  if (op.getSoftcap())
    rules.softcap = op.getSoftcap()->convertToFloat();
  rules.masks = op.getMasks();
  for (MaskAttrInterface mask : rules.masks) {
    KeyReach reach = mask.getReach();
    rules.reach.left = nearer(rules.reach.left, reach.left);
    rules.reach.right = nearer(rules.reach.right, reach.right);
  }
  return rules;
}

template <typename Op>
static EpilogueRules readEpilogueRules(Op op) {
  EpilogueRules rules;
  rules.lambdaSigmoid = op.getLambdaAct() == Activation::Sigmoid;
  rules.rmsNorm = op.getNorm() == Norm::RMS;
  rules.eps = op.getNormEps().convertToFloat();
  rules.epsOutside = op.getNormEpsMode() == EpsMode::Outside;
  rules.outScale = op.getOutScale().convertToFloat();
  return rules;
}

EpilogueRules mlir::diffattn::getEpilogueRules(HeadEpilogueOpInterface op) {
  return readEpilogueRules(op);
}

EpilogueRules mlir::diffattn::getEpilogueRules(AttentionBackwardOp op) {
  return readEpilogueRules(op);
}

/// `roles`: what the axes of the operand count.
static OperandView getView(OpOperand &operand, ArrayRef<AxisRole> roles) {
  OperandView view;
  view.value = operand.get();
  bool hasRows = false, hasBatches = false;
  auto roleOf = [&](AxisRole::Kind kind) -> std::optional<OperandView::Role> {
    switch (kind) {
    case AxisRole::Batch:
      hasBatches = true;
      return OperandView::Batch;
    case AxisRole::Head:
      return OperandView::Head;
    case AxisRole::Query:
      hasRows = true;
      return OperandView::Row;
    case AxisRole::Key:
      return hasRows ? OperandView::Column : OperandView::Row;
    case AxisRole::Width:
      return OperandView::Column;
    case AxisRole::Page:
      return hasBatches ? OperandView::Row : OperandView::Batch;
    case AxisRole::Sequence:
      return OperandView::Row;
    case AxisRole::Range: // of states, which have no view
      return std::nullopt;
    }
    llvm_unreachable("unknown kind of axis");
  };
  for (auto [i, axis] : llvm::enumerate(roles))
    if (std::optional<OperandView::Role> role = roleOf(axis.kind)) {
      view.axes[*role] = i;
      view.mayBroadcast[*role] = axis.mayBroadcast;
    }
  return view;
}

template <typename Op>
static OperandView getView(Op op, OpOperand &operand) {
  return getView(operand, op.getAxisRoles(operand.getOperandNumber()));
}

/// Null for an operand that is absent.
template <typename Op>
static OperandView getView(Op op, MutableOperandRange optional) {
  return optional.empty() ? OperandView() : getView(op, optional[0]);
}

static void readMaps(DifferentialMapsOpInterface op,
                     AttentionOperands &operands) {
  operands.q1 = getView(op, op.getQ1Mutable());
  operands.k1 = getView(op, op.getK1Mutable());
  operands.q2 = getView(op, op.getQ2Mutable());
  operands.k2 = getView(op, op.getK2Mutable());
  operands.v = getView(op, op.getVMutable());
  for (auto [which, view] : llvm::zip_equal(kMaskOperands, operands.masks))
    if (OpOperand *use = op.findMaskOperand(which))
      view = getView(op, *use);
  operands.queryBounds = getView(op, op.getCuSeqlensQMutable());
  operands.keyBounds = getView(op, op.getCuSeqlensKMutable());
  operands.blockTable = getView(op, op.getBlockTableMutable());
}

template <typename Op>
static void readEnd(Op op, AttentionOperands &operands) {
  operands.lambda = getView(op, op.getLambdaMutable());
  operands.normWeight = getView(op, op.getNormWeightMutable());
  operands.gate = getView(op, op.getGateMutable());
}

template <typename Op>
static void readSums(Op op, AttentionOperands &operands) {
  operands.sinks = {getView(op, op.getSinkMutable()),
                    getView(op, op.getSink2Mutable())};
  operands.lses = {getView(op, op.getLse1Mutable()),
                   getView(op, op.getLse2Mutable())};
}

AttentionOperands mlir::diffattn::getAttentionOperands(Operation *op) {
  AttentionOperands operands;
  if (auto maps = dyn_cast<DifferentialMapsOpInterface>(op))
    readMaps(maps, operands);
  if (auto end = dyn_cast<HeadEpilogueOpInterface>(op)) {
    readEnd(end, operands);
    operands.output = getView(end, end.getInitMutable());
  }
  if (auto attention = dyn_cast<AttentionOp>(op)) {
    operands.x = getView(attention, attention.getXMutable());
    operands.o2 = getView(attention, attention.getO2Mutable());
    readSums(attention, operands);
  }
  if (auto finalize = dyn_cast<FinalizeOp>(op))
    readSums(finalize, operands);
  return operands;
}

BackwardOperands mlir::diffattn::getBackwardOperands(AttentionBackwardOp op) {
  BackwardOperands operands;
  readMaps(cast<DifferentialMapsOpInterface>(op.getOperation()), operands);
  readEnd(op, operands);
  operands.x = getView(op, op.getXMutable());
  operands.o2 = getView(op, op.getO2Mutable());
  operands.lses = {getView(op, op.getLse1Mutable()),
                   getView(op, op.getLse2Mutable())};
  operands.dOut = getView(op, op.getDOutMutable());
  operands.dQ1 = getView(op, op.getDQ1Mutable());
  operands.dK1 = getView(op, op.getDK1Mutable());
  operands.dQ2 = getView(op, op.getDQ2Mutable());
  operands.dK2 = getView(op, op.getDK2Mutable());
  operands.dV = getView(op, op.getDVMutable());
  operands.dLambda = getView(op, op.getDLambdaMutable());
  operands.dNormWeight = getView(op, op.getDNormWeightMutable());
  operands.dGate = getView(op, op.getDGateMutable());
  return operands;
}
