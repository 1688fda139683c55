//===- DiffAttnMaps.td - what the ops with two maps share --*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTNMAPS_TD
#define DIFFATTN_IR_DIFFATTNMAPS_TD

include "DiffAttn/IR/DiffAttnAttrs.td"
include "DiffAttn/IR/DiffAttnTypes.td"
include "mlir/Interfaces/DestinationStyleOpInterface.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def DiffAttn_IdData : DiffAttn_Shaped<[I32, I64], "i32 or i64">;

/// An op that makes the scores of two maps: its operands and attributes up to the
/// softmax. An op lists them in the order of its generic form.
class DiffAttn_MapsOp<string mnemonic, list<Trait> traits>
    : DiffAttn_Op<mnemonic, [
        AttrSizedOperandSegments, DestinationStyleOpInterface,
        DeclareOpInterfaceMethods<MemoryEffectsOpInterface>,
        DeclareOpInterfaceMethods<ReifyRankedShapedTypeOpInterface, ["reifyResultShapes"]>]
        # traits> {
  string visibleKeys = [{
    Key `j` is visible to query `i` if all of these hold, where the op has them:
    `j < kv_len[b]`; the boolean bias is true or the additive bias is not -inf; with
    `is_causal` `j <= p`; with `window = [L, R]` `-R <= p - j <= L` (-1: no limit on
    that side); with segments `kv_segments[b,j] = q_segments[b,i]`. Here
    `p = i + q_offset[b]`, and `q_offset` is by default `(kv_len or Tk) - Tq`, so that
    the last query sees the last key. Positions do not begin anew with a segment.
    bias is `[1|B, 1|Hn, 1|Tq, Tk]`, kv_len and q_offset `[B]`, q_segments `[B,Tq]`
    and kv_segments `[B,Tk]`.
  }];
  dag mapOperands = (ins
    DiffAttn_Data:$q1, DiffAttn_Data:$k1, DiffAttn_Data:$q2, DiffAttn_Data:$k2, DiffAttn_Data:$v);
  dag biasOperand = (ins Optional<DiffAttn_BiasData>:$bias);
  dag positionOperands = (ins
    Optional<DiffAttn_I64Data>:$kv_len, Optional<DiffAttn_I64Data>:$q_offset,
    Optional<DiffAttn_IdData>:$q_segments, Optional<DiffAttn_IdData>:$kv_segments);
  string positionClauses = [{
    (`kv_len` `(` $kv_len^ `:` type($kv_len) `)`)?
    (`q_offset` `(` $q_offset^ `:` type($q_offset) `)`)?
    (`q_segments` `(` $q_segments^ `:` type($q_segments) `)`)?
    (`kv_segments` `(` $kv_segments^ `:` type($kv_segments) `)`)?
  }];
  dag sequenceOperands = (ins
    Optional<DiffAttn_IdData>:$cu_seqlens_q, Optional<DiffAttn_IdData>:$cu_seqlens_k,
    Optional<DiffAttn_IdData>:$block_table);
  string sequenceClauses = [{
    (`cu_seqlens_q` `(` $cu_seqlens_q^ `:` type($cu_seqlens_q) `)`)?
    (`cu_seqlens_k` `(` $cu_seqlens_k^ `:` type($cu_seqlens_k) `)`)?
    (`block_table` `(` $block_table^ `:` type($block_table) `)`)?
  }];
  dag scoreAttributes = (ins
    F32Attr:$scale, UnitAttr:$is_causal, OptionalAttr<DenseI64ArrayAttr>:$window,
    OptionalAttr<F32Attr>:$softcap);
  dag inputLayouts = (ins
    DefaultValuedAttr<DiffAttn_LayoutAttr, "Layout::BHTD">:$q_layout,
    DefaultValuedAttr<DiffAttn_LayoutAttr, "Layout::BHTD">:$k_layout,
    DefaultValuedAttr<DiffAttn_LayoutAttr, "Layout::BHTD">:$v_layout);
  let hasVerifier = 1;
  string mapsDeclaration = [{
    /// Axis numbers of a head-split operand in `layout`.
    static int64_t headAxis(Layout layout) { return layout == Layout::BHTD ? 1 : 2; }
    static int64_t lengthAxis(Layout layout) { return layout == Layout::BHTD ? 2 : 1; }

    ShapedType getShaped(Value value) { return ::llvm::cast<ShapedType>(value.getType()); }
    /// Head counts.
    int64_t getSignalHeads() { return getShaped(getQ1()).getDimSize(headAxis(getQLayout())); }
    int64_t getNoiseHeads() { return getShaped(getQ2()).getDimSize(headAxis(getQLayout())); }
    int64_t getKey1Heads() { return getShaped(getK1()).getDimSize(headAxis(getKLayout())); }
    int64_t getKey2Heads() { return getShaped(getK2()).getDimSize(headAxis(getKLayout())); }
    int64_t getValueHeads() { return getShaped(getV()).getDimSize(headAxis(getVLayout())); }
    int64_t getHeadDim() { return getShaped(getQ1()).getDimSize(3); }
    int64_t getValueDim() { return getShaped(getV()).getDimSize(3); }

    /// Whether sequences follow one another along the axis of queries, and whether
    /// keys and values lie in pages.
    bool isPacked() { return static_cast<bool>(getCuSeqlensQ()); }
    bool isPaged() { return static_cast<bool>(getBlockTable()); }

    /// The masks: a key is visible where all of them say so.
    ::llvm::SmallVector<MaskAttrInterface> getMasks();
    /// The operand that masks read as `operand`; null where it is absent.
    OpOperand *findMaskOperand(MaskOperand operand);
    /// What each axis of operand `number` counts.
    ::llvm::SmallVector<AxisRole> getAxisRoles(unsigned number);
    /// q_offset, or its default (kv_len or Tk) - Tq built as a tensor. On tensors.
    Value materializeQOffset(OpBuilder &builder);
  }];
}

/// The attributes of what follows the softmax.
def DiffAttn_EpilogueAttributes {
  dag arguments = (ins
    DefaultValuedAttr<DiffAttn_ActivationAttr, "Activation::Identity">:$lambda_act,
    DefaultValuedAttr<DiffAttn_NormAttr, "Norm::None">:$norm,
    DefaultValuedAttr<F32Attr, "1.0e-5f">:$norm_eps,
    DefaultValuedAttr<DiffAttn_EpsModeAttr, "EpsMode::Inside">:$norm_eps_mode,
    DefaultValuedAttr<F32Attr, "1.0f">:$out_scale);
}

#endif // DIFFATTN_IR_DIFFATTNMAPS_TD
