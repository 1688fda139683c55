//===- ShapeChecks.cpp - labelled checks of shapes and numbers ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapeChecks.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"

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

LogicalResult diffattn::verifyRank(Operation *op, NamedOperand operand,
                                   int64_t rank) {
  if (operand.type().getRank() != rank)
    return op->emitOpError() << "expected " << operand.name << " of rank "
                             << rank << ", but got " << operand.type();
  return success();
}

LogicalResult diffattn::verifyPositive(Operation *op, StringRef what,
                                       NamedOperand operand, int64_t axis) {
  if (operand.size(axis) == 0)
    return op->emitOpError() << "expected a positive " << what << " of "
                             << operand.name << ", but got 0";
  return success();
}

LogicalResult diffattn::verifyStatic(Operation *op, StringRef what,
                                     NamedOperand operand, int64_t axis) {
  int64_t size = operand.size(axis);
  if (ShapedType::isDynamic(size) || size < 1)
    return op->emitOpError() << "expected a static, positive " << what << " of "
                             << operand.name << ", but got " << text(size);
  return success();
}

LogicalResult diffattn::verifySame(Operation *op, StringRef what,
                                   NamedOperand a, int64_t i, NamedOperand b,
                                   int64_t j) {
  if (!agree(a.size(i), b.size(j)))
    return op->emitOpError()
           << "expected " << what << " of " << a.name << " and " << b.name
           << " to match, but got " << a.size(i) << " and " << b.size(j);
  return success();
}

LogicalResult diffattn::verifySameElementType(Operation *op,
                                              ArrayRef<NamedOperand> operands) {
  Type first = operands.front().type().getElementType();
  for (NamedOperand operand : operands)
    if (operand.type().getElementType() != first)
      return op->emitOpError()
             << "expected element type of " << operand.name << " to be that of "
             << operands.front().name << ", " << first << ", but got "
             << operand.type().getElementType();
  return success();
}

LogicalResult diffattn::verifyDivides(Operation *op, StringRef partName,
                                      int64_t part, StringRef wholeName,
                                      int64_t whole) {
  if (ShapedType::isStatic(whole) && ShapedType::isStatic(part) &&
      whole % part != 0)
    return op->emitOpError()
           << "expected heads of " << partName << " to divide heads of "
           << wholeName << ", but got " << part << " and " << whole;
  return success();
}

LogicalResult diffattn::verifyMapInputs(Operation *op, const MapInputs &in) {
  int64_t qh = AttentionOp::headAxis(in.qLayout),
          qt = AttentionOp::lengthAxis(in.qLayout);
  int64_t kh = AttentionOp::headAxis(in.kLayout),
          kt = AttentionOp::lengthAxis(in.kLayout);
  int64_t vh = AttentionOp::headAxis(in.vLayout),
          vt = AttentionOp::lengthAxis(in.vLayout);
  // c3
  for (NamedOperand operand : {in.q1, in.k1, in.q2, in.k2, in.v})
    if (failed(verifyRank(op, operand, 4)))
      return failure();
  // c4
  for (auto [operand, axis] : {std::pair{in.q1, qh},
                               {in.k1, kh},
                               {in.q2, qh},
                               {in.k2, kh},
                               {in.v, vh}})
    if (failed(in.staticHeads
                   ? verifyStatic(op, "number of heads", operand, axis)
                   : verifyPositive(op, "number of heads", operand, axis)))
      return failure();
  for (NamedOperand operand : {in.q1, in.k1, in.q2, in.k2, in.v})
    if (failed(verifyPositive(op, "width", operand, 3)))
      return failure();
  // c5
  for (NamedOperand operand : {in.k1, in.q2, in.k2, in.v})
    if (failed(verifySame(op, "batches", in.q1, 0, operand, 0)))
      return failure();
  // c6
  if (failed(verifySame(op, "lengths", in.q1, qt, in.q2, qt)))
    return failure();
  // c7
  if (failed(verifySame(op, "lengths", in.k1, kt, in.k2, kt)) ||
      failed(verifySame(op, "lengths", in.k1, kt, in.v, vt)))
    return failure();
  // c8
  for (NamedOperand operand : {in.k1, in.q2, in.k2})
    if (failed(verifySame(op, "widths", in.q1, 3, operand, 3)))
      return failure();
  // c9
  if (failed(verifyDivides(op, "q2", in.q2.size(qh), "q1", in.q1.size(qh))) ||
      failed(verifyDivides(op, "k1", in.k1.size(kh), "q1", in.q1.size(qh))) ||
      failed(verifyDivides(op, "k2", in.k2.size(kh), "q2", in.q2.size(qh))) ||
      failed(verifyDivides(op, "v", in.v.size(vh), "q1", in.q1.size(qh))))
    return failure();
  return success();
}

