//===- AttentionBackwardOp.cpp - diffattn.attention_backward --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapeChecks.h"

#include "DiffAttn/IR/ScheduleCases.h"

using namespace mlir;
using namespace mlir::diffattn;

MutableOperandRange AttentionBackwardOp::getDpsInitsMutable() {
  // The destinations are the last operands, and stand side by side.
  const unsigned first = getODSOperandIndexAndLength(odsIndex_d_q1).first;
  return MutableOperandRange(getOperation(), first,
                             getOperation()->getNumOperands() - first);
}

static OpOperand *getOptional(MutableOperandRange operand) {
  return operand.empty() ? nullptr : &operand[0];
}

SmallVector<AttentionBackwardOp::Gradient> AttentionBackwardOp::getGradients() {
  SmallVector<Gradient> gradients;
  auto add = [&](StringRef name, MutableOperandRange destination,
                 OpOperand *operand) {
    if (OpOperand *use = getOptional(destination))
      gradients.push_back({name, use, operand});
  };
  add("d_q1", getDQ1Mutable(), &getQ1Mutable());
  add("d_k1", getDK1Mutable(), &getK1Mutable());
  add("d_q2", getDQ2Mutable(), getOptional(getQ2Mutable()));
  add("d_k2", getDK2Mutable(), getOptional(getK2Mutable()));
  add("d_v", getDVMutable(), &getVMutable());
  add("d_lambda", getDLambdaMutable(), getOptional(getLambdaMutable()));
  add("d_bias", getDBiasMutable(), getOptional(getBiasMutable()));
  add("d_norm_weight", getDNormWeightMutable(),
      getOptional(getNormWeightMutable()));
  add("d_gate", getDGateMutable(), getOptional(getGateMutable()));
  return gradients;
}

/// Checks one gradient's destination against the operand that it is of.
static LogicalResult verifyGradient(ShapeRules rules,
                                    AttentionBackwardOp::Gradient gradient) {
  const StringRef of = gradient.name.drop_front(2);
  NamedOperand destination{gradient.name, gradient.destination->get()};
  // attention_backward_c28
  if (!gradient.operand)
    return rules.error() << "expected no " << gradient.name << " without " << of
                         << ", but got one";
  NamedOperand operand{of, gradient.operand->get()};
  // attention_backward_c29
  Type element = operand.type().getElementType(),
       got = destination.type().getElementType();
  if (!isa<FloatType>(element))
    return rules.error() << "expected no " << gradient.name << " of a boolean "
                         << of << ", but got one";
  if (got != element && !got.isF32())
    return rules.error() << "expected element type of " << gradient.name
                         << " to be that of " << of << ", " << element
                         << (element.isF32() ? "" : ", or 'f32'")
                         << ", but got " << got;
  // attention_backward_c28
  if (failed(verifyRank(rules, destination, operand.type().getRank())))
    return failure();
  for (int64_t axis = 0, rank = operand.type().getRank(); axis < rank; ++axis)
    if (failed(verifySame(rules, "sizes", operand, axis, destination, axis)))
      return failure();
  return success();
}

