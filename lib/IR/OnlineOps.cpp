//===- OnlineOps.cpp - diffattn.online_attention, merge, finalize ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapeChecks.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Adds those attributes of `op` that `names` holds.
static void addAttributesOf(AttentionOp op, OperationState &state,
                            ArrayRef<StringRef> names) {
  for (NamedAttribute attribute : op->getAttrs())
    if (attribute.getName() != op.getOperandSegmentSizesAttrName() &&
        llvm::is_contained(names, attribute.getName().getValue()))
      state.attributes.push_back(attribute);
}

//===----------------------------------------------------------------------===//
// OnlineAttentionOp
//===----------------------------------------------------------------------===//

void OnlineAttentionOp::build(OpBuilder &builder, OperationState &state,
                              AttentionOp op, Value qOffset, ValueRange states,
                              std::optional<int64_t> kvSplitSize) {
  SmallVector<Value> operands = {op.getQ1(), op.getK1(), op.getQ2(), op.getK2(),
                                 op.getV()};
  for (MaskOperand which : kMaskOperands) {
    OpOperand *use = op.findMaskOperand(which);
    operands.push_back(which == MaskOperand::QOffset ? qOffset
                       : use                         ? use->get()
                                                     : Value());
  }
  operands.append({op.getCuSeqlensQ(), op.getCuSeqlensK(), op.getBlockTable(),
                   /*k_offset=*/Value()});
  addOperandSegments(builder, state, operands, states);
  addAttributesOf(op, state, getAttributeNames());
  if (kvSplitSize)
    state.addAttribute(getKvSplitSizeAttrName(state.name),
                       builder.getI64IntegerAttr(*kvSplitSize));
  if (op.getResult())
    state.addTypes(states.getTypes());
}

LogicalResult diffattn::verifyRules(OnlineAttentionOp op, ShapeRules rules) {
  // online_attention_c24
  if (failed(verifyMaps(op, rules)))
    return failure();
  // online_attention_c26, before anything looks at a state
  if (failed(verifyDestinations(rules, "states, three of each map",
                                op.hasSecondMap() ? 6 : 3,
                                op.getStates().size())))
    return failure();
  // online_attention_c1
  if (failed(verifyDestinationForm(
          cast<DestinationStyleOpInterface>(op.getOperation()))))
    return failure();
  NamedOperand q1{"q1", op.getQ1()}, v{"v", op.getV()};
  MapInputs inputs{q1,
                   {"k1", op.getK1()},
                   {"q2", op.getQ2()},
                   {"k2", op.getK2()},
                   v,
                   op.getQLayout(),
                   op.getKLayout(),
                   op.getVLayout(),
                   /*staticHeads=*/true,
                   op.isPaged(),
                   op.isPacked()};
  // online_attention_c2
  if (failed(verifySameElementType(rules,
                                   {q1, inputs.k1, inputs.q2, inputs.k2, v})))
    return failure();
  // online_attention_c3 to online_attention_c9
  if (failed(verifyMapInputs(rules, inputs)))
    return failure();
  // online_attention_c20
  std::optional<int64_t> splitSize = op.getKvSplitSize();
  if (splitSize && *splitSize < 1)
    return rules.error() << "expected kv_split_size to be positive, but got "
                         << *splitSize;
  if (splitSize && op.getKOffset())
    return rules.error() << "expected no k_offset where kv_split_size is "
                            "given, but got one";
  // online_attention_c22
  if (GpuSplitKVAttr schedule = op.getScheduleAttr();
      schedule && schedule.getKvSplitSize() != splitSize)
    return rules.error() << "expected kv_split_size of its schedule, "
                         << schedule.getKvSplitSize() << ", but got "
                         << (splitSize ? std::to_string(*splitSize) : "none");
  // online_attention_c10, online_attention_c21
  int64_t signal = op.getSignalHeads(), noise = op.getNoiseHeads();
  int64_t heads2 = op.getAccumulator2Heads();
  int64_t qLength = AttentionOp::lengthAxis(op.getQLayout());
  const NamedOperand max1{"max1", op.getMax1()};
  const int64_t ranges = splitSize ? 1 : 0;
  auto verifyState = [&](NamedOperand state, int64_t heads,
                         bool hasWidth) -> LogicalResult {
    if (failed(verifyRank(rules, state, ranges + (hasWidth ? 4 : 3))) ||
        failed(verifySame(rules, "batches", q1, 0, state, ranges)) ||
        failed(verifySame(rules, "lengths", q1, qLength, state, ranges + 2)) ||
        (hasWidth &&
         failed(verifySame(rules, "widths", v, 3, state, ranges + 3))) ||
        (splitSize && failed(verifySame(rules, "ranges", max1, 0, state, 0))))
      return failure();
    if (state.size(ranges + 1) != heads)
      return rules.error() << "expected " << heads << " heads of " << state.name
                           << ", but got " << state.size(ranges + 1);
    return success();
  };
  if (failed(verifyState(max1, signal, false)) ||
      failed(verifyState({"sum1", op.getSum1()}, signal, false)) ||
      failed(verifyState({"acc1", op.getAcc1()}, signal, true)))
    return failure();
  if (op.hasSecondMap() &&
      (failed(verifyState({"max2", op.getMax2()}, noise, false)) ||
       failed(verifyState({"sum2", op.getSum2()}, noise, false)) ||
       failed(verifyState({"acc2", op.getAcc2()}, heads2, true))))
    return failure();
  // With paged keys, whose number is no axis, the caller promises it.
  if (splitSize && !op.isPaged() &&
      failed(
          verifyCovers(rules, {max1, 0}, *splitSize,
                       {inputs.k1, AttentionOp::lengthAxis(op.getKLayout())})))
    return failure();
  // online_attention_c23
  if ((op.isPacked() || op.isPaged() || op.getCuSeqlensK()) &&
      (!op.getScheduleAttr() || op.getNumResults()))
    return rules.error() << "expected cu_seqlens_q, cu_seqlens_k and "
                            "block_table on memrefs with a schedule, but got "
                         << (op.getScheduleAttr() ? "tensors" : "none");
  if (failed(verifySequences(op, rules, inputs)))
    return failure();
  // online_attention_c11, online_attention_c12
  if (failed(verifyMaskOperands(rules, inputs, [&](MaskOperand operand) {
        return op.findMaskOperand(operand);
      })))
    return failure();
  // online_attention_c13
  if ((op.getIsCausal() || op.getWindow()) && !op.getQOffset() && !splitSize)
    return rules.error() << "expected q_offset where is_causal or window is "
                            "given, but got none";
  // online_attention_c14 to online_attention_c16
  if (failed(verifyScale(rules, op.getScale())) ||
      failed(verifyWindow(rules, op.getWindow())) ||
      failed(verifyNumber(rules, "softcap", op.getSoftcap(), Least::AboveZero)))
    return failure();
  return success();
}

