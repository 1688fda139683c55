//===- Masks.cpp - the kinds of masks -------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

using namespace mlir;
using namespace mlir::diffattn;

//===----------------------------------------------------------------------===//
// Builders
//===----------------------------------------------------------------------===//

MaskBuilder::~MaskBuilder() = default;

MaskValue MaskBuilder::bothIfAny(MaskValue a, MaskValue b) {
  return a && b ? both(a, b) : a ? a : b;
}
MaskValue MaskBuilder::minIfAny(MaskValue a, MaskValue b) {
  return a && b ? min(a, b) : a ? a : b;
}
MaskValue MaskBuilder::maxIfAny(MaskValue a, MaskValue b) {
  return a && b ? max(a, b) : a ? a : b;
}

VisibleRange mlir::diffattn::getRangeOfReach(MaskBuilder &b,
                                             const KeyReach &reach,
                                             const MaskTile &tile) {
  // A later query sees neither an earlier key on the left nor fewer on the
  // right.
  const bool isRow = tile.first == tile.last;
  VisibleRange range;
  if (reach.left) {
    range.begin = b.keyBefore(tile.first, *reach.left);
    range.wholeBegin =
        isRow ? range.begin : b.keyBefore(tile.last, *reach.left);
  }
  if (reach.right) {
    range.end = b.endAfter(tile.last, *reach.right);
    range.wholeEnd = isRow ? range.end : b.endAfter(tile.first, *reach.right);
  }
  return range;
}

VisibleRange mlir::diffattn::intersect(MaskBuilder &b, const VisibleRange &x,
                                       const VisibleRange &y) {
  VisibleRange range;
  range.begin = b.maxIfAny(x.begin, y.begin);
  range.end = b.minIfAny(x.end, y.end);
  range.knowsWhole = x.knowsWhole && y.knowsWhole;
  if (!range.knowsWhole)
    return range;
  // Of one query, both ranges are the same.
  const bool isBegin = x.wholeBegin == x.begin && y.wholeBegin == y.begin,
             isEnd = x.wholeEnd == x.end && y.wholeEnd == y.end;
  range.wholeBegin =
      isBegin ? range.begin : b.maxIfAny(x.wholeBegin, y.wholeBegin);
  range.wholeEnd = isEnd ? range.end : b.minIfAny(x.wholeEnd, y.wholeEnd);
  return range;
}

//===----------------------------------------------------------------------===//
// Length
//===----------------------------------------------------------------------===//

SmallVector<MaskOperand> LengthMaskAttr::getMaskOperands() const {
  return {MaskOperand::KvLen};
}

bool LengthMaskAttr::isInterval() const { return true; }

VisibleRange LengthMaskAttr::getVisibleRange(MaskBuilder &b,
                                             const MaskTile &tile) const {
  VisibleRange range;
  range.end = range.wholeEnd = b.length();
  return range;
}

MaskValue LengthMaskAttr::isVisible(MaskBuilder &b,
                                    const MaskPoint &point) const {
  return b.less(point.key, b.length());
}

//===----------------------------------------------------------------------===//
// Positions
//===----------------------------------------------------------------------===//

/// Whether a key is within reach of a query's position.
static MaskValue isWithinReach(MaskBuilder &b, const KeyReach &reach,
                               const MaskPoint &point) {
  MaskValue right, left;
  if (reach.right)
    right = b.isWithinRight(point, *reach.right);
  if (reach.left)
    left = b.isWithinLeft(point, *reach.left);
  return b.bothIfAny(right, left);
}

SmallVector<MaskOperand> CausalMaskAttr::getMaskOperands() const {
  return {MaskOperand::QOffset, MaskOperand::KvLen};
}

KeyReach CausalMaskAttr::getReach() const { return {std::nullopt, 0}; }

bool CausalMaskAttr::isInterval() const { return true; }

VisibleRange CausalMaskAttr::getVisibleRange(MaskBuilder &b,
                                             const MaskTile &tile) const {
  return getRangeOfReach(b, getReach(), tile);
}

MaskValue CausalMaskAttr::isVisible(MaskBuilder &b,
                                    const MaskPoint &point) const {
  return isWithinReach(b, getReach(), point);
}

SmallVector<MaskOperand> WindowMaskAttr::getMaskOperands() const {
  return {MaskOperand::QOffset, MaskOperand::KvLen};
}

