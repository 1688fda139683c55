//===- Passes.td - passes from tensor IR to tensor IR ------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TRANSFORMS_PASSES_TD
#define DIFFATTN_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def ImportWeightsPass : Pass<"diffattn-import-weights", "ModuleOp"> {
  let summary = "Make globals of arguments that are weights";
  let description = [{
    An argument of a function that an importer has marked with
    `diffattn.weight = "name"` becomes an `ml_program.global` of that name with an
    extern value, which the function loads. `diffattn.writable` becomes
    `bufferization.writable = true`: the function may write to that argument's
    memory. docs/spec.md has the contract (import_c1 to import_c3).
  }];
  let dependentDialects = ["ml_program::MLProgramDialect"];
}

def ImportSizesPass : Pass<"diffattn-import-sizes", "::mlir::func::FuncOp"> {
  let summary = "Assert what an importer knows of the sizes of arguments";
  let description = [{
    `diffattn.size = ["b", 4, unit]` on an argument names its sizes. The function
    asserts at its beginning that those of one name are equal, and that those with a
    number are that number; raising and bufferization read the assertions. Errors of
    calls number the arguments as they are, so this runs before
    `diffattn-import-weights`. docs/spec.md has the contract (import_c4, import_c5).
  }];
  let dependentDialects = ["arith::ArithDialect", "cf::ControlFlowDialect",
                           "tensor::TensorDialect"];
}

def ImportBuiltinsPass : Pass<"diffattn-import-builtins", "ModuleOp"> {
  let summary = "Write the ops that calls of a front door stand for";
  let description = [{
    An importer that meets an op of ours calls a private function without a body,
    which says with `diffattn.builtin = "attention"` what it stands for, and with
    `diffattn.options = {...}` how. Each call becomes that op, or loops that compute
    it, and the function goes. docs/spec.md lists the builtins (import_c6 on).
  }];
  let dependentDialects = ["arith::ArithDialect", "cf::ControlFlowDialect",
                           "diffattn::DiffAttnDialect", "linalg::LinalgDialect",
                           "math::MathDialect", "scf::SCFDialect",
                           "tensor::TensorDialect"];
}

def UnpackSequencesPass : Pass<"diffattn-unpack-sequences"> {
  let summary = "Rewrite attention on packed sequences as a loop over them";
  let description = [{
    Rewrites `diffattn.attention` with `cu_seqlens_q` as a loop over the sequences,
    with attention on slices of one of them, which takes the schedule of its own
    sizes. So its bits are those of the sequence alone. Pages stay: each sequence
    has its row of `block_table`. `diffattn.attention_backward` likewise: gradients
    of what all sequences share are sums over them, in their order, in f32, and
    rounded once. On tensors and on memrefs.
  }];
  let dependentDialects = ["arith::ArithDialect", "diffattn::DiffAttnDialect",
                           "linalg::LinalgDialect", "memref::MemRefDialect",
                           "scf::SCFDialect", "tensor::TensorDialect"];
}

def GatherPagesPass : Pass<"diffattn-gather-pages"> {
  let summary = "Copy keys and values out of their pages before attention";
  let description = [{
    Rewrites `diffattn.attention` with `block_table` as attention on dense copies of
    as many keys and values as the table has room for. Entries of the table that are
    no pages are brought into range: `diffattn-check-sizes` asserts those that are
    read. Packed sequences are left as they are. On tensors and on memrefs.
  }];
  let dependentDialects = ["arith::ArithDialect", "diffattn::DiffAttnDialect",
                           "linalg::LinalgDialect", "memref::MemRefDialect",
                           "tensor::TensorDialect"];
}

def AttentionToOnlinePass : InterfacePass<"diffattn-to-online", "FunctionOpInterface"> {
  let summary = "Rewrite attention as an online op over all keys and an end";
  let description = [{
    Rewrites `diffattn.attention` on tensors to `diffattn.online_attention`, from
    states that have seen no key, and `diffattn.finalize`. The online op can be tiled
    along the keys or split, its states joined by `diffattn.merge`. The two maps are
    multiplied with V one by one; results differ by the rounding of f32 sums, within
    docs/numerics.md. A schedule is dropped: it was made for the whole op. Attention
    on memrefs, or with a dynamic number of heads or width of values, stays as it is.
  }];
  let dependentDialects = ["arith::ArithDialect", "diffattn::DiffAttnDialect",
                           "linalg::LinalgDialect", "tensor::TensorDialect"];
}

def FuseDifferentialPass
    : InterfacePass<"diffattn-fuse-differential", "FunctionOpInterface"> {
  let summary = "Raise attention to diffattn.attention";
  let description = [{
    Finds `(softmax(s*Q1*K1') - lambda * softmax(s*Q2*K2')) * V` in graphs of
    `linalg`, `tensor`, `arith` and `math` ops by what they compute, whatever
    ops an exporter spelled it with, and replaces it by one
    `diffattn.attention`. The norm of each head, its weight, a constant factor
    and a sigmoid gate behind it become the op's epilogue; masks become
    attributes where they are proven to be causal or a window, else operands.
    Once no difference is left, `softmax(s*Q*K') * V` alone becomes an op of one
    map, unless its map belongs to a difference that stays.

    All or nothing: a candidate that the op cannot express stays as it is, with
    a missed-optimization remark of category `diffattn-fuse`. docs/raising.md
    lists what is seen and what changes. Changes rounding: the maps are not
    rounded before they are subtracted, and rows that see no key become 0.
  }];
  let options = [
    Option<"rescaleQueries", "rescale-queries", "bool", "false",
           "Raise maps of different scale by scaling the second query">,
    Option<"singleMaps", "single-maps", "bool", "true",
           "Raise single maps, behind all differences of two">];
  let dependentDialects = ["arith::ArithDialect", "diffattn::DiffAttnDialect",
                           "linalg::LinalgDialect", "math::MathDialect",
                           "tensor::TensorDialect"];
}

#endif // DIFFATTN_TRANSFORMS_PASSES_TD
