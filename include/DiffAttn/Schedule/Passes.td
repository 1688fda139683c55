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
    memrefs, that has none: the numbers of a CPU nest for the op's element type
    and the instruction set. An op that carries a schedule keeps it. What no nest
    takes gets `#diffattn.schedule<path = linalg>`, and a remark of the category
    `diffattn-schedule` says why. Changes nothing else.
  }];
  let options = [
    Option<"isa", "isa", "std::string", /*default=*/"\"native\"",
           "Instruction set: native, avx512bf16, avx512, avx2 or generic">,
    Option<"linalg", "linalg", "bool", /*default=*/"false",
           "Give every op the linalg path">];
}

#endif // DIFFATTN_SCHEDULE_PASSES_TD