KeyReach WindowMaskAttr::getReach() const {
  KeyReach reach;
  if (getLeft() >= 0)
    reach.left = getLeft();
  if (getRight() >= 0)
    reach.right = getRight();
  return reach;
}

bool WindowMaskAttr::isInterval() const { return true; }

VisibleRange WindowMaskAttr::getVisibleRange(MaskBuilder &b,
                                             const MaskTile &tile) const {
  return getRangeOfReach(b, getReach(), tile);
}

MaskValue WindowMaskAttr::isVisible(MaskBuilder &b,
                                    const MaskPoint &point) const {
  return isWithinReach(b, getReach(), point);
}

//===----------------------------------------------------------------------===//
// Elements of the bias
//===----------------------------------------------------------------------===//

/// The range of a mask that only its elements know.
static VisibleRange getUnknownRange() {
  VisibleRange range;
  range.knowsWhole = false;
  return range;
}

SmallVector<MaskOperand> BooleanMaskAttr::getMaskOperands() const {
  return {MaskOperand::Bias};
}

VisibleRange BooleanMaskAttr::getVisibleRange(MaskBuilder &b,
                                              const MaskTile &tile) const {
  return getUnknownRange();
}

MaskValue BooleanMaskAttr::isVisible(MaskBuilder &b,
                                     const MaskPoint &point) const {
  return b.load(MaskOperand::Bias, point);
}

SmallVector<MaskOperand> AdditiveBiasAttr::getMaskOperands() const {
  return {MaskOperand::Bias};
}

VisibleRange AdditiveBiasAttr::getVisibleRange(MaskBuilder &b,
                                               const MaskTile &tile) const {
  return getUnknownRange();
}

MaskValue AdditiveBiasAttr::isVisible(MaskBuilder &b,
                                      const MaskPoint &point) const {
  return b.isNotMinusInfinity(b.load(MaskOperand::Bias, point));
}

bool AdditiveBiasAttr::hasScoreTerm() const { return true; }

MaskValue AdditiveBiasAttr::getScoreTerm(MaskBuilder &b,
                                         const MaskPoint &point) const {
  return b.load(MaskOperand::Bias, point);
}

//===----------------------------------------------------------------------===//
// The masks of an op
//===----------------------------------------------------------------------===//

template <typename Op>
static SmallVector<MaskAttrInterface> listMasks(Op op) {
  MLIRContext *context = op.getContext();
  SmallVector<MaskAttrInterface> masks;
  if (op.getKvLen())
    masks.push_back(LengthMaskAttr::get(context));
  if (op.getIsCausal())
    masks.push_back(CausalMaskAttr::get(context));
  if (std::optional<ArrayRef<int64_t>> window = op.getWindow()) {
    // Nothing after its position is left for a window to hide.
    int64_t left = (*window)[0], right = op.getIsCausal() ? -1 : (*window)[1];
    masks.push_back(WindowMaskAttr::get(context, left, right));
  }
  if (Value bias = op.getBias()) {
    if (getElementTypeOrSelf(bias.getType()).isInteger(1))
      masks.push_back(BooleanMaskAttr::get(context));
    else
      masks.push_back(AdditiveBiasAttr::get(context));
  }
  return masks;
}

SmallVector<MaskAttrInterface> AttentionOp::getMasks() {
  return listMasks(*this);
}
SmallVector<MaskAttrInterface> OnlineAttentionOp::getMasks() {
  return listMasks(*this);
}

template <typename Op>
static OpOperand *lookUpOperand(Op op, MaskOperand operand) {
  auto getRange = [&]() -> MutableOperandRange {
    switch (operand) {
    case MaskOperand::Bias:
      return op.getBiasMutable();
    case MaskOperand::KvLen:
      return op.getKvLenMutable();
    case MaskOperand::QOffset:
      return op.getQOffsetMutable();
    }
    llvm_unreachable("unknown operand of a mask");
  };
  MutableOperandRange range = getRange();
  return range.empty() ? nullptr : &range[0];
}

OpOperand *AttentionOp::findMaskOperand(MaskOperand operand) {
  return lookUpOperand(*this, operand);
}
OpOperand *OnlineAttentionOp::findMaskOperand(MaskOperand operand) {
  return lookUpOperand(*this, operand);
}

bool mlir::diffattn::readPosition(ArrayRef<MaskAttrInterface> masks) {
  return llvm::any_of(masks, [](MaskAttrInterface mask) {
    return llvm::is_contained(mask.getMaskOperands(), MaskOperand::QOffset);
  });
}
