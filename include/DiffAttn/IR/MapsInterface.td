//===- MapsInterface.td - interfaces of ops with maps ------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_MAPSINTERFACE_TD
#define DIFFATTN_IR_MAPSINTERFACE_TD

include "mlir/IR/Interfaces.td"

/// An accessor that the op has from its declaration.
class DiffAttn_Accessor<string type, string name, string text>
    : InterfaceMethod<text, type, name>;

def DiffAttn_DifferentialMapsOpInterface : OpInterface<"DifferentialMapsOpInterface"> {
  let cppNamespace = "::mlir::diffattn";
  let description = [{
    An op that makes the scores of two maps, or of one. Code that needs its operands and
    attributes up to the softmax uses this interface, and no op by name. Ops get it by the
    declaration `DiffAttn_MapsOp`.
  }];
  let methods = [
    DiffAttn_Accessor<"::mlir::Value", "getQ1", "Queries of map 1.">,
    DiffAttn_Accessor<"::mlir::Value", "getK1", "Keys of map 1.">,
    DiffAttn_Accessor<"::mlir::Value", "getQ2", "Queries of map 2; null where there is one map.">,
    DiffAttn_Accessor<"::mlir::Value", "getK2", "Keys of map 2; null where there is one map.">,
    DiffAttn_Accessor<"::mlir::Value", "getV", "Values.">,
    DiffAttn_Accessor<"::mlir::OpOperand &", "getQ1Mutable", "The operand q1.">,
    DiffAttn_Accessor<"::mlir::OpOperand &", "getK1Mutable", "The operand k1.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getQ2Mutable", "The operand q2, or none.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getK2Mutable", "The operand k2, or none.">,
    DiffAttn_Accessor<"::mlir::OpOperand &", "getVMutable", "The operand v.">,
    DiffAttn_Accessor<"::mlir::Value", "getBias", "Additive or boolean; null: none.">,
    DiffAttn_Accessor<"::mlir::Value", "getKvLen", "Keys of each sequence; null: all.">,
    DiffAttn_Accessor<"::mlir::Value", "getQOffset", "Positions of first queries; null: the default.">,
    DiffAttn_Accessor<"::mlir::Value", "getQSegments", "Segment of each query; null: none.">,
    DiffAttn_Accessor<"::mlir::Value", "getKvSegments", "Segment of each key; null: none.">,
    DiffAttn_Accessor<"::mlir::Value", "getCuSeqlensQ", "Bounds of packed queries; null: none.">,
    DiffAttn_Accessor<"::mlir::Value", "getCuSeqlensK", "Bounds of packed keys; null: none.">,
    DiffAttn_Accessor<"::mlir::Value", "getBlockTable", "Pages of keys and values; null: none.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getBiasMutable", "The operand bias, or none.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getKvLenMutable", "The operand kv_len, or none.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getQOffsetMutable", "The operand q_offset, or none.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getQSegmentsMutable", "The operand q_segments, or none.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getKvSegmentsMutable", "The operand kv_segments, or none.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getCuSeqlensQMutable", "The operand cu_seqlens_q, or none.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getCuSeqlensKMutable", "The operand cu_seqlens_k, or none.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getBlockTableMutable", "The operand block_table, or none.">,
    DiffAttn_Accessor<"::llvm::APFloat", "getScale", "The factor of scores.">,
    DiffAttn_Accessor<"::std::optional<::llvm::APFloat>", "getSoftcap", "The bound of scores, if any.">,
    DiffAttn_Accessor<"bool", "getIsCausal", "Whether keys behind a query's position are hidden.">,
    DiffAttn_Accessor<"::std::optional<::llvm::ArrayRef<int64_t>>", "getWindow", "Keys to the left and right, if limited.">,
    DiffAttn_Accessor<"::mlir::diffattn::Layout", "getQLayout", "Order of the axes of q1 and q2.">,
    DiffAttn_Accessor<"::mlir::diffattn::Layout", "getKLayout", "Order of the axes of k1 and k2.">,
    DiffAttn_Accessor<"::mlir::diffattn::Layout", "getVLayout", "Order of the axes of v.">,
    InterfaceMethod<[{
      The role of each axis of operand `number`.
    }], "::llvm::SmallVector<::mlir::diffattn::AxisRole>", "getAxisRoles", (ins "unsigned":$number)>
  ];
  let extraSharedClassDeclaration = [{
    /// Axis numbers of a head-split operand in `layout`.
    static int64_t headAxis(::mlir::diffattn::Layout layout) {
      return layout == ::mlir::diffattn::Layout::BHTD ? 1 : 2;
    }
    static int64_t lengthAxis(::mlir::diffattn::Layout layout) {
      return layout == ::mlir::diffattn::Layout::BHTD ? 2 : 1;
    }

    ::mlir::ShapedType getShaped(::mlir::Value value) {
      return ::llvm::cast<::mlir::ShapedType>(value.getType());
    }
    /// Whether a second map is subtracted.
    bool hasSecondMap() { return static_cast<bool>($_op.getQ2()); }
    /// Head counts. Where there is one map, its heads are signal heads, and a bias is
    /// per head of them.
    int64_t getSignalHeads() {
      return getShaped($_op.getQ1()).getDimSize(headAxis($_op.getQLayout()));
    }
    int64_t getNoiseHeads() {
      return hasSecondMap() ? getShaped($_op.getQ2()).getDimSize(headAxis($_op.getQLayout()))
                            : getSignalHeads();
    }
    int64_t getKey1Heads() {
      return getShaped($_op.getK1()).getDimSize(headAxis($_op.getKLayout()));
    }
    int64_t getKey2Heads() {
      return hasSecondMap() ? getShaped($_op.getK2()).getDimSize(headAxis($_op.getKLayout()))
                            : getKey1Heads();
    }
    int64_t getValueHeads() {
      return getShaped($_op.getV()).getDimSize(headAxis($_op.getVLayout()));
    }
    int64_t getHeadDim() { return getShaped($_op.getQ1()).getDimSize(3); }
    int64_t getValueDim() { return getShaped($_op.getV()).getDimSize(3); }

    /// Whether sequences follow one another along the axis of queries, and whether
    /// keys and values lie in pages.
    bool isPacked() { return static_cast<bool>($_op.getCuSeqlensQ()); }
    bool isPaged() { return static_cast<bool>($_op.getBlockTable()); }

    /// The masks: a key is visible if it is by all of them.
    ::llvm::SmallVector<::mlir::diffattn::MaskAttrInterface> getMasks() {
      return ::mlir::diffattn::detail::getMasks($_op.getOperation());
    }
    /// The operand that masks read as `operand`; null where it is absent.
    ::mlir::OpOperand *findMaskOperand(::mlir::diffattn::MaskOperand operand) {
      return ::mlir::diffattn::detail::findMaskOperand($_op.getOperation(), operand);
    }
    /// q_offset, or its default (kv_len or Tk) - Tq built as a tensor. On tensors.
    ::mlir::Value materializeQOffset(::mlir::OpBuilder &builder) {
      return ::mlir::diffattn::detail::materializeQOffset($_op.getOperation(), builder);
    }
  }];
}