LogicalResult OnlineAttentionOp::verify() {
  return verifyRules(*this, getOperation());
}

void OnlineAttentionOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  addMemRefEffects(cast<DestinationStyleOpInterface>(getOperation()),
                   /*readsInits=*/!getKvSplitSize(), effects);
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

LogicalResult diffattn::verifyRules(MergeOp op, ShapeRules rules) {
  // merge_c1
  if (failed(verifyDestinationForm(
          cast<DestinationStyleOpInterface>(op.getOperation()))))
    return failure();
  NamedOperand max{"max", op.getMax()}, acc{"acc", op.getAcc()};
  // merge_c2, merge_c7
  const NamedOperand sum{"sum", op.getSum()},
      initMax{"init_max", op.getInitMax()},
      initSum{"init_sum", op.getInitSum()},
      initAcc{"init_acc", op.getInitAcc()};
  const int64_t ranges = op.joinsRanges() ? 1 : 0;
  for (NamedOperand operand : {initMax, initSum})
    if (failed(verifyRank(rules, operand, 3)))
      return failure();
  for (NamedOperand operand : {max, sum})
    if (failed(verifyRank(rules, operand, ranges + 3)))
      return failure();
  if (failed(verifyRank(rules, acc, ranges + 4)) ||
      failed(verifyRank(rules, initAcc, 4)))
    return failure();
  // merge_c3
  if (failed(verifyStatic(rules, "number of heads", max, ranges + 1)) ||
      failed(verifyStatic(rules, "number of heads", acc, ranges + 1)))
    return failure();
  // merge_c4, merge_c7
  const std::pair<StringRef, int64_t> axes[] = {
      {"batches", 0}, {"heads", 1}, {"lengths", 2}, {"widths", 3}};
  for (auto [what, axis] : ArrayRef(axes).drop_back())
    if (failed(
            verifySame(rules, what, max, ranges + axis, sum, ranges + axis)) ||
        failed(verifySame(rules, what, max, ranges + axis, initMax, axis)) ||
        failed(verifySame(rules, what, max, ranges + axis, initSum, axis)))
      return failure();
  for (auto [what, axis] : axes)
    if (failed(verifySame(rules, what, acc, ranges + axis, initAcc, axis)))
      return failure();
  if (ranges && (failed(verifySame(rules, "ranges", max, 0, sum, 0)) ||
                 failed(verifySame(rules, "ranges", max, 0, acc, 0))))
    return failure();
  if (failed(verifySame(rules, "batches", max, ranges, acc, ranges)) ||
      failed(verifySame(rules, "lengths", max, ranges + 2, acc, ranges + 2)))
    return failure();
  // merge_c5
  return verifyDivides(rules, {max, ranges + 1}, {acc, ranges + 1});
}

