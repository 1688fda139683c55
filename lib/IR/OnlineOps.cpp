//===- OnlineOps.cpp - diffattn.online_attention, merge, finalize ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapeChecks.h"

using namespace mlir;
using namespace mlir::diffattn;

//===----------------------------------------------------------------------===//
// OnlineAttentionOp
//===----------------------------------------------------------------------===//

LogicalResult OnlineAttentionOp::verify() {
  // online_attention_c1
  if (failed(verifyDestinationForm(
          cast<DestinationStyleOpInterface>(getOperation()))))
    return failure();
  NamedOperand q1{"q1", getQ1()}, v{"v", getV()};
  MapInputs inputs{q1,
                   {"k1", getK1()},
                   {"q2", getQ2()},
                   {"k2", getK2()},
                   v,
                   getQLayout(),
                   getKLayout(),
                   getVLayout(),
                   /*staticHeads=*/true};
  // online_attention_c2
  if (failed(verifySameElementType(*this,
                                   {q1, inputs.k1, inputs.q2, inputs.k2, v})))
    return failure();
  // online_attention_c3 to online_attention_c9
  if (failed(verifyMapInputs(*this, inputs)))
    return failure();
  // online_attention_c10
  int64_t signal = getSignalHeads(), noise = getNoiseHeads();
  int64_t heads2 = accumulator2Heads(signal, noise, getValueHeads());
  int64_t qLength = AttentionOp::lengthAxis(getQLayout());
  auto verifyState = [&](NamedOperand state, int64_t heads,
                         bool hasWidth) -> LogicalResult {
    if (failed(verifyRank(*this, state, hasWidth ? 4 : 3)) ||
        failed(verifySame(*this, "batches", q1, 0, state, 0)) ||
        failed(verifySame(*this, "lengths", q1, qLength, state, 2)) ||
        (hasWidth && failed(verifySame(*this, "widths", v, 3, state, 3))))
      return failure();
    if (state.size(1) != heads)
      return emitOpError() << "expected " << heads << " heads of " << state.name
                           << ", but got " << state.size(1);
    return success();
  };
  if (failed(verifyState({"max1", getMax1()}, signal, false)) ||
      failed(verifyState({"sum1", getSum1()}, signal, false)) ||
      failed(verifyState({"acc1", getAcc1()}, signal, true)) ||
      failed(verifyState({"max2", getMax2()}, noise, false)) ||
      failed(verifyState({"sum2", getSum2()}, noise, false)) ||
      failed(verifyState({"acc2", getAcc2()}, heads2, true)))
    return failure();
  // online_attention_c11
  if (failed(verifyBias(*this, {"bias", getBias()}, inputs)))
    return failure();
  // online_attention_c12
  if (failed(verifyPerBatch(*this, {"kv_len", getKvLen()}, q1)) ||
      failed(verifyPerBatch(*this, {"q_offset", getQOffset()}, q1)))
    return failure();
  // online_attention_c13
  if ((getIsCausal() || getWindow()) && !getQOffset())
    return emitOpError() << "expected q_offset where is_causal or window is "
                            "given, but got none";
  // online_attention_c14 to online_attention_c16
  if (failed(verifyScale(*this, getScale())) ||
      failed(verifyWindow(*this, getWindow())) ||
      failed(verifyNumber(*this, "softcap", getSoftcap(), Least::AboveZero)))
    return failure();
  return success();
}

void OnlineAttentionOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  addMemRefEffects(cast<DestinationStyleOpInterface>(getOperation()),
                   /*readsInits=*/true, effects);
}

LogicalResult
OnlineAttentionOp::reifyResultShapes(OpBuilder &builder,
                                     ReifiedRankedShapedTypeDims &dims) {
  return reifyInitShapes(cast<DestinationStyleOpInterface>(getOperation()),
                         builder, dims);
}

//===----------------------------------------------------------------------===//
// MergeOp
//===----------------------------------------------------------------------===//

LogicalResult MergeOp::verify() {
  // merge_c1
  if (failed(verifyDestinationForm(
          cast<DestinationStyleOpInterface>(getOperation()))))
    return failure();
  NamedOperand max{"max", getMax()}, acc{"acc", getAcc()};
  // merge_c2
  for (NamedOperand operand : {max, NamedOperand{"sum", getSum()},
                               NamedOperand{"init_max", getInitMax()},
                               NamedOperand{"init_sum", getInitSum()}})
    if (failed(verifyRank(*this, operand, 3)))
      return failure();
  NamedOperand initAcc{"init_acc", getInitAcc()};
  if (failed(verifyRank(*this, acc, 4)) ||
      failed(verifyRank(*this, initAcc, 4)))
    return failure();
  // merge_c3
  if (failed(verifyStatic(*this, "number of heads", max, 1)) ||
      failed(verifyStatic(*this, "number of heads", acc, 1)))
    return failure();
  // merge_c4
  for (auto [what, axis] : {std::pair<StringRef, int64_t>{"batches", 0},
                            {"heads", 1},
                            {"lengths", 2}})
    for (NamedOperand operand :
         {NamedOperand{"sum", getSum()}, NamedOperand{"init_max", getInitMax()},
          NamedOperand{"init_sum", getInitSum()}})
      if (failed(verifySame(*this, what, max, axis, operand, axis)))
        return failure();
  for (auto [what, axis] : {std::pair<StringRef, int64_t>{"batches", 0},
                            {"heads", 1},
                            {"lengths", 2},
                            {"widths", 3}})
    if (failed(verifySame(*this, what, acc, axis, initAcc, axis)))
      return failure();
  if (failed(verifySame(*this, "batches", max, 0, acc, 0)) ||
      failed(verifySame(*this, "lengths", max, 2, acc, 2)))
    return failure();
  // merge_c5
  return verifyDivides(*this, "max", max.size(1), "acc", acc.size(1));
}

void MergeOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  addMemRefEffects(cast<DestinationStyleOpInterface>(getOperation()),
                   /*readsInits=*/true, effects);
}

LogicalResult MergeOp::reifyResultShapes(OpBuilder &builder,
                                         ReifiedRankedShapedTypeDims &dims) {
  return reifyInitShapes(cast<DestinationStyleOpInterface>(getOperation()),
                         builder, dims);
}

//===----------------------------------------------------------------------===//
// FinalizeOp
//===----------------------------------------------------------------------===//

LogicalResult FinalizeOp::verify() {
  // finalize_c1
  if (failed(verifyDestinationForm(
          cast<DestinationStyleOpInterface>(getOperation()))))
    return failure();
  NamedOperand sum1{"sum1", getSum1()}, acc1{"acc1", getAcc1()},
      sum2{"sum2", getSum2()}, acc2{"acc2", getAcc2()};
  // finalize_c2
  if (failed(verifyRank(*this, sum1, 3)) ||
      failed(verifyRank(*this, acc1, 4)) ||
      failed(verifyRank(*this, sum2, 3)) || failed(verifyRank(*this, acc2, 4)))
    return failure();
  // finalize_c3
  for (NamedOperand operand : {sum1, acc1, sum2, acc2})
    if (failed(verifyStatic(*this, "number of heads", operand, 1)))
      return failure();
  if (failed(verifyStatic(*this, "width", acc1, 3)))
    return failure();
  // finalize_c4
  for (NamedOperand operand : {acc1, sum2, acc2})
    if (failed(verifySame(*this, "batches", sum1, 0, operand, 0)) ||
        failed(verifySame(*this, "lengths", sum1, 2, operand, 2)))
      return failure();
  if (failed(verifySame(*this, "heads", sum1, 1, acc1, 1)) ||
      failed(verifySame(*this, "widths", acc1, 3, acc2, 3)))
    return failure();
  // finalize_c5
  int64_t signal = getSignalHeads(), noise = getNoiseHeads();
  if (failed(verifyDivides(*this, "sum2", noise, "sum1", signal)))
    return failure();
  if (acc2.size(1) != noise && acc2.size(1) != signal)
    return emitOpError() << "expected " << noise << " or " << signal
                         << " heads of acc2, but got " << acc2.size(1);
  // finalize_c6
  auto verifyResultShape = [&](NamedOperand operand) -> LogicalResult {
    int64_t heads = AttentionOp::headAxis(getOLayout());
    int64_t length = AttentionOp::lengthAxis(getOLayout());
    if (failed(verifyRank(*this, operand, 4)) ||
        failed(verifySame(*this, "batches", acc1, 0, operand, 0)) ||
        failed(verifySame(*this, "heads", acc1, 1, operand, heads)) ||
        failed(verifySame(*this, "lengths", acc1, 2, operand, length)) ||
        failed(verifySame(*this, "widths", acc1, 3, operand, 3)))
      return failure();
    return success();
  };
  if (failed(verifyResultShape({"init", getInit()})))
    return failure();
  // finalize_c7
  if (failed(verifyLambda(*this, {"lambda", getLambda()}, sum1, 0, 2, signal,
                          noise)))
    return failure();
  // finalize_c8
  if (failed(verifyNormWeight(*this, {"norm_weight", getNormWeight()},
                              getNorm(), acc1)))
    return failure();
  // finalize_c9
  if (getGate() && failed(verifyResultShape({"gate", getGate()})))
    return failure();
  // finalize_c10, finalize_c11
  if (failed(verifyNumber(*this, "norm_eps", getNormEps(), Least::Zero)) ||
      failed(verifyNumber(*this, "out_scale", getOutScale())))
    return failure();
  return success();
}

void FinalizeOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  addMemRefEffects(cast<DestinationStyleOpInterface>(getOperation()),
                   /*readsInits=*/false, effects);
}

LogicalResult FinalizeOp::reifyResultShapes(OpBuilder &builder,
                                            ReifiedRankedShapedTypeDims &dims) {
  return reifyInitShapes(cast<DestinationStyleOpInterface>(getOperation()),
                         builder, dims);
}
