//===- ShapeChecks.h - labelled checks of shapes and numbers ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the verifiers of several ops share. Each check emits one diagnostic,
// "expected X, but got Y"; a size that is dynamic passes, and what is demanded
// of it can be collected for a check at run time.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_IR_SHAPECHECKS_H
#define DIFFATTN_LIB_IR_SHAPECHECKS_H

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/IR/SizeRelations.h"

namespace mlir::diffattn {

/// An operand with its name in the spec.
struct NamedOperand {
  StringRef name;
  Value value;

  ShapedType type() const { return cast<ShapedType>(value.getType()); }
  int64_t size(int64_t axis) const { return type().getDimSize(axis); }
};

struct NamedAxis {
  NamedOperand operand;
  int64_t axis;
  int64_t size() const { return operand.size(axis); }
};

/// Whose rules are checked, and where the ones about dynamic sizes go.
struct ShapeRules {
  ShapeRules(Operation *op, SmallVectorImpl<SizeRelation> *open = nullptr)
      : op(op), open(open) {}

  InFlightDiagnostic error() const { return op->emitOpError(); }
  /// Notes a rule that only the run can decide.
  void leaveOpen(SizeRelation::Kind kind, NamedAxis subject,
                 ArrayRef<NamedAxis> others = {}, bool orOne = false,
                 int64_t number = 1) const;

