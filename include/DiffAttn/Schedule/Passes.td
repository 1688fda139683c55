//===- Passes.td - passes that choose schedules ------------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_SCHEDULE_PASSES_TD
#define DIFFATTN_SCHEDULE_PASSES_TD

include "mlir/Pass/PassBase.td"

def SelectSchedulePass : Pass<"diffattn-select-schedule"> {
  let summary = "Choose how each diffattn.attention is cut into tiles";
  let description = [{
    Sets the attribute `schedule` of every `diffattn.attention`, on tensors or on
    memrefs, that has none: the numbers of a CPU kernel for the op's element type
    and the instruction set. An op that carries a schedule keeps it. What no kernel
    takes gets `#diffattn.schedule<path = linalg>`, and a remark of the category
    `diffattn-schedule` says why. Changes nothing else.
  }];
  let options = [
    Option<"isa", "isa", "std::string", /*default=*/"\"native\"",
           "Instruction set: native, avx512bf16, avx512, avx2 or generic">,
    Option<"linalg", "linalg", "bool", /*default=*/"false",
           "Give every op the linalg path">];
}

def SelectGpuSchedulePass : Pass<"diffattn-select-gpu-schedule"> {
  let summary = "Choose how each attention op is cut into GPU blocks and warps";
  let description = [{
    Puts `diffattn.gpu_schedule` on every `diffattn.attention` that has none: a row of the table of
    schedules that assemble without a spill, by the cost model of docs/gpu.md, or the general
    schedule for other widths; the decode kernel where there are at most 8 queries. Where their number
    is dynamic, `diffattn.gpu_decode_schedule` is that of up to 8. `diffattn.gpu_element_schedule` is
    for pointers and strides that do not allow copies of 16 bytes.
    A schedule written by hand stays. An op without a GPU kernel is left alone, with a missed
    remark of category `diffattn-gpu`. Chips older than sm_80 are refused; a newer chip than those
    of the tables gets what sm_80 gets, with a remark.
  }];
  let options = [Option<"chip", "chip", "std::string", /*default=*/"\"sm_80\"",
                        "Chip to choose for: sm_80, sm_86, sm_89, sm_90 or newer">];
}

#endif // DIFFATTN_SCHEDULE_PASSES_TD
