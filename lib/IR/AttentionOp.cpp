//===- AttentionOp.cpp - diffattn.attention -------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapeChecks.h"
#include "TileSlices.h"

#include "DiffAttn/IR/ScheduleCases.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;
using namespace mlir::diffattn;

void mlir::diffattn::addOperandSegments(OpBuilder &builder,
                                        OperationState &state,
                                        ArrayRef<Value> operands,
                                        std::optional<ValueRange> list,
                                        ArrayRef<Value> behind) {
  SmallVector<int32_t> segments;
  auto add = [&](Value operand) {
    segments.push_back(operand ? 1 : 0);
    if (operand)
      state.addOperands(operand);
  };
  for (Value operand : operands)
    add(operand);
  if (list) {
    segments.push_back(list->size());
    state.addOperands(*list);
  }
  for (Value operand : behind)
    add(operand);
  state.addAttribute("operandSegmentSizes",
                     builder.getDenseI32ArrayAttr(segments));
}

void AttentionOp::build(OpBuilder &builder, OperationState &state, Value q1,
                        Value k1, Value q2, Value k2, Value v, Value lambda,
                        Value init, float scale, bool isCausal) {
  SmallVector<Type> results;
  if (isa<RankedTensorType>(init.getType()))
    results.push_back(init.getType());
  state.addTypes(results);
  // Operands between lambda and init are optional, and absent; so are other
  // destinations.
  SmallVector<Value> operands = {q1, k1, q2, k2, v, lambda};
  const SmallVector<Value> behind(4);
  operands.resize(Properties().getOperandSegmentSizes().size() - 1 -
                  behind.size());
  addOperandSegments(builder, state, operands, ValueRange(init), behind);
  state.addAttribute(getScaleAttrName(state.name),
                     builder.getF32FloatAttr(scale));
  if (isCausal)
    state.addAttribute(getIsCausalAttrName(state.name), builder.getUnitAttr());
}

RankedTensorType AttentionOp::inferResultType(ShapedType q1, ShapedType v,
                                              Layout qLayout, Layout oLayout) {
  SmallVector<int64_t> shape(4);
  shape[0] = q1.getDimSize(0);
  shape[headAxis(oLayout)] = q1.getDimSize(headAxis(qLayout));
  shape[lengthAxis(oLayout)] = q1.getDimSize(lengthAxis(qLayout));
  shape[3] = v.getDimSize(3);
  return RankedTensorType::get(shape, q1.getElementType());
}

MutableOperandRange AttentionOp::getDpsInitsMutable() {
  const unsigned first = getODSOperandIndexAndLength(odsIndex_inits).first;
  return MutableOperandRange(getOperation(), first,
                             getOperation()->getNumOperands() - first);
}

StringRef AttentionOp::getSumOperand() {
  return getSink()    ? "sink"
         : getSink2() ? "sink2"
         : getLse1()  ? "lse1"
         : getLse2()  ? "lse2"
                      : "";
}

StringRef AttentionOp::getSavedRows() {
  return getX() ? "x" : getO2() ? "o2" : "";
}

/// An op of one map has no attribute that belongs to a second one.
static LogicalResult verifyOneMap(AttentionOp op, ShapeRules rules) {
  if (op.hasSecondMap())
    return success();
  // attention_c34
  if (op.getIntegral())
    return rules.error() << "expected two maps with integral, but got one";
  if (op.getLambdaAct() != Activation::Identity)
    return rules.error()
           << "expected lambda_act with a lambda, but got one map";
  return success();
}

/// The mean over queries needs all of them, at any place, and the ops on states
/// that compute it need head counts and a width that are known.
static LogicalResult verifyIntegral(AttentionOp op, ShapeRules rules,
                                    const MapInputs &inputs) {
  if (!op.getIntegral())
    return success();
  // attention_c25
  const StringRef given = op.getIsCausal()    ? "is_causal"
                          : op.getWindow()    ? "a window"
                          : op.getQSegments() ? "segments"
                                              : "";
  if (!given.empty())
    return rules.error() << "expected no is_causal, window and segments with "
                            "integral, whose mean is over all queries, but got "
                         << given;
  // attention_c26
  const int64_t heads = AttentionOp::headAxis(op.getQLayout()),
                keyHeads = AttentionOp::headAxis(op.getKLayout()),
                valueHeads = AttentionOp::headAxis(op.getVLayout());
  for (auto [operand, axis] :
       {std::pair(inputs.q1, heads), std::pair(inputs.q2, heads),
        std::pair(inputs.k1, keyHeads), std::pair(inputs.k2, keyHeads),
        std::pair(inputs.v, valueHeads)})
    if (failed(verifyStatic(rules, "number of heads", operand, axis)))
      return failure();
  return verifyStatic(rules, "width", inputs.v, 3);
}

