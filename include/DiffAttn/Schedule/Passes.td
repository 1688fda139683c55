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
    Appends to the `schedules` of every `diffattn.attention`, on tensors or on
    memrefs, whose list does not take every call on a CPU: the kernels for the op's
    shape, its element type and the instruction set. An op that no kernel computes gets
    `#diffattn.linalg`, and a remark of the category `diffattn-schedule` says why.
    Changes nothing else.
  }];
  let options = [
    Option<"isa", "isa", "std::string", /*default=*/"\"native\"",
           "Instruction set, as avx512; native: the best of this machine">,
    Option<"prefetchBytes", "prefetch-bytes", "int64_t", /*default=*/"-1",
           "How far ahead of keys and values lines are asked for, 0: not at all, -1: as "
           "the instruction set has it">,
    Option<"linalg", "linalg", "bool", /*default=*/"false",
           "Give every op the linalg path">];
}

def SelectGpuSchedulePass : Pass<"diffattn-select-gpu-schedule"> {
  let summary = "Choose how each attention op is cut into GPU blocks and warps";
  let description = [{
    Appends to the `schedules` of every `diffattn.attention` whose list does not take every call on
    a GPU: a row of the table of schedules that assemble without a spill, by the cost model of
    docs/gpu.md, or the general schedule for other widths; the decode kernel for at most 8 queries,
    under a condition where their number is dynamic; and, under a condition, another cut for pointers
    and strides that do not allow copies of 16 bytes, where the first one would spill there.
    An op without a GPU kernel is left alone, with a missed remark of category `diffattn-gpu`; the
    remark of one with kernels also has the shared memory of a block. Chips older than sm_80 are
    refused; a newer chip than those of the tables gets the schedules of sm_80, with a remark.
  }];
  let options = [Option<"chip", "chip", "std::string", /*default=*/"\"sm_80\"",
                        "Chip to choose for: sm_80, sm_86, sm_89, sm_90, sm_90a or newer">];
}

#endif // DIFFATTN_SCHEDULE_PASSES_TD
