//===- Masks.cpp - the kinds of masks -------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapeChecks.h"

#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mlir::diffattn;

//===----------------------------------------------------------------------===//
// Builders
//===----------------------------------------------------------------------===//

MaskBuilder::~MaskBuilder() = default;

MaskValue MaskBuilder::bothIfAny(MaskValue a, MaskValue b) {
  return a && b ? both(a, b) : a ? a : b;
}
MaskValue MaskBuilder::eitherIfAny(MaskValue a, MaskValue b) {
  return a && b ? either(a, b) : a ? a : b;
}
MaskValue MaskBuilder::minIfAny(MaskValue a, MaskValue b) {
  return a && b ? min(a, b) : a ? a : b;
}
MaskValue MaskBuilder::maxIfAny(MaskValue a, MaskValue b) {
  return a && b ? max(a, b) : a ? a : b;
}

MaskValue MaskBuilder::lowest(MaskOperand operand, const MaskTile &tile) {
  llvm_unreachable("this builder is not asked for tiles");
}
MaskValue MaskBuilder::highest(MaskOperand operand, const MaskTile &tile) {
  llvm_unreachable("this builder is not asked for tiles");
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
  // A single query has one range: its bounds are computed once.
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

/// The range of a mask that depends on its elements: unbounded.
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
// Segments
//===----------------------------------------------------------------------===//

SmallVector<MaskOperand> SegmentMaskAttr::getMaskOperands() const {
  return {MaskOperand::QSegments, MaskOperand::KvSegments};
}

VisibleRange SegmentMaskAttr::getVisibleRange(MaskBuilder &b,
                                              const MaskTile &tile) const {
  return getUnknownRange();
}

bool SegmentMaskAttr::hasTileRelation() const { return true; }

/// No pair is of one segment if the ranges of segments are disjoint; all pairs
/// are if both tiles have one segment.
TileRelation SegmentMaskAttr::getTileRelation(MaskBuilder &b,
                                              const MaskTile &queries,
                                              const MaskTile &keys) const {
  MaskValue queryLow = b.lowest(MaskOperand::QSegments, queries),
            queryHigh = b.highest(MaskOperand::QSegments, queries),
            keyLow = b.lowest(MaskOperand::KvSegments, keys),
            keyHigh = b.highest(MaskOperand::KvSegments, keys);
  return {b.either(b.less(queryHigh, keyLow), b.less(keyHigh, queryLow)),
          b.both(b.equal(queryLow, keyHigh), b.equal(queryHigh, keyLow))};
}

MaskValue SegmentMaskAttr::isVisible(MaskBuilder &b,
                                     const MaskPoint &point) const {
  return b.equal(b.load(MaskOperand::QSegments, point),
                 b.load(MaskOperand::KvSegments, point));
}

//===----------------------------------------------------------------------===//
// The masks of an op
//===----------------------------------------------------------------------===//

SmallVector<MaskAttrInterface> diffattn::detail::getMasks(Operation *maps) {
  auto op = cast<DifferentialMapsOpInterface>(maps);
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
  if (op.getQSegments())
    masks.push_back(SegmentMaskAttr::get(context));
  if (Value bias = op.getBias()) {
    if (getElementTypeOrSelf(bias.getType()).isInteger(1))
      masks.push_back(BooleanMaskAttr::get(context));
    else
      masks.push_back(AdditiveBiasAttr::get(context));
  }
  return masks;
}

OpOperand *diffattn::detail::findMaskOperand(Operation *maps,
                                             MaskOperand operand) {
  auto op = cast<DifferentialMapsOpInterface>(maps);
  auto getRange = [&]() -> MutableOperandRange {
    switch (operand) {
#define MASK_ELEMENTS(Name, text, axes, mayBroadcast)                          \
  case MaskOperand::Name:                                                      \
    return op.get##Name##Mutable();
#define MASK_POSITION(Name, text, axes) MASK_ELEMENTS(Name, text, axes, false)
#include "DiffAttn/IR/MaskOperands.def"
    }
    llvm_unreachable("unknown operand of a mask");
  };
  MutableOperandRange range = getRange();
  return range.empty() ? nullptr : &range[0];
}

namespace {
/// A row of MaskOperands.def.
struct MaskOperandRow {
  StringLiteral name, axes;
  bool mayBroadcast;
};
} // namespace

static constexpr MaskOperandRow kRows[] = {
#define MASK_POSITION(Name, text, axes) {text, #axes, false},
#define MASK_ELEMENTS(Name, text, axes, mayBroadcast)                          \
  {text, #axes, mayBroadcast},
#include "DiffAttn/IR/MaskOperands.def"
};

static const MaskOperandRow &getRow(MaskOperand operand) {
  return kRows[static_cast<unsigned>(operand)];
}

static AxisRole::Kind getKind(char axis) {
  switch (axis) {
  case 'B':
    return AxisRole::Batch;
  case 'H':
    return AxisRole::Head;
  case 'Q':
    return AxisRole::Query;
  case 'K':
    return AxisRole::Key;
  }
  llvm_unreachable("an axis of MaskOperands.def that counts nothing known");
}

SmallVector<AxisRole> mlir::diffattn::getAxisRoles(MaskOperand operand) {
  const MaskOperandRow &row = getRow(operand);
  return llvm::map_to_vector(row.axes, [&](char axis) {
    AxisRole::Kind kind = getKind(axis);
    return AxisRole(kind, row.mayBroadcast && kind != AxisRole::Key);
  });
}

static StringRef getName(MaskOperand operand) { return getRow(operand).name; }

LogicalResult diffattn::verifyMaskOperands(
    ShapeRules rules, const MapInputs &inputs,
    function_ref<OpOperand *(MaskOperand)> findOperand) {
  for (MaskOperand which : kMaskOperands) {
    OpOperand *use = findOperand(which);
    if (!use)
      continue;
    NamedOperand operand{getName(which), use->get()};
    if (which == MaskOperand::Bias) {
      // attention_c12, online_attention_c11
      if (failed(verifyBias(rules, operand, inputs)))
        return failure();
      continue;
    }
    // attention_c15, attention_c22, online_attention_c12, online_attention_c18
    SmallVector<AxisRole> roles = getAxisRoles(which);
    if (failed(verifyRank(rules, operand, roles.size())))
      return failure();
    for (auto [axis, role] : llvm::enumerate(roles)) {
      const bool isBatch = role.kind == AxisRole::Batch,
                 isKey = role.kind == AxisRole::Key;
      if (isBatch && inputs.isPacked) // verifySequences
        continue;
      int64_t of = isBatch ? 0
                   : isKey ? AttentionOp::lengthAxis(inputs.kLayout)
                           : AttentionOp::lengthAxis(inputs.qLayout);
      if (failed(verifySame(rules, isBatch ? "batches" : "lengths",
                            isKey ? inputs.k1 : inputs.q1, of, operand, axis)))
        return failure();
    }
  }
  // attention_c23, online_attention_c19
  OpOperand *ofQueries = findOperand(MaskOperand::QSegments),
            *ofKeys = findOperand(MaskOperand::KvSegments);
  if (!ofQueries != !ofKeys)
    return rules.error()
           << "expected q_segments and kv_segments together, but got only "
           << getName(ofQueries ? MaskOperand::QSegments
                                : MaskOperand::KvSegments);
  if (!ofQueries)
    return success();
  return verifySameElementType(
      rules, {{getName(MaskOperand::QSegments), ofQueries->get()},
              {getName(MaskOperand::KvSegments), ofKeys->get()}});
}

TileRelation mlir::diffattn::getTileRelation(MaskBuilder &b,
                                             ArrayRef<MaskAttrInterface> masks,
                                             const MaskTile &queries,
                                             const MaskTile &keys) {
  TileRelation relation;
  for (MaskAttrInterface mask : masks) {
    if (!mask.hasTileRelation())
      continue;
    TileRelation one = mask.getTileRelation(b, queries, keys);
    relation.none = b.eitherIfAny(relation.none, one.none);
    relation.all = b.bothIfAny(relation.all, one.all);
  }
  return relation;
}

bool mlir::diffattn::readPosition(ArrayRef<MaskAttrInterface> masks) {
  return llvm::any_of(masks, [](MaskAttrInterface mask) {
    return llvm::is_contained(mask.getMaskOperands(), MaskOperand::QOffset);
  });
}
