//===- ShapeChecks.cpp - labelled checks of shapes and numbers ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapeChecks.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn;

/// A size as a diagnostic prints it.
static std::string text(int64_t size) {
  return ShapedType::isDynamic(size) ? "?" : std::to_string(size);
}

static std::string shapeText(NamedOperand operand) {
  std::string result = "[";
  for (auto [i, size] : llvm::enumerate(operand.type().getShape()))
    result += (i ? ", " : "") + text(size);
  return result + "]";
}

/// Whether two sizes agree as far as they are known.
static bool agree(int64_t a, int64_t b) {
  return ShapedType::isDynamic(a) || ShapedType::isDynamic(b) || a == b;
}

static bool isDynamic(NamedAxis axis) {
  return ShapedType::isDynamic(axis.size());
}

void ShapeRules::leaveOpen(SizeRelation::Kind kind, NamedAxis subject,
                           ArrayRef<NamedAxis> others, bool orOne,
                           int64_t number) const {
  if (!open)
    return;
  SizeRelation relation{
      kind, {subject.operand.value, subject.axis}, {}, orOne, number};
  for (NamedAxis other : others)
    relation.others.push_back({other.operand.value, other.axis});
  open->push_back(std::move(relation));
}

/// Whether `subject` is one of `others`, or 1 if `orOne`. If dynamic sizes
/// leave that open, it becomes a relation to check at run time.
static bool isOneOf(ShapeRules rules, NamedAxis subject,
                    ArrayRef<NamedAxis> others, bool orOne = false) {
  bool fits = orOne && subject.size() == 1;
  bool known = fits;
  for (NamedAxis other : others) {
    fits |= agree(subject.size(), other.size());
    known |= !isDynamic(subject) && subject.size() == other.size();
  }
  if (fits && !known)
    rules.leaveOpen(SizeRelation::Kind::Equal, subject, others, orOne);
  return fits;
}

LogicalResult diffattn::verifyDestinationForm(DestinationStyleOpInterface op) {
  bool onTensors = isa<TensorType>(op.getDpsInits().front().getType());
  for (Value operand : op->getOperands())
    if (isa<ShapedType>(operand.getType()) &&
        isa<TensorType>(operand.getType()) != onTensors)
      return op->emitOpError() << "expected operands that are all tensors or "
                                  "all memrefs, but got "
                               << operand.getType() << " and "
                               << op.getDpsInits().front().getType();
  // The number and types of results are checked by the destination-style
  // interface.
  return success();
}

LogicalResult diffattn::verifyRank(ShapeRules rules, NamedOperand operand,
                                   int64_t rank) {
  if (operand.type().getRank() != rank)
    return rules.error() << "expected " << operand.name << " of rank " << rank
                         << ", but got " << operand.type();
  return success();
}

LogicalResult diffattn::verifyPositive(ShapeRules rules, StringRef what,
                                       NamedOperand operand, int64_t axis) {
  if (operand.size(axis) == 0)
    return rules.error() << "expected a positive " << what << " of "
                         << operand.name << ", but got 0";
  if (isDynamic({operand, axis}))
    rules.leaveOpen(SizeRelation::Kind::AtLeast, {operand, axis});
  return success();
}

LogicalResult diffattn::verifyWithin(ShapeRules rules, StringRef what,
                                     NamedOperand operand, int64_t axis,
                                     int64_t least, int64_t most) {
  using Kind = SizeRelation::Kind;
  const int64_t size = operand.size(axis);
  auto verify = [&](Kind kind, int64_t bound, bool holds) -> LogicalResult {
    if (bound == 0 || (!isDynamic({operand, axis}) && holds))
      return success();
    if (!isDynamic({operand, axis}))
      return rules.error() << "expected at "
                           << (kind == Kind::AtMost ? "most " : "least ")
                           << bound << " " << what << ", but got " << size;
    rules.leaveOpen(kind, {operand, axis}, {}, /*orOne=*/false, bound);
    return success();
  };
  if (failed(verify(Kind::AtLeast, least, size >= least)))
    return failure();
  return verify(Kind::AtMost, most, size <= most);
}

