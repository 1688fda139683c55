//===- AxisRoles.cpp - roles of axes of operands --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

using namespace mlir;
using namespace mlir::diffattn;

using Axes = SmallVector<AxisRole>;
using Kind = AxisRole::Kind;

static Axes headSplit(Layout layout, Kind length) {
  if (layout == Layout::BHTD)
    return {Kind::Batch, Kind::Head, length, Kind::Width};
  return {Kind::Batch, length, Kind::Head, Kind::Width};
}

static bool isNumber(OpOperand &operand, unsigned number) {
  return operand.getOperandNumber() == number;
}
static bool isNumber(MutableOperandRange optional, unsigned number) {
  return !optional.empty() && isNumber(optional[0], number);
}

/// The axes of keys or values: of batches, or of pages and rows in them.
static Axes keyAxes(DifferentialMapsOpInterface op, Layout layout) {
  Axes axes = headSplit(layout, Kind::Key);
  if (op.isPaged())
    axes.front() = Kind::Page;
  return axes;
}

/// The axes of operands that all ops with maps have; none for other operands.
static std::optional<Axes> getMapsAxes(DifferentialMapsOpInterface op,
                                       unsigned number) {
  if (isNumber(op.getQ1Mutable(), number) ||
      isNumber(op.getQ2Mutable(), number))
    return headSplit(op.getQLayout(), Kind::Query);
  if (isNumber(op.getK1Mutable(), number) ||
      isNumber(op.getK2Mutable(), number))
    return keyAxes(op, op.getKLayout());
  if (isNumber(op.getVMutable(), number))
    return keyAxes(op, op.getVLayout());
  if (isNumber(op.getCuSeqlensQMutable(), number) ||
      isNumber(op.getCuSeqlensKMutable(), number))
    return Axes{Kind::Sequence};
  if (isNumber(op.getBlockTableMutable(), number))
    return Axes{Kind::Batch, Kind::Page};
  for (MaskOperand which : kMaskOperands) {
    OpOperand *operand = op.findMaskOperand(which);
    if (operand && isNumber(*operand, number))
      return diffattn::getAxisRoles(which);
  }
  return std::nullopt;
}

/// The axes of a number of each row of a map.
static Axes rowAxes() { return {Kind::Batch, Kind::Head, Kind::Query}; }

static Axes lambdaAxes(Value lambda) {
  switch (cast<ShapedType>(lambda.getType()).getRank()) {
  case 0:
    return {};
  case 1:
    return {Kind::Head};
  default:
    return {Kind::Batch, Kind::Query, Kind::Head};
  }
}

/// The axes of operands that are used after the softmax.
static Axes getEndAxes(HeadEpilogueOpInterface op, unsigned number) {
  if (isNumber(op.getLambdaMutable(), number))
    return lambdaAxes(op.getLambda());
  if (isNumber(op.getNormWeightMutable(), number))
    return {Kind::Width};
  return headSplit(op.getOLayout(), Kind::Query); // gate, init, x
}

Axes AttentionOp::getAxisRoles(unsigned number) {
  if (std::optional<Axes> axes = getMapsAxes(*this, number))
    return *axes;
  if (isNumber(getSinkMutable(), number) || isNumber(getSink2Mutable(), number))
    return {Kind::Head};
  if (isNumber(getLse1Mutable(), number) || isNumber(getLse2Mutable(), number))
    return rowAxes();
  return getEndAxes(*this, number);
}

Axes AttentionBackwardOp::getAxisRoles(unsigned number) {
  // A gradient has the axes of the operand that it is of.
  for (const Gradient &gradient : getGradients())
    if (isNumber(*gradient.destination, number))
      return getAxisRoles(gradient.operand->getOperandNumber());
  if (std::optional<Axes> axes = getMapsAxes(*this, number))
    return *axes;
  if (isNumber(getLambdaMutable(), number))
    return lambdaAxes(getLambda());
  if (isNumber(getNormWeightMutable(), number))
    return {Kind::Width};
  if (isNumber(getLse1Mutable(), number) || isNumber(getLse2Mutable(), number))
    return rowAxes();
  return headSplit(getOLayout(), Kind::Query); // d_out, gate, x, o2
}

Axes FinalizeOp::getAxisRoles(unsigned number) {
  if (isNumber(getSinkMutable(), number) || isNumber(getSink2Mutable(), number))
    return {Kind::Head};
  if (isNumber(getLse1Mutable(), number) || isNumber(getLse2Mutable(), number))
    return rowAxes();
  return getEndAxes(*this, number);
}

Axes OnlineAttentionOp::getAxisRoles(unsigned number) {
  if (std::optional<Axes> axes = getMapsAxes(*this, number))
    return *axes;
  if (isNumber(getKOffsetMutable(), number))
    return {};
  // With ranges of keys a state has an axis more in front.
  const unsigned ranges = getKvSplitSize() ? 1 : 0;
  Axes state(ranges, Kind::Range);
  state.append(rowAxes());
  if (getShaped(getOperand(number)).getRank() == ranges + 4)
    state.push_back(Kind::Width);
  return state;
}