/// Checks the destinations of X and O2, which are saved for gradients.
static LogicalResult verifySaved(AttentionOp op, ShapeRules rules,
                                 const MapInputs &inputs) {
  // attention_c37
  if (op.getX() && op.getNorm() == Norm::None && !op.getGate())
    return rules.error() << "expected no x without a norm or a gate, because "
                            "it is the output then, but got one";
  // attention_c46
  if (op.getO2() && !op.hasSecondMap())
    return rules.error() << "expected two maps with o2, but got one";
  for (NamedOperand saved : onlyGiven({{"x", op.getX()}, {"o2", op.getO2()}})) {
    // attention_c38
    const StringRef given = op.getIntegral() ? "integral"
                            : op.isPaged()   ? "block_table"
                                             : "";
    if (!given.empty())
      return rules.error() << "expected no " << saved.name << " with " << given;
    // attention_c39
    Type element = saved.type().getElementType(),
         operands = inputs.q1.type().getElementType();
    if (element != operands && !element.isF32())
      return rules.error() << "expected element type of " << saved.name
                           << " to be that of q1, " << operands
                           << (operands.isF32() ? "" : ", or 'f32'")
                           << ", but got " << element;
    if (failed(verifyOutputShape(rules, inputs, op.getOLayout(), saved)))
      return failure();
  }
  return success();
}

/// Checks the terms of a row's sum that are no keys, and the destinations of
/// the logarithm of that sum.
static LogicalResult verifySums(AttentionOp op, ShapeRules rules,
                                const MapInputs &inputs) {
  const StringRef given = op.getSumOperand();
  // attention_c43
  if (!given.empty() && op.getIntegral())
    return rules.error() << "expected no " << given << " with integral";
  const int64_t heads = AttentionOp::headAxis(inputs.qLayout),
                length = AttentionOp::lengthAxis(inputs.qLayout);
  const Type element = inputs.q1.type().getElementType();
  // Map 1, and map 2, whose operands may be absent.
  const std::tuple<NamedOperand, NamedOperand, NamedOperand> ofMaps[] = {
      {inputs.q1, {"sink", op.getSink()}, {"lse1", op.getLse1()}},
      {inputs.q2, {"sink2", op.getSink2()}, {"lse2", op.getLse2()}}};
  for (auto [queries, sink, lse] : ofMaps) {
    // attention_c42
    for (NamedOperand operand : onlyGiven({sink, lse}))
      if (!queries.value)
        return rules.error()
               << "expected two maps with " << operand.name << ", but got one";
    // attention_c41
    if (sink.value) {
      const Type got = sink.type().getElementType();
      if (got != element && !got.isF32())
        return rules.error()
               << "expected element type of " << sink.name
               << " to be that of q1, " << element
               << (element.isF32() ? "" : ", or 'f32'") << ", but got " << got;
      if (failed(verifyRank(rules, sink, 1)) ||
          failed(verifySame(rules, "heads", queries, heads, sink, 0)))
        return failure();
    }
    // attention_c44
    if (!lse.value)
      continue;
    if (Type got = lse.type().getElementType(); !got.isF32())
      return rules.error() << "expected element type of " << lse.name
                           << " to be 'f32', but got " << got;
    if (failed(verifyRank(rules, lse, 3)) ||
        failed(verifySame(rules, "batches", queries, 0, lse, 0)) ||
        failed(verifySame(rules, "heads", queries, heads, lse, 1)) ||
        failed(verifySame(rules, "lengths", queries, length, lse, 2)))
      return failure();
  }
  return success();
}

