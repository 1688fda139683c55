//===- Passes.td - passes into other dialects --------------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CONVERSION_PASSES_TD
#define DIFFATTN_CONVERSION_PASSES_TD

include "mlir/Pass/PassBase.td"

def DecomposePass : Pass<"diffattn-decompose"> {
  let summary = "Write the dialect's ops as linalg ops";
  let description = [{
    Replaces ops that no schedule lowers directly by `linalg`, `arith` and `math`
    ops with the meaning that docs/spec.md states: f32 accumulation, one rounding,
    rows of zeros where no key is seen. Right for every operand and option of the
    ops, on tensors and on memrefs (intermediate values are then `memref.alloc`s,
    freed at the end), and fast on nothing: the scores of both maps exist in memory.

    Packed sequences become a loop, and pages are copied, before.

    By default an op of which some call takes a schedule with a kernel of its own is
    kept; with `all` none is. With `target`, `cpu` or `gpu`, kernels for the other
    one do not count.

    Gradients of attention without a schedule bring a missed-optimization remark
    `Decompose` of category `diffattn-schedule`, unless `all` was asked for.
  }];
  let options = [
    Option<"all", "all", "bool", /*default=*/"false",
           "Decompose also the ops whose schedule has a lowering of its own">,
    Option<"target", "target", "std::string", /*default=*/"\"any\"",
           "Whose schedules count: cpu, gpu or any">];
  let dependentDialects = ["arith::ArithDialect", "linalg::LinalgDialect", "math::MathDialect",
                           "memref::MemRefDialect", "scf::SCFDialect", "tensor::TensorDialect"];
}

#endif // DIFFATTN_CONVERSION_PASSES_TD