LogicalResult diffattn::verifyStatic(ShapeRules rules, StringRef what,
                                     NamedOperand operand, int64_t axis) {
  int64_t size = operand.size(axis);
  if (ShapedType::isDynamic(size) || size < 1)
    return rules.error() << "expected a static, positive " << what << " of "
                         << operand.name << ", but got " << text(size);
  return success();
}

LogicalResult diffattn::verifySame(ShapeRules rules, StringRef what,
                                   NamedOperand a, int64_t i, NamedOperand b,
                                   int64_t j) {
  if (!isOneOf(rules, {b, j}, {{a, i}}))
    return rules.error() << "expected " << what << " of " << a.name << " and "
                         << b.name << " to match, but got " << a.size(i)
                         << " and " << b.size(j);
  return success();
}

LogicalResult diffattn::verifySameElementType(ShapeRules rules,
                                              ArrayRef<NamedOperand> operands) {
  Type first = operands.front().type().getElementType();
  for (NamedOperand operand : onlyGiven(operands))
    if (operand.type().getElementType() != first)
      return rules.error() << "expected element type of " << operand.name
                           << " to be that of " << operands.front().name << ", "
                           << first << ", but got "
                           << operand.type().getElementType();
  return success();
}

LogicalResult diffattn::verifyDivides(ShapeRules rules, NamedAxis part,
                                      NamedAxis whole) {
  if (isDynamic(part) || isDynamic(whole)) {
    if (part.size() != 1)
      rules.leaveOpen(SizeRelation::Kind::Divides, part, whole);
    return success();
  }
  if (whole.size() % part.size() != 0)
    return rules.error() << "expected heads of " << part.operand.name
                         << " to divide heads of " << whole.operand.name
                         << ", but got " << part.size() << " and "
                         << whole.size();
  return success();
}

LogicalResult diffattn::verifyCovers(ShapeRules rules, NamedAxis ranges,
                                     int64_t size, NamedAxis whole) {
  if (isDynamic(ranges) || isDynamic(whole)) {
    rules.leaveOpen(SizeRelation::Kind::Covers, ranges, whole, /*orOne=*/false,
                    size);
    return success();
  }
  const int64_t least = llvm::divideCeil(whole.size(), size);
  if (ranges.size() < least)
    return rules.error() << "expected at least " << least << " ranges of "
                         << size << " keys of " << ranges.operand.name
                         << ", but got " << ranges.size();
  return success();
}

LogicalResult diffattn::verifyAllOrNone(ShapeRules rules,
                                        ArrayRef<NamedOperand> ofMap2) {
  auto listNames = [&](bool given) {
    SmallVector<StringRef> names;
    for (NamedOperand operand : ofMap2)
      if (static_cast<bool>(operand.value) == given)
        names.push_back(operand.name);
    return llvm::join(names, ", ");
  };
  const std::string given = listNames(true), absent = listNames(false);
  if (given.empty() || absent.empty())
    return success();
  return rules.error() << "expected all or none of the operands of map 2, "
                          "but got "
                       << given << " without " << absent;
}

LogicalResult diffattn::verifyMaps(DifferentialMapsOpInterface op,
                                   ShapeRules rules,
                                   std::optional<NamedOperand> lambda) {
  SmallVector<NamedOperand> ofMap2 = {{"q2", op.getQ2()}, {"k2", op.getK2()}};
  if (lambda)
    ofMap2.push_back(*lambda);
  return verifyAllOrNone(rules, ofMap2);
}

SmallVector<NamedOperand> diffattn::onlyGiven(ArrayRef<NamedOperand> operands) {
  return llvm::filter_to_vector(operands, [](const NamedOperand &operand) {
    return static_cast<bool>(operand.value);
  });
}

LogicalResult diffattn::verifyDestinations(ShapeRules rules, StringRef what,
                                           size_t expected, size_t got) {
  if (got == expected)
    return success();
  return rules.error() << "expected " << expected << " " << what << ", but got "
                       << got;
}

LogicalResult diffattn::verifyOutputShape(ShapeRules rules, const MapInputs &in,
                                          Layout layout, NamedOperand operand) {
  if (failed(verifyRank(rules, operand, 4)) ||
      failed(verifySame(rules, "batches", in.q1, 0, operand, 0)) ||
      failed(verifySame(rules, "heads", in.q1,
                        AttentionOp::headAxis(in.qLayout), operand,
                        AttentionOp::headAxis(layout))) ||
      failed(verifySame(rules, "lengths", in.q1,
                        AttentionOp::lengthAxis(in.qLayout), operand,
                        AttentionOp::lengthAxis(layout))))
    return failure();
  return verifySame(rules, "widths", in.v, 3, operand, 3);
}

