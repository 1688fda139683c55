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

def DiffAttn_SchedulePath : DiffAttn_Enum<"SchedulePath", "lowering that an op takes", [
  I32EnumAttrCase<"Nest", 0, "nest">, I32EnumAttrCase<"Linalg", 1, "linalg">]>;

def DiffAttn_ScheduleAttr : AttrDef<DiffAttn_Dialect, "Schedule"> {
  let mnemonic = "schedule";
  let summary = "how one attention op is cut into tiles";
  let description = [{
    Chosen by `diffattn-select-schedule`, obeyed by `convert-diffattn-to-vector`, and free to be
    written by hand. `path = linalg` leaves the op to `diffattn-decompose`. The numbers of a nest:

    - `isa`: the instruction set that the code is made for, and `lanes`, its f32 elements a vector;
    - `rows`: queries in a block, a multiple of `lanes`;
    - `qk_tile = [keys, vectors of rows, unroll]` and `pv_tile = [rows, vectors of value
      columns, unroll]`: the register blocks of the two products;
    - `kv_block_size`: keys between two updates of the running maximum;
    - `two_pass_keys`: up to this many keys the scores of both maps are kept and multiplied with V
      once; with more, KV blocks are merged as online states;
    - `split_rows`, `split_keys`: up to so many queries, keys are split over threads in such blocks; where the
      number of queries is not static, only if there are more keys than `split_rows`;
    - `bf16_dot`: multiply bf16 pairs as they are.

    Example:

    ```mlir
    #diffattn.schedule<path = nest, isa = "avx512", lanes = 16, rows = 48, qk_tile = [8, 3, 8],
        pv_tile = [6, 4, 4], kv_block_size = 256, two_pass_keys = 16384, split_rows = 8,
        split_keys = 256>
    #diffattn.schedule<path = linalg>
    ```
  }];
  let parameters = (ins
    EnumParameter<DiffAttn_SchedulePath>:$path,
    StringRefParameter<"", "\"\"">:$isa,
    DefaultValuedParameter<"int64_t", "0">:$lanes,
    DefaultValuedParameter<"int64_t", "0">:$rows,
    OptionalParameter<"::mlir::DenseI64ArrayAttr">:$qk_tile,
    OptionalParameter<"::mlir::DenseI64ArrayAttr">:$pv_tile,
    DefaultValuedParameter<"int64_t", "0">:$kv_block_size,
    DefaultValuedParameter<"int64_t", "0">:$two_pass_keys,
    DefaultValuedParameter<"int64_t", "0">:$split_rows,
    DefaultValuedParameter<"int64_t", "0">:$split_keys,
    DefaultValuedParameter<"bool", "false">:$bf16_dot);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}

#endif // DIFFATTN_IR_DIFFATTNATTRS_TD
