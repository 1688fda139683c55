//===- DiffAttnMasks.td - kinds of masks -------------------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The op's text does not hold these attributes: `getMasks()` of attention and
// online_attention makes them of its operands and attributes. lib/IR/Masks.cpp
// defines them.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTNMASKS_TD
#define DIFFATTN_IR_DIFFATTNMASKS_TD

include "DiffAttn/IR/DiffAttnBase.td"
include "DiffAttn/IR/MaskInterface.td"
include "mlir/IR/AttrTypeBase.td"

class DiffAttn_Mask<string name, string attrMnemonic, list<string> methods>
    : AttrDef<DiffAttn_Dialect, name, [
        DeclareAttrInterfaceMethods<DiffAttn_MaskAttrInterface, methods>]> {
  let mnemonic = attrMnemonic;
}

def DiffAttn_LengthMaskAttr : DiffAttn_Mask<"LengthMask", "length_mask", ["isInterval"]> {
  let summary = "keys before kv_len are visible";
  let description = [{
    Example: `#diffattn.length_mask`
  }];
}

def DiffAttn_CausalMaskAttr : DiffAttn_Mask<"CausalMask", "causal_mask",
                                            ["getReach", "isInterval"]> {
  let summary = "keys up to the query's own position are visible";
  let description = [{
    Example: `#diffattn.causal_mask`
  }];
}

def DiffAttn_WindowMaskAttr : DiffAttn_Mask<"WindowMask", "window_mask",
                                            ["getReach", "isInterval"]> {
  let summary = "keys near the query's own position are visible";
  let description = [{
    At most `left` before and `right` after it; -1: no limit on that side.

    Example: `#diffattn.window_mask<left = 256, right = -1>`
  }];
  let parameters = (ins "int64_t":$left, "int64_t":$right);
  let assemblyFormat = "`<` struct(params) `>`";
}

def DiffAttn_BooleanMaskAttr : DiffAttn_Mask<"BooleanMask", "boolean_mask", []> {
  let summary = "keys where the i1 bias is true are visible";
  let description = [{
    Example: `#diffattn.boolean_mask`
  }];
}

def DiffAttn_AdditiveBiasAttr : DiffAttn_Mask<"AdditiveBias", "additive_bias",
                                              ["hasScoreTerm", "getScoreTerm"]> {
  let summary = "a bias on each score; keys where it is not -inf are visible";
  let description = [{
    Example: `#diffattn.additive_bias`
  }];
}

def DiffAttn_SegmentMaskAttr : DiffAttn_Mask<"SegmentMask", "segment_mask",
                                             ["hasTileRelation", "getTileRelation"]> {
  let summary = "keys of the query's own segment are visible";
  let description = [{
    Segments have numbers, any ones in any order; equal ones are the same segment.

    Example: `#diffattn.segment_mask`
  }];
}

#endif // DIFFATTN_IR_DIFFATTNMASKS_TD
