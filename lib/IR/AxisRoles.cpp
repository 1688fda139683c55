//===- AxisRoles.cpp - what the axes of operands count --------------------===//
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

/// The axes of what both ops have in common; none for other operands.
template <typename Op>
static std::optional<Axes> getMapsAxes(Op op, unsigned number) {
  if (isNumber(op.getQ1Mutable(), number) ||
      isNumber(op.getQ2Mutable(), number))
    return headSplit(op.getQLayout(), Kind::Query);
  if (isNumber(op.getK1Mutable(), number) ||
      isNumber(op.getK2Mutable(), number))
    return headSplit(op.getKLayout(), Kind::Key);
  if (isNumber(op.getVMutable(), number))
    return headSplit(op.getVLayout(), Kind::Key);
  for (MaskOperand which : kMaskOperands) {
    OpOperand *found = op.findMaskOperand(which);
    if (found && isNumber(*found, number))
      return diffattn::getAxisRoles(which);
  }
  return std::nullopt;
}

Axes AttentionOp::getAxisRoles(unsigned number) {
  if (std::optional<Axes> axes = getMapsAxes(*this, number))
    return *axes;
  if (isNumber(getLambdaMutable(), number))
    switch (getShaped(getLambda()).getRank()) {
    case 0:
      return {};
    case 1:
      return {Kind::Head};
    default:
      return {Kind::Batch, Kind::Query, Kind::Head};
    }
  if (isNumber(getNormWeightMutable(), number))
    return {Kind::Width};
  return headSplit(getOLayout(), Kind::Query); // gate, init
}

Axes OnlineAttentionOp::getAxisRoles(unsigned number) {
  if (std::optional<Axes> axes = getMapsAxes(*this, number))
    return *axes;
  if (isNumber(getKOffsetMutable(), number))
    return {};
  Axes state = {Kind::Batch, Kind::Head, Kind::Query};
  if (getShaped(getOperand(number)).getRank() == 4)
    state.push_back(Kind::Width);
  return state;
}