LogicalResult MergeOp::verify() { return verifyRules(*this, getOperation()); }

void MergeOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  addMemRefEffects(cast<DestinationStyleOpInterface>(getOperation()),
                   /*readsInits=*/!joinsRanges(), effects);
}

LogicalResult MergeOp::reifyResultShapes(OpBuilder &builder,
                                         ReifiedRankedShapedTypeDims &dims) {
  return reifyInitShapes(cast<DestinationStyleOpInterface>(getOperation()),
                         builder, dims);
}

//===----------------------------------------------------------------------===//
// FinalizeOp
//===----------------------------------------------------------------------===//

void FinalizeOp::build(OpBuilder &builder, OperationState &state,
                       AttentionOp op, ValueRange states) {
  auto ofMap2 = [&](size_t state) {
    return op.hasSecondMap() ? states[state] : Value();
  };
  // Maxima are operands only where sinks or logarithms need them.
  Value max1 = op.getSink() || op.getLse1() ? states[0] : Value();
  Value max2 = op.getSink2() || op.getLse2() ? states[3] : Value();
  addOperandSegments(builder, state,
                     {/*sum1=*/states[1], /*acc1=*/states[2],
                      /*sum2=*/ofMap2(4), /*acc2=*/ofMap2(5), op.getLambda(),
                      op.getNormWeight(), op.getGate(), max1, max2,
                      op.getSink(), op.getSink2(), op.getInit(), op.getLse1(),
                      op.getLse2()});
  addAttributesOf(op, state, getAttributeNames());
  if (!op.getResult())
    return;
  for (Value destination : {op.getInit(), op.getLse1(), op.getLse2()})
    if (destination)
      state.addTypes(destination.getType());
}

/// Checks sinks, the terms of a row's sum that are no keys, and the
/// destinations of the logarithm of that sum.
static LogicalResult verifySums(FinalizeOp op, ShapeRules rules,
                                NamedOperand sum1, NamedOperand sum2) {
  struct OfMap {
    NamedOperand sum, max, sink, lse;
  };
  const OfMap maps[] = {{sum1,
                         {"max1", op.getMax1()},
                         {"sink", op.getSink()},
                         {"lse1", op.getLse1()}},
                        {sum2,
                         {"max2", op.getMax2()},
                         {"sink2", op.getSink2()},
                         {"lse2", op.getLse2()}}};
  for (const OfMap &map : maps) {
    const SmallVector<NamedOperand> users = onlyGiven({map.sink, map.lse});
    // finalize_c15
    for (NamedOperand operand : onlyGiven({map.max, map.sink, map.lse}))
      if (!map.sum.value)
        return rules.error()
               << "expected two maps with " << operand.name << ", but got one";
    // finalize_c16
    if (!users.empty() && !map.max.value)
      return rules.error() << "expected " << map.max.name << " with "
                           << users.front().name << ", but got none";
    if (users.empty() && map.max.value)
      return rules.error() << "expected " << map.sink.name << " or "
                           << map.lse.name << " with " << map.max.name
                           << ", but got none";
    // finalize_c17
    for (NamedOperand operand : onlyGiven({map.max, map.lse}))
      if (failed(verifyRank(rules, operand, 3)) ||
          failed(verifySame(rules, "batches", map.sum, 0, operand, 0)) ||
          failed(verifySame(rules, "heads", map.sum, 1, operand, 1)) ||
          failed(verifySame(rules, "lengths", map.sum, 2, operand, 2)))
        return failure();
    // finalize_c18
    if (map.sink.value &&
        (failed(verifyRank(rules, map.sink, 1)) ||
         failed(verifySame(rules, "heads", map.sum, 1, map.sink, 0))))
      return failure();
  }
  return success();
}