LogicalResult diffattn::verifyLambda(Operation *op, NamedOperand lambda,
                                     NamedOperand rows, int64_t b, int64_t t,
                                     int64_t signalHeads, int64_t noiseHeads) {
  int64_t rank = lambda.type().getRank();
  bool fits = rank == 0;
  if (rank == 1)
    fits = agree(lambda.size(0), signalHeads);
  else if (rank == 3)
    fits = agree(lambda.size(0), rows.size(b)) &&
           agree(lambda.size(1), rows.size(t)) &&
           (agree(lambda.size(2), signalHeads) ||
            agree(lambda.size(2), noiseHeads));
  if (fits)
    return success();
  std::string batchAndLength =
      text(rows.size(b)) + ", " + text(rows.size(t)) + ", ";
  return op->emitOpError() << "expected lambda of shape [], [" << signalHeads
                           << "], [" << batchAndLength << text(signalHeads)
                           << "] or [" << batchAndLength << text(noiseHeads)
                           << "], but got " << shapeText(lambda);
}

LogicalResult diffattn::verifyBias(Operation *op, NamedOperand bias,
                                   const MapInputs &in) {
  if (!bias.value)
    return success();
  if (failed(verifyRank(op, bias, 4)))
    return failure();
  int64_t sizes[] = {in.q1.size(0),
                     in.q2.size(AttentionOp::headAxis(in.qLayout)),
                     in.q1.size(AttentionOp::lengthAxis(in.qLayout)),
                     in.k1.size(AttentionOp::lengthAxis(in.kLayout))};
  bool fits = agree(bias.size(3), sizes[3]);
  for (int64_t axis = 0; axis < 3; ++axis)
    fits &= bias.size(axis) == 1 || agree(bias.size(axis), sizes[axis]);
  if (fits)
    return success();
  return op->emitOpError() << "expected bias of shape [1 or " << text(sizes[0])
                           << ", 1 or " << text(sizes[1]) << ", 1 or "
                           << text(sizes[2]) << ", " << text(sizes[3])
                           << "], but got " << shapeText(bias);
}

LogicalResult diffattn::verifyPerBatch(Operation *op, NamedOperand operand,
                                       NamedOperand rows) {
  if (!operand.value)
    return success();
  if (failed(verifyRank(op, operand, 1)))
    return failure();
  return verifySame(op, "batches", rows, 0, operand, 0);
}

LogicalResult diffattn::verifyNormWeight(Operation *op, NamedOperand weight,
                                         Norm norm, NamedOperand values) {
  if (!weight.value)
    return success();
  if (failed(verifyRank(op, weight, 1)) ||
      failed(verifySame(op, "widths", values, 3, weight, 0)))
    return failure();
  if (norm == Norm::None)
    return op->emitOpError()
           << "expected a norm where norm_weight is given, but got none";
  return success();
}

LogicalResult diffattn::verifyWindow(Operation *op,
                                     std::optional<ArrayRef<int64_t>> window) {
  if (!window)
    return success();
  if (window->size() != 2)
    return op->emitOpError()
           << "expected window of two numbers, but got " << window->size();
  for (int64_t reach : *window)
    if (reach < -1)
      return op->emitOpError()
             << "expected window of numbers that are at least -1, but got "
             << reach;
  return success();
}

LogicalResult diffattn::verifyNumber(Operation *op, StringRef name,
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
  return op->emitOpError() << "expected " << name << " to be " << expected
                           << ", but got " << number;
}

LogicalResult diffattn::verifyScale(Operation *op, const APFloat &scale) {
  if (failed(verifyNumber(op, "scale", scale)))
    return failure();
  if (std::fabs(scale.convertToFloat()) <= kMaxScale)
    return success();
  SmallString<16> number;
  scale.toString(number);
  return op->emitOpError()
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
