//===- DiffAttnMaps.td - operands of ops with two maps -----*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTNMAPS_TD
#define DIFFATTN_IR_DIFFATTNMAPS_TD

include "DiffAttn/IR/DiffAttnAttrs.td"
include "DiffAttn/IR/DiffAttnTypes.td"
include "DiffAttn/IR/MapsInterface.td"
include "mlir/Interfaces/DestinationStyleOpInterface.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def DiffAttn_IdData : DiffAttn_Shaped<[I32, I64], "i32 or i64">;

/// An op that makes the scores of two maps, or of one, without q2 and k2: its
/// operands and attributes up to the softmax, read by all through
/// `DifferentialMapsOpInterface`. An op lists them in the order of its generic form.
/// Destinations and results are lists, which the op says more of.
class DiffAttn_MapsOp<string mnemonic, list<Trait> traits>
    : DiffAttn_Op<mnemonic, [
        AttrSizedOperandSegments, DestinationStyleOpInterface,
        DeclareOpInterfaceMethods<DiffAttn_DifferentialMapsOpInterface, ["getAxisRoles"]>,
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
    DiffAttn_Data:$q1, DiffAttn_Data:$k1, Optional<DiffAttn_Data>:$q2, Optional<DiffAttn_Data>:$k2,
    DiffAttn_Data:$v);
  string mapClause = [{
    `ins` `(` custom<Maps>($q1, $k1, $q2, $k2, $v, type($q1), type($k1), type($q2), type($k2),
      type($v)) `)`
  }];
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