LogicalResult diffattn::verifyRules(FinalizeOp op, ShapeRules rules) {
  // finalize_c1
  if (failed(verifyDestinationForm(
          cast<DestinationStyleOpInterface>(op.getOperation()))))
    return failure();
  const NamedOperand sum1{"sum1", op.getSum1()}, acc1{"acc1", op.getAcc1()},
      sum2{"sum2", op.getSum2()}, acc2{"acc2", op.getAcc2()},
      lambda{"lambda", op.getLambda()};
  // finalize_c13, finalize_c14
  if (failed(verifyAllOrNone(rules, {sum2, acc2, lambda})))
    return failure();
  const bool hasSecond = op.hasSecondMap();
  if (!hasSecond && op.getLambdaAct() != Activation::Identity)
    return rules.error()
           << "expected lambda_act with a lambda, but got one map";
  // finalize_c2
  if (failed(verifyRank(rules, sum1, 3)) ||
      failed(verifyRank(rules, acc1, 4)) ||
      (hasSecond && (failed(verifyRank(rules, sum2, 3)) ||
                     failed(verifyRank(rules, acc2, 4)))))
    return failure();
  // finalize_c3
  for (NamedOperand operand : onlyGiven({sum1, acc1, sum2, acc2}))
    if (failed(verifyStatic(rules, "number of heads", operand, 1)))
      return failure();
  if (failed(verifyStatic(rules, "width", acc1, 3)))
    return failure();
  // finalize_c4
  for (NamedOperand operand : onlyGiven({acc1, sum2, acc2}))
    if (failed(verifySame(rules, "batches", sum1, 0, operand, 0)) ||
        failed(verifySame(rules, "lengths", sum1, 2, operand, 2)))
      return failure();
  if (failed(verifySame(rules, "heads", sum1, 1, acc1, 1)) ||
      (hasSecond && failed(verifySame(rules, "widths", acc1, 3, acc2, 3))))
    return failure();
  // finalize_c5
  int64_t signal = op.getSignalHeads(), noise = op.getNoiseHeads();
  if (hasSecond) {
    if (failed(verifyDivides(rules, {sum2, 1}, {sum1, 1})))
      return failure();
    if (acc2.size(1) != noise && acc2.size(1) != signal)
      return rules.error() << "expected " << noise << " or " << signal
                           << " heads of acc2, but got " << acc2.size(1);
  }
  // finalize_c6
  auto verifyResultShape = [&](NamedOperand operand) -> LogicalResult {
    int64_t heads = AttentionOp::headAxis(op.getOLayout());
    int64_t length = AttentionOp::lengthAxis(op.getOLayout());
    if (failed(verifyRank(rules, operand, 4)) ||
        failed(verifySame(rules, "batches", acc1, 0, operand, 0)) ||
        failed(verifySame(rules, "heads", acc1, 1, operand, heads)) ||
        failed(verifySame(rules, "lengths", acc1, 2, operand, length)) ||
        failed(verifySame(rules, "widths", acc1, 3, operand, 3)))
      return failure();
    return success();
  };
  if (failed(verifyResultShape({"init", op.getInit()})))
    return failure();
  // finalize_c7
  if (hasSecond &&
      failed(verifyLambda(rules, lambda, sum1, 0, 2, {sum1, 1}, {sum2, 1})))
    return failure();
  // finalize_c8
  if (failed(verifyNormWeight(rules, {"norm_weight", op.getNormWeight()},
                              op.getNorm(), acc1)))
    return failure();
  // finalize_c9
  if (op.getGate() && failed(verifyResultShape({"gate", op.getGate()})))
    return failure();
  // finalize_c10, finalize_c11
  if (failed(verifyNumber(rules, "norm_eps", op.getNormEps(), Least::Zero)) ||
      failed(verifyNumber(rules, "out_scale", op.getOutScale())))
    return failure();
  return verifySums(op, rules, sum1, sum2);
}

LogicalResult FinalizeOp::verify() {
  return verifyRules(*this, getOperation());
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
