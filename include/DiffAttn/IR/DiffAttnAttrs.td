//===- DiffAttnAttrs.td - enums and attributes -------------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTNATTRS_TD
#define DIFFATTN_IR_DIFFATTNATTRS_TD

include "DiffAttn/IR/DiffAttnBase.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"

class DiffAttn_Enum<string name, string summary, list<I32EnumAttrCase> cases>
    : I32EnumAttr<name, summary, cases> {
  let cppNamespace = "::mlir::diffattn";
  let genSpecializedAttr = 0;
}
class DiffAttn_EnumAttr<EnumAttrInfo info, string mnemonic>
    : EnumAttr<DiffAttn_Dialect, info, mnemonic> {
  let assemblyFormat = "`<` $value `>`";
}

def DiffAttn_Layout : DiffAttn_Enum<"Layout", "order of the axes of a head-split operand", [
  I32EnumAttrCase<"BHTD", 0, "bhtd">, I32EnumAttrCase<"BTHD", 1, "bthd">]>;
def DiffAttn_LayoutAttr : DiffAttn_EnumAttr<DiffAttn_Layout, "layout">;

def DiffAttn_Activation : DiffAttn_Enum<"Activation", "activation applied to lambda", [
  I32EnumAttrCase<"Identity", 0, "identity">, I32EnumAttrCase<"Sigmoid", 1, "sigmoid">]>;
def DiffAttn_ActivationAttr : DiffAttn_EnumAttr<DiffAttn_Activation, "activation">;

def DiffAttn_Norm : DiffAttn_Enum<"Norm", "norm over the width of one head", [
  I32EnumAttrCase<"None", 0, "none">, I32EnumAttrCase<"RMS", 1, "rms">]>;
def DiffAttn_NormAttr : DiffAttn_EnumAttr<DiffAttn_Norm, "norm">;

def DiffAttn_EpsMode : DiffAttn_Enum<"EpsMode", "where the norm adds its epsilon", [
  I32EnumAttrCase<"Inside", 0, "inside">, I32EnumAttrCase<"Outside", 1, "outside">]>;
def DiffAttn_EpsModeAttr : DiffAttn_EnumAttr<DiffAttn_EpsMode, "eps_mode">;

def DiffAttn_GateRounding : I32BitEnumAttr<"GateRounding", "what a gated product rounds on the way", [
  I32BitEnumAttrCaseNone<"None", "none">, I32BitEnumAttrCaseBit<"Sums", 0, "sums">,
  I32BitEnumAttrCaseBit<"Exponential", 1, "exponential">,
  I32BitEnumAttrCaseBit<"Denominator", 2, "denominator">,
  I32BitEnumAttrCaseBit<"Sigmoid", 3, "sigmoid">, I32BitEnumAttrCaseBit<"Silu", 4, "silu">]> {
  let cppNamespace = "::mlir::diffattn";
  let genSpecializedAttr = 0;
}
def DiffAttn_GateRoundingAttr : DiffAttn_EnumAttr<DiffAttn_GateRounding, "gate_rounding">;

#endif // DIFFATTN_IR_DIFFATTNATTRS_TD