/// Checks lse1, lse2, x and o2: which come together, and their sizes.
static LogicalResult verifySaved(AttentionBackwardOp op, ShapeRules rules,
                                 const MapInputs &inputs) {
  // attention_backward_c36
  for (auto [name, saved] : {std::pair(StringRef("lse2"), op.getLse2()),
                             std::pair(StringRef("o2"), op.getO2())})
    if (saved && !op.hasSecondMap())
      return rules.error() << "expected no " << name
                           << " with one map, but got one";
  // attention_backward_c31
  if (op.hasSecondMap() && !op.getLse1() != !op.getLse2())
    return rules.error() << "expected lse1 and lse2 together, but got "
                         << (op.getLse1() ? "lse1" : "lse2") << " alone";
  const int64_t heads = AttentionOp::headAxis(op.getQLayout()),
                length = AttentionOp::lengthAxis(op.getQLayout());
  for (auto [lse, queries] :
       {std::pair(NamedOperand{"lse1", op.getLse1()}, inputs.q1),
        std::pair(NamedOperand{"lse2", op.getLse2()}, inputs.q2)}) {
    if (!lse.value)
      continue;
    if (failed(verifyRank(rules, lse, 3)) ||
        failed(verifySame(rules, "batches", queries, 0, lse, 0)) ||
        failed(verifySame(rules, "heads", queries, heads, lse, 1)) ||
        failed(verifySame(rules, "lengths", queries, length, lse, 2)))
      return failure();
  }
  // attention_backward_c32
  const bool hasNorm = op.getNorm() != Norm::None;
  if (op.getX() && failed(verifyOutputShape(rules, inputs, op.getOLayout(),
                                            {"x", op.getX()})))
    return failure();
  // attention_backward_c33
  if (op.getO2() && !op.getX() && (hasNorm || op.getGate()))
    return rules.error() << "expected o2 with x, or without a norm and a gate, "
                            "but got it alone";
  if (op.getO2() && failed(verifyOutputShape(rules, inputs, op.getOLayout(),
                                             {"o2", op.getO2()})))
    return failure();
  return success();
}

LogicalResult diffattn::verifyRules(AttentionBackwardOp op, ShapeRules rules) {
  // attention_backward_c26
  if (op.getBlockTable())
    return rules.error() << "expected no block_table, whose pages several "
                            "sequences may share, but got one";
  // attention_backward_c27, before anything looks at a destination
  if (op.getGradients().empty())
    return rules.error() << "expected a destination, but got none";
  // attention_backward_c1
  if (failed(verifyDestinationForm(
          cast<DestinationStyleOpInterface>(op.getOperation()))))
    return failure();
  // attention_backward_c24
  if (failed(verifyMaps(op, rules, NamedOperand{"lambda", op.getLambda()})))
    return failure();
  // attention_backward_c25
  if (!op.hasSecondMap() && op.getLambdaAct() != Activation::Identity)
    return rules.error()
           << "expected lambda_act with a lambda, but got one map";
  MapInputs inputs{{"q1", op.getQ1()}, {"k1", op.getK1()}, {"q2", op.getQ2()},
                   {"k2", op.getK2()}, {"v", op.getV()},   op.getQLayout(),
                   op.getKLayout(),    op.getVLayout()};
  inputs.isPacked = op.isPacked();
  // attention_backward_c2 to attention_backward_c20, attention_backward_c22,
  // attention_backward_c23
  if (failed(
          verifyAttentionOperands(op, rules, inputs, {"d_out", op.getDOut()})))
    return failure();
  for (AttentionBackwardOp::Gradient gradient : op.getGradients())
    if (failed(verifyGradient(rules, gradient)))
      return failure();
  // attention_backward_c30
  if (op.getDK2() && op.getK1() == op.getK2())
    return rules.error() << "expected no d_k2 where k2 is k1, whose d_k1 is "
                            "the gradient of both, but got one";
  if (op.getSchedulesAttr() && failed(verifySchedules(op)))
    return failure();
  if (failed(verifySaved(op, rules, inputs)))
    return failure();
  // attention_backward_c35: as attention_c28 to attention_c30
  return verifySequences(op, rules, inputs);
}

LogicalResult AttentionBackwardOp::verify() {
  return verifyRules(*this, getOperation());
}

void AttentionBackwardOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  addMemRefEffects(cast<DestinationStyleOpInterface>(getOperation()),
                   /*readsInits=*/false, effects);
}

LogicalResult
AttentionBackwardOp::reifyResultShapes(OpBuilder &builder,
                                       ReifiedRankedShapedTypeDims &dims) {
  return reifyInitShapes(cast<DestinationStyleOpInterface>(getOperation()),
                         builder, dims);
}