LogicalResult diffattn::verifyMapInputs(ShapeRules rules, const MapInputs &in) {
  int64_t qh = AttentionOp::headAxis(in.qLayout),
          qt = AttentionOp::lengthAxis(in.qLayout);
  int64_t kh = AttentionOp::headAxis(in.kLayout),
          kt = AttentionOp::lengthAxis(in.kLayout);
  int64_t vh = AttentionOp::headAxis(in.vLayout),
          vt = AttentionOp::lengthAxis(in.vLayout);
  const SmallVector<NamedOperand> all =
      onlyGiven({in.q1, in.k1, in.q2, in.k2, in.v});
  // c3
  for (NamedOperand operand : all)
    if (failed(verifyRank(rules, operand, 4)))
      return failure();
  // c4
  for (auto [operand, axis] : {std::pair{in.q1, qh},
                               {in.k1, kh},
                               {in.q2, qh},
                               {in.k2, kh},
                               {in.v, vh}})
    if (operand.value &&
        failed(in.staticHeads
                   ? verifyStatic(rules, "number of heads", operand, axis)
                   : verifyPositive(rules, "number of heads", operand, axis)))
      return failure();
  for (NamedOperand operand : all)
    if (failed(verifyPositive(rules, "width", operand, 3)))
      return failure();
  // c5
  for (NamedOperand operand : ArrayRef(all).drop_front())
    if ((!in.isPaged || operand.value == in.q2.value) &&
        failed(verifySame(rules, "batches", in.q1, 0, operand, 0)))
      return failure();
  for (NamedOperand operand : onlyGiven({in.k2, in.v}))
    if (in.isPaged &&
        failed(verifySame(rules, "numbers of pages", in.k1, 0, operand, 0)))
      return failure();
  // c6
  if (in.q2.value && failed(verifySame(rules, "lengths", in.q1, qt, in.q2, qt)))
    return failure();
  // c7
  if ((in.k2.value &&
       failed(verifySame(rules, "lengths", in.k1, kt, in.k2, kt))) ||
      failed(verifySame(rules, "lengths", in.k1, kt, in.v, vt)))
    return failure();
  // c8
  for (NamedOperand operand : onlyGiven({in.k1, in.q2, in.k2}))
    if (failed(verifySame(rules, "widths", in.q1, 3, operand, 3)))
      return failure();
  // c9
  NamedAxis signal{in.q1, qh}, noise{in.q2, qh};
  if ((in.q2.value && failed(verifyDivides(rules, noise, signal))) ||
      failed(verifyDivides(rules, {in.k1, kh}, signal)) ||
      (in.k2.value && failed(verifyDivides(rules, {in.k2, kh}, noise))) ||
      failed(verifyDivides(rules, {in.v, vh}, signal)))
    return failure();
  return success();
}

LogicalResult diffattn::verifyLambda(ShapeRules rules, NamedOperand lambda,
                                     NamedOperand rows, int64_t b, int64_t t,
                                     NamedAxis signal, NamedAxis noise) {
  int64_t rank = lambda.type().getRank();
  bool fits = rank == 0;
  if (rank == 1)
    fits = isOneOf(rules, {lambda, 0}, signal);
  else if (rank == 3)
    fits = isOneOf(rules, {lambda, 0}, {{rows, b}}) &&
           isOneOf(rules, {lambda, 1}, {{rows, t}}) &&
           isOneOf(rules, {lambda, 2}, {signal, noise});
  if (fits)
    return success();
  std::string batchAndLength =
      text(rows.size(b)) + ", " + text(rows.size(t)) + ", ";
  return rules.error() << "expected lambda of shape [], ["
                       << text(signal.size()) << "], [" << batchAndLength
                       << text(signal.size()) << "] or [" << batchAndLength
                       << text(noise.size()) << "], but got "
                       << shapeText(lambda);
}