def DiffAttn_HeadEpilogueOpInterface : OpInterface<"HeadEpilogueOpInterface"> {
  let cppNamespace = "::mlir::diffattn";
  let description = [{
    An op that ends attention: lambda's activation, the norm of each head, out_scale and
    the gate.
  }];
  let methods = [
    DiffAttn_Accessor<"::mlir::Value", "getLambda", "Factor of map 2; null where there is one map.">,
    DiffAttn_Accessor<"::mlir::Value", "getNormWeight", "Weight of the norm; null: none.">,
    DiffAttn_Accessor<"::mlir::Value", "getGate", "Logits of the gate; null: none.">,
    DiffAttn_Accessor<"::mlir::Value", "getInit", "The destination of the output.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getLambdaMutable", "The operand lambda, or none.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getNormWeightMutable", "The operand norm_weight, or none.">,
    DiffAttn_Accessor<"::mlir::MutableOperandRange", "getGateMutable", "The operand gate, or none.">,
    DiffAttn_Accessor<"::mlir::OpOperand &", "getInitMutable", "The operand of the output.">,
    DiffAttn_Accessor<"::mlir::diffattn::Activation", "getLambdaAct", "The activation of lambda.">,
    DiffAttn_Accessor<"::mlir::diffattn::Norm", "getNorm", "The norm of each head.">,
    DiffAttn_Accessor<"::llvm::APFloat", "getNormEps", "Added to the mean of squares, or to its root.">,
    DiffAttn_Accessor<"::mlir::diffattn::EpsMode", "getNormEpsMode", "Where norm_eps is added.">,
    DiffAttn_Accessor<"::llvm::APFloat", "getOutScale", "The factor of the output.">,
    DiffAttn_Accessor<"::mlir::diffattn::Layout", "getOLayout", "Order of the axes of the output and the gate.">,
    InterfaceMethod<[{
      The role of each axis of operand `number`.
    }], "::llvm::SmallVector<::mlir::diffattn::AxisRole>", "getAxisRoles", (ins "unsigned":$number)>
  ];
}

#endif // DIFFATTN_IR_MAPSINTERFACE_TD