  Operation *op;
  SmallVectorImpl<SizeRelation> *open;
};

/// Checks all rules of an op, as its verifier does.
LogicalResult verifyRules(AttentionOp op, ShapeRules rules);
LogicalResult verifyRules(AttentionBackwardOp op, ShapeRules rules);
LogicalResult verifyRules(OnlineAttentionOp op, ShapeRules rules);
LogicalResult verifyRules(MergeOp op, ShapeRules rules);
LogicalResult verifyRules(FinalizeOp op, ShapeRules rules);
LogicalResult verifyRules(GemmOp op, ShapeRules rules);
LogicalResult verifyRules(GatedGemmOp op, ShapeRules rules);
LogicalResult verifyRules(QuantizedGemmOp op, ShapeRules rules);

/// Operands are all tensors or all memrefs. That results match the inits is for
/// the destination-style interface to check.
LogicalResult verifyDestinationForm(DestinationStyleOpInterface op);

/// `operand` has `rank` axes.
LogicalResult verifyRank(ShapeRules rules, NamedOperand operand, int64_t rank);

/// Checks that axis `axis` of `operand` is not 0; `verifyStatic`: nor dynamic.
/// `what` names the axis in the message.
LogicalResult verifyPositive(ShapeRules rules, StringRef what,
                             NamedOperand operand, int64_t axis);
LogicalResult verifyStatic(ShapeRules rules, StringRef what,
                           NamedOperand operand, int64_t axis);

/// Checks that axis `axis` of `operand`, its number of `what`, is from `least`
/// to `most`; 0: no bound.
LogicalResult verifyWithin(ShapeRules rules, StringRef what,
                           NamedOperand operand, int64_t axis, int64_t least,
                           int64_t most);

/// Checks that size `i` of `a` and size `j` of `b`, the `what` of both, agree.
LogicalResult verifySame(ShapeRules rules, StringRef what, NamedOperand a,
                         int64_t i, NamedOperand b, int64_t j);

/// The operands that are there, in their order.
SmallVector<NamedOperand> onlyGiven(ArrayRef<NamedOperand> operands);

/// Element types of all operands that are there are that of the first.
LogicalResult verifySameElementType(ShapeRules rules,
                                    ArrayRef<NamedOperand> operands);

/// The heads `part` divide the heads `whole`.
LogicalResult verifyDivides(ShapeRules rules, NamedAxis part, NamedAxis whole);

/// The ranges of `size` places hold all places of `whole`.
LogicalResult verifyCovers(ShapeRules rules, NamedAxis ranges, int64_t size,
                           NamedAxis whole);

/// Checks that the operands of map 2, which are `ofMap2`, are all given or
/// none.
LogicalResult verifyAllOrNone(ShapeRules rules, ArrayRef<NamedOperand> ofMap2);

/// Checks that q2, k2 and, of an op that has it, `lambda` are all given or
/// none.
LogicalResult verifyMaps(DifferentialMapsOpInterface op, ShapeRules rules,
                         std::optional<NamedOperand> lambda = std::nullopt);

/// Checks that the op has `expected` destinations, its `what`.
LogicalResult verifyDestinations(ShapeRules rules, StringRef what,
                                 size_t expected, size_t got);

/// The five inputs of both maps with their layouts.
struct MapInputs {
  NamedOperand q1, k1, q2, k2, v; ///< q2 and k2 of one map are null
  Layout qLayout, kLayout, vLayout;
  /// Whether numbers of heads must be known.
  bool staticHeads = false;
  /// Whether the first axis of k1, k2 and v counts pages, and whether the
  /// batches of operands of masks are sequences that lie in one batch.
  bool isPaged = false, isPacked = false;
};
/// Ranks, positive heads and widths, batches, lengths, widths and divisibility
/// of heads: c3 to c9 of the op.
LogicalResult verifyMapInputs(ShapeRules rules, const MapInputs &inputs);

/// Checks cu_seqlens_q, cu_seqlens_k and block_table: which of them come
/// together, and static sizes: attention_c28 to attention_c30,
/// online_attention_c23.
LogicalResult verifySequences(DifferentialMapsOpInterface op, ShapeRules rules,
                              const MapInputs &inputs);

/// `lambda` is `[]`, `[Hs]`, `[B,Tq,Hs]` or `[B,Tq,Hn]`, `b` and `t` being the
/// axes of batch and query length of `rows`.
LogicalResult verifyLambda(ShapeRules rules, NamedOperand lambda,
                           NamedOperand rows, int64_t b, int64_t t,
                           NamedAxis signal, NamedAxis noise);

/// `bias` is `[1|B, 1|Hn, 1|Tq, Tk]`.
LogicalResult verifyBias(ShapeRules rules, NamedOperand bias,
                         const MapInputs &inputs);

/// The operands that masks read have the sizes that their axes count.
LogicalResult
verifyMaskOperands(ShapeRules rules, const MapInputs &inputs,
                   function_ref<OpOperand *(MaskOperand)> findOperand);

/// `weight`, if there, is `[dv]` and `norm` is not none.
LogicalResult verifyNormWeight(ShapeRules rules, NamedOperand weight, Norm norm,
                               NamedOperand values);

/// `window`, if there, is two numbers of at least -1.
LogicalResult verifyWindow(ShapeRules rules,
                           std::optional<ArrayRef<int64_t>> window);

/// `value`, if there, is finite; with `least`, also positive or not negative.
enum class Least { None, Zero, AboveZero };
LogicalResult verifyNumber(ShapeRules rules, StringRef name,
                           std::optional<APFloat> value,
                           Least least = Least::None);

/// `scale` is finite and not above kMaxScale in magnitude.
LogicalResult verifyScale(ShapeRules rules, const APFloat &scale);

/// `operand` has the batches, heads and length of q1 and the width of v, in
/// `layout`: the shape of attention's output.
LogicalResult verifyOutputShape(ShapeRules rules, const MapInputs &inputs,
                                Layout layout, NamedOperand operand);

/// Checks the rules that attention and its backward pass share, c2 to c20 of
/// both. `output` has the output's shape, and its element type or f32.
template <typename OpTy>
LogicalResult verifyAttentionOperands(OpTy op, ShapeRules rules,
                                      const MapInputs &inputs,
                                      NamedOperand output) {
  if (failed(verifySameElementType(
          rules, {inputs.q1, inputs.k1, inputs.q2, inputs.k2, inputs.v})))
    return failure();
  const Type element = inputs.q1.type().getElementType(),
             got = output.type().getElementType();
  if (got != element && !got.isF32())
    return rules.error() << "expected element type of " << output.name
                         << " to be that of q1, " << element
                         << (element.isF32() ? "" : ", or 'f32'")
                         << ", but got " << got;
  const int64_t heads = AttentionOp::headAxis(inputs.qLayout);
  if (failed(verifyRank(rules, output, 4)) ||
      failed(verifyMapInputs(rules, inputs)) ||
      failed(verifyOutputShape(rules, inputs, op.getOLayout(), output)) ||
      (op.getLambda() &&
       failed(verifyLambda(rules, {"lambda", op.getLambda()}, inputs.q1, 0,
                           AttentionOp::lengthAxis(inputs.qLayout),
                           {inputs.q1, heads}, {inputs.q2, heads}))) ||
      failed(verifyMaskOperands(
          rules, inputs,
          [&](MaskOperand operand) { return op.findMaskOperand(operand); })) ||
      failed(verifyNormWeight(rules, {"norm_weight", op.getNormWeight()},
                              op.getNorm(), inputs.v)))
    return failure();
  if (op.getGate() && failed(verifyOutputShape(rules, inputs, op.getOLayout(),
                                               {"gate", op.getGate()})))
    return failure();
  return success(succeeded(verifyScale(rules, op.getScale())) &&
                 succeeded(verifyWindow(rules, op.getWindow())) &&
                 succeeded(verifyNumber(rules, "softcap", op.getSoftcap(),
                                        Least::AboveZero)) &&
                 succeeded(verifyNumber(rules, "norm_eps", op.getNormEps(),
                                        Least::Zero)) &&
                 succeeded(verifyNumber(rules, "out_scale", op.getOutScale())));
}

/// Adds reads of inputs and writes of inits of a memref form; `readsInits`: the
/// op updates its destinations.
void addMemRefEffects(
    DestinationStyleOpInterface op, bool readsInits,
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects);

/// The sizes of each init as the shape of its result; fails on memrefs.
LogicalResult reifyInitShapes(DestinationStyleOpInterface op,
                              OpBuilder &builder,
                              ReifiedRankedShapedTypeDims &dims);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_IR_SHAPECHECKS_H