LogicalResult diffattn::verifyBias(ShapeRules rules, NamedOperand bias,
                                   const MapInputs &in) {
  if (failed(verifyRank(rules, bias, 4)))
    return failure();
  const NamedAxis axes[] = {
      {in.q1, 0},
      {in.q2.value ? in.q2 : in.q1, AttentionOp::headAxis(in.qLayout)},
      {in.q1, AttentionOp::lengthAxis(in.qLayout)},
      {in.k1, AttentionOp::lengthAxis(in.kLayout)}};
  bool fits = true;
  for (int64_t axis = 0; axis < 4; ++axis)
    fits &= isOneOf(rules, {bias, axis}, axes[axis], /*orOne=*/axis < 3);
  if (fits)
    return success();
  return rules.error() << "expected bias of shape [1 or "
                       << text(axes[0].size()) << ", 1 or "
                       << text(axes[1].size()) << ", 1 or "
                       << text(axes[2].size()) << ", " << text(axes[3].size())
                       << "], but got " << shapeText(bias);
}

LogicalResult diffattn::verifyNormWeight(ShapeRules rules, NamedOperand weight,
                                         Norm norm, NamedOperand values) {
  if (!weight.value)
    return success();
  if (failed(verifyRank(rules, weight, 1)) ||
      failed(verifySame(rules, "widths", values, 3, weight, 0)))
    return failure();
  if (norm == Norm::None)
    return rules.error()
           << "expected a norm where norm_weight is given, but got none";
  return success();
}

LogicalResult diffattn::verifyWindow(ShapeRules rules,
                                     std::optional<ArrayRef<int64_t>> window) {
  if (!window)
    return success();
  if (window->size() != 2)
    return rules.error() << "expected window of two numbers, but got "
                         << window->size();
  for (int64_t reach : *window)
    if (reach < -1)
      return rules.error()
             << "expected window of numbers that are at least -1, but got "
             << reach;
  return success();
}

LogicalResult diffattn::verifyNumber(ShapeRules rules, StringRef name,
                                     std::optional<APFloat> value,
                                     Least least) {
  if (!value)
    return success();
  bool fits = value->isFinite();
  StringRef expected = "finite";
  if (least == Least::Zero) {
    fits &= !value->isNegative() || value->isZero();
    expected = "finite and not negative";
  } else if (least == Least::AboveZero) {
    fits &= !value->isNegative() && !value->isZero();
    expected = "finite and positive";
  }
  if (fits)
    return success();
  SmallString<16> number;
  value->toString(number);
  return rules.error() << "expected " << name << " to be " << expected
                       << ", but got " << number;
}

LogicalResult diffattn::verifyScale(ShapeRules rules, const APFloat &scale) {
  if (failed(verifyNumber(rules, "scale", scale)))
    return failure();
  if (std::fabs(scale.convertToFloat()) <= kMaxScale)
    return success();
  SmallString<16> number;
  scale.toString(number);
  return rules.error()
         << "expected scale to be at most 2^64 in magnitude, but got "
         << number;
}

void diffattn::addMemRefEffects(
    DestinationStyleOpInterface op, bool readsInits,
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  for (OpOperand &operand : op->getOpOperands()) {
    if (!isa<MemRefType>(operand.get().getType()))
      continue;
    bool isInit = op.isDpsInit(&operand);
    if (!isInit || readsInits)
      effects.emplace_back(MemoryEffects::Read::get(), &operand);
    if (isInit)
      effects.emplace_back(MemoryEffects::Write::get(), &operand);
  }
}

LogicalResult diffattn::reifyInitShapes(DestinationStyleOpInterface op,
                                        OpBuilder &builder,
                                        ReifiedRankedShapedTypeDims &dims) {
  if (op->getNumResults() == 0)
    return failure();
  for (Value init : op.getDpsInits())
    dims.push_back(tensor::getMixedSizes(builder, op.getLoc(), init));
  return success();
}

SmallVector<SizeRelation> diffattn::getDynamicSizeRelations(Operation *op) {
  SmallVector<SizeRelation> open;
  // The op has been verified: all that is static holds.
  llvm::TypeSwitch<Operation *>(op)
      .Case<AttentionOp, AttentionBackwardOp, OnlineAttentionOp, MergeOp,
            FinalizeOp, GatedGemmOp, GemmOp, QuantizedGemmOp>(
          [&](auto typed) { (void)verifyRules(typed, {op, &open}); });
  return open;
}
