//===- DiffAttnGpuAttrs.td - attributes of GPU kernels -------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTNGPUATTRS_TD
#define DIFFATTN_IR_DIFFATTNGPUATTRS_TD

include "DiffAttn/IR/DiffAttnAttrs.td"

def DiffAttn_GpuPlacement : DiffAttn_Enum<"GpuPlacement", "which warp computes which map", [
  I32EnumAttrCase<"Both", 0, "both">, I32EnumAttrCase<"Pair", 1, "pair">,
  I32EnumAttrCase<"Apart", 2, "apart">, I32EnumAttrCase<"Plain", 3, "plain">]>;

def DiffAttn_GpuScheduleAttr : AttrDef<DiffAttn_Dialect, "GpuSchedule"> {
  let mnemonic = "gpu_schedule";
  let summary = "how one attention op is cut into GPU blocks and warps";
  let description = [{
    Chosen by `diffattn-select-gpu-schedule`, kept on the op as `diffattn.gpu_schedule`, obeyed by
    `convert-diffattn-to-gpu`, and free to be written by hand. So are `diffattn.gpu_decode_schedule`
    for at most 8 queries where their number is dynamic, and `diffattn.gpu_element_schedule` for
    operands that do not allow copies of 16 bytes.

    - `placement`: `both` maps in one warp; a `pair` of warps that shares rows, each with the softmax
      of one map and half of the value columns of both; the maps `apart`, half of the warps each,
      combined at the end; `plain`: products by ordinary f32 instructions, a row a warp;
    - `warps` of a block, `row_tiles` of 16 rows a warp, `keys` of a tile, `stages` of the ring;
    - `q_in_registers`: Q is kept in registers, else read from shared memory for each tile;
    - `split_keys`: when not 0, the decode kernel: keys are cut in blocks of so many, and a second
      kernel merges their states in fixed order.

    Example:

    ```mlir
    #diffattn.gpu_schedule<placement = both, warps = 4, row_tiles = 1, keys = 32, stages = 2,
                           q_in_registers = true>
    ```
  }];
  let parameters = (ins
    EnumParameter<DiffAttn_GpuPlacement>:$placement,
    "int64_t":$warps,
    DefaultValuedParameter<"int64_t", "1">:$row_tiles,
    "int64_t":$keys,
    DefaultValuedParameter<"int64_t", "2">:$stages,
    DefaultValuedParameter<"bool", "false">:$q_in_registers,
    DefaultValuedParameter<"int64_t", "0">:$split_keys);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}

#endif // DIFFATTN_IR_DIFFATTNGPUATTRS_TD