/// Checks the bounds that the caller promised for sizes. Packed sequences and
/// pages cannot have any: no axis is their number of queries or keys.
static LogicalResult verifySizeBounds(AttentionOp op, ShapeRules rules,
                                      const MapInputs &inputs) {
  SizeBoundsAttr bounds = op.getSizeBoundsAttr();
  if (!bounds)
    return success();
  // attention_c31
  if (op.isPacked() || op.isPaged())
    return rules.error() << "expected no size_bounds with "
                         << (op.isPacked() ? "cu_seqlens_q" : "block_table");
  // attention_c32
  if (failed(verifyWithin(rules, "queries", inputs.q1,
                          AttentionOp::lengthAxis(inputs.qLayout),
                          bounds.getMinQueries(), bounds.getMaxQueries())))
    return failure();
  return verifyWithin(rules, "keys", inputs.k1,
                      AttentionOp::lengthAxis(inputs.kLayout),
                      bounds.getMinKeys(), bounds.getMaxKeys());
}

LogicalResult diffattn::verifyRules(AttentionOp op, ShapeRules rules) {
  // attention_c35, before anything looks at the output
  if (failed(verifyDestinations(rules, "destination, the output", 1,
                                op.getInits().size())))
    return failure();
  // attention_c1
  auto dps = cast<DestinationStyleOpInterface>(op.getOperation());
  if (failed(verifyDestinationForm(dps)))
    return failure();
  // attention_c33
  if (failed(verifyMaps(op, rules, NamedOperand{"lambda", op.getLambda()})) ||
      failed(verifyOneMap(op, rules)))
    return failure();
  MapInputs inputs{{"q1", op.getQ1()}, {"k1", op.getK1()}, {"q2", op.getQ2()},
                   {"k2", op.getK2()}, {"v", op.getV()},   op.getQLayout(),
                   op.getKLayout(),    op.getVLayout()};
  inputs.isPaged = op.isPaged();
  inputs.isPacked = op.isPacked();
  // attention_c2 to attention_c20
  if (failed(
          verifyAttentionOperands(op, rules, inputs, {"init", op.getInit()})) ||
      failed(verifyIntegral(op, rules, inputs)) ||
      failed(verifySaved(op, rules, inputs)) ||
      failed(verifySums(op, rules, inputs)) ||
      failed(verifySizeBounds(op, rules, inputs)))
    return failure();
  // attention_c28 to attention_c30
  return verifySequences(op, rules, inputs);
}

LogicalResult AttentionOp::verify() {
  if (getSchedulesAttr() && failed(verifySchedules(*this)))
    return failure();
  return verifyRules(*this, getOperation());
}

void AttentionOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  addMemRefEffects(cast<DestinationStyleOpInterface>(getOperation()),
                   /*readsInits=*/false, effects);
}

LogicalResult
AttentionOp::reifyResultShapes(OpBuilder &builder,
                               ReifiedRankedShapedTypeDims &dims) {
  return reifyInitShapes(cast<DestinationStyleOpInterface>(getOperation()),
                         builder, dims);
}

Value diffattn::detail::materializeQOffset(Operation *maps, OpBuilder &b) {
  auto op = cast<DifferentialMapsOpInterface>(maps);
  if (op.getQOffset())
    return op.getQOffset();
  Location loc = op.getLoc();
  auto asI64 = [&](Value value, int64_t axis) -> Value {
    Value size =
        getValueOrCreateConstantIndexOp(b, loc, sizeOf(b, loc, value, axis));
    return arith::IndexCastOp::create(b, loc, b.getI64Type(), size);
  };
  Value queries = asI64(op.getQ1(), op.lengthAxis(op.getQLayout()));
  Value keys = asI64(op.getK1(), op.lengthAxis(op.getKLayout()));
  int64_t batch = op.getShaped(op.getQ1()).getDimSize(0);
  SmallVector<Value> sizes;
  if (ShapedType::isDynamic(batch))
    sizes.push_back(tensor::DimOp::create(b, loc, op.getQ1(), 0));
  return tensor::GenerateOp::create(
      b, loc, RankedTensorType::get({batch}, b.getI64Type()), sizes,
      [&](OpBuilder &nested, Location l, ValueRange index) {
        Value length = keys;
        if (op.getKvLen())
          length = tensor::ExtractOp::create(nested, l, op.getKvLen(), index);
        // A length near the lowest number stays there instead of wrapping.
        Value lowest = arith::ConstantIntOp::create(nested, l, INT64_MIN, 64);
        Value limit = arith::AddIOp::create(nested, l, lowest, queries);
        length = arith::MaxSIOp::create(nested, l, length, limit);
        tensor::YieldOp::create(
            nested, l, arith::SubIOp::create(nested, l, length, queries));
      });
}
