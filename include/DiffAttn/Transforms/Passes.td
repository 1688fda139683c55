//===- Passes.td - passes from tensor IR to tensor IR ------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TRANSFORMS_PASSES_TD
#define DIFFATTN_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def DecomposeTensorOpsPass
    : InterfacePass<"diffattn-decompose-tensor-ops", "FunctionOpInterface"> {
  let summary = "Rewrite tensor and linalg ops that have no direct lowering";
  let description = [{
    Rewrites, on tensors, `linalg.softmax` to its generics, `tensor.concat` to
    slices of one destination, `tensor.pad` to a fill and a slice,
    `linalg.pack`, `linalg.unpack` and elementwise `arith` and `math` ops on
    tensors to loops' worth of `linalg`, and named `linalg` ops that are not
    contractions or convolutions to `linalg.generic`. Exact: no value changes.
    `linalg.softmax` on memrefs becomes loops as well, with sums in f32 where its
    elements have 16 bits.
  }];
  let dependentDialects = ["arith::ArithDialect", "linalg::LinalgDialect",
                           "math::MathDialect", "memref::MemRefDialect",
                           "scf::SCFDialect", "tensor::TensorDialect"];
}

def InlineResourcesPass : Pass<"diffattn-inline-resources", "ModuleOp"> {
  let summary = "Write resources as dense constants where upstream asks for it";
  let description = [{
    A `dense_resource` of at most 1024 elements, of rank 0 or of i1 becomes
    `dense`: folders read no elements of a resource, and the translation to LLVM
    IR takes none of rank 0, of i1 or without elements. A resource that is
    missing or of a wrong size is an error. Larger ones stay where they lie.
  }];
}

def FuseElementwisePass
    : InterfacePass<"diffattn-fuse-elementwise", "FunctionOpInterface"> {
  let summary = "Fuse element-wise linalg ops into their only consumer";
  let description = [{
    Fuses an element-wise `linalg.generic` into a consumer when that is its
    only use, or when it only moves elements (a broadcast, a constant). A value
    that is broadcast by its consumer is fused only if it costs no division or
    `math` op, because it would be computed again for every element. Reshapes
    are never moved, so contractions keep their two dimensions. An op that reads
    a concatenation of two tensors (a rotary embedding) becomes one for each of
    them. Exact.
  }];
  let dependentDialects = ["affine::AffineDialect", "arith::ArithDialect",
                           "linalg::LinalgDialect", "tensor::TensorDialect"];
}

def FuseGatedGemmsPass
    : InterfacePass<"diffattn-fuse-gated-gemms", "FunctionOpInterface"> {
  let summary = "Multiply by a gate's weight and by what it gates at once";
  let description = [{
    Two `diffattn.gemm`s of the same `a` whose only reader is an element-wise op
    that computes `silu(g) * u` from their results become a `diffattn.gated_gemm`
    of the same numbers: `rounded` says what was rounded on the way. So neither
    result is written to memory. The element-wise op may do nothing else, nor have
    flags that allow another result; its spelling is `g * (1 / (1 + exp(-g))) * u`
    with factors and terms in any order, in f32 and bf16.

    Only where the CPU `isa` has tiles, all operands are bf16, both second operands
    are weights or constants, and their products sum in one order by
    `batch-invariant`. Runs behind `diffattn-fuse-elementwise` and before
    `diffattn-bind-weights`. Exact: the same bits.
  }];
  let options = [
    Option<"isa", "isa", "std::string", /*default=*/"\"native\"",
           "Instruction set that the products are compiled for">,
    Option<"batchInvariant", "batch-invariant", "std::string", /*default=*/"\"auto\"",
           "Products whose rows do not depend on one another: auto, true or false">];
  let dependentDialects = ["diffattn::DiffAttnDialect", "tensor::TensorDialect"];
}

def BindWeightsPass : Pass<"diffattn-bind-weights", "ModuleOp"> {
  let summary = "Give each weight of a model a slot in one table";
  let description = [{
    Rewrites `ml_program.global_load_const` of an extern global and
    `diffattn.layer_weight` to `diffattn.weight` of a slot. Slots are numbered
    in the order of declaration; a pattern of N layers takes N. The module gets
    the list as `diffattn.weights`: a `#diffattn.weight` for each. Globals with a
    value become constants.
  }];
  let dependentDialects = ["arith::ArithDialect", "cf::ControlFlowDialect",
                           "bufferization::BufferizationDialect",
                           "diffattn::DiffAttnDialect", "memref::MemRefDialect"];
}

def MergeGemmsPass : Pass<"diffattn-merge-gemms", "ModuleOp"> {
  let summary = "Multiply the same rows with several weights at once";
  let description = [{
    `diffattn.gemm`s of one block on tensors that have the same `a`, and whose `b` are
    weights of the table, `[N, K]`, of one layer, become one product with all their rows
    (queries, keys and values; the gate and what it gates). The results are slices of its
    columns; one of a narrower type than another's is rounded from f32 by an op of its own.
    The weights are made to lie side by side in a device's memory, in
    the order in which they are declared: `follows` of their `#diffattn.weight`. So no
    weight is copied, and each can still be read alone.

    Products stay apart whose sizes are not aligned as `DiffAttn/Schedule/MergedGemm.h`
    says, that accumulate or write into a tensor that is there, or whose `b` is no weight
    or lies beside another one already. For products whose launches cost time, those of a
    device. Runs behind `diffattn-bind-weights`.
  }];
  let dependentDialects = ["arith::ArithDialect", "bufferization::BufferizationDialect",
                           "diffattn::DiffAttnDialect", "linalg::LinalgDialect",
                           "tensor::TensorDialect"];
}

def ScalarCountersPass
    : Pass<"diffattn-scalar-counters", "::mlir::func::FuncOp"> {
  let summary = "Make counters of loops that are tensors scalars";
  let description = [{
    Importers carry the counter of a loop as a tensor of one integer. Where what
    `scf.while` carries so follows from constants, sizes and scalar arguments alone,
    it becomes a scalar, and with it the condition and the places that are computed
    from it. A GPU's host code then knows them: it reads no tensor.
  }];
  let dependentDialects = ["arith::ArithDialect", "tensor::TensorDialect"];
}

def WidenReductionsPass
    : InterfacePass<"diffattn-widen-reductions", "FunctionOpInterface"> {
  let summary = "Sum and multiply up 16-bit numbers in f32";
  let description = [{
    Importers add numbers of f16 and bf16 to a tensor of their type, where 256 and 1
    are 256. Sums and products over the reduction dimensions of a `linalg.generic` on
    tensors, and the sums of convolutions and pools, become ones of f32, which are
    rounded once, at their end, and so do the products that are summed. So do the
    greatest and least ones, which are exact in any type: CPUs compare no f16 or bf16.
  }];
  let dependentDialects = ["arith::ArithDialect", "linalg::LinalgDialect", "tensor::TensorDialect"];
}

def RelaxReductionsPass
    : InterfacePass<"diffattn-relax-reductions", "FunctionOpInterface"> {
  let summary = "Let sums and products over a reduction dimension be computed in any order";
  let description = [{
    Puts `fastmath<reassoc>` on the `arith.addf` that joins a floating-point sum
    in a `linalg` op with reduction dimensions, and on the `arith.mulf` of a
    product, so that LLVM may keep a partial one per lane. Changes rounding within the bounds of docs/numerics.md. No
    other flag is set: NaN and infinity keep their meaning.
  }];
}

def SplitDestinationsPass
    : InterfacePass<"diffattn-split-destinations", "FunctionOpInterface"> {
  let summary = "Give each use of an empty or filled tensor its own";
  let description = [{
    Clones `tensor.empty` and `linalg.fill`, and casts and reshapes of them, for
    each op that writes to it. CSE merges them, and a merged destination that is
    written twice costs a buffer and a copy, or is written by two as their own
    where a loop carries it twice. Slices of one tensor go on sharing it.
  }];
}

def SeparateResultsPass : Pass<"diffattn-separate-results", "ModuleOp"> {
  let summary = "Copy what a loop, a branch or a function gives twice";
  let description = [{
    One-shot bufferization takes the results of `scf.for` and of a function that is
    called for different buffers, also where two of them are one value or views of
    one, and may then write to both. The later ones are copied. So are values from
    outside that `scf.while` goes on with, which it would write to. Of
    `scf.index_switch` it does not know whose buffers its results are: those with
    tensors become `scf.if`.
  }];
  let dependentDialects = ["arith::ArithDialect", "bufferization::BufferizationDialect",
                           "scf::SCFDialect"];
}

def MarkReadOnlyArgumentsPass
    : Pass<"diffattn-mark-read-only-arguments", "ModuleOp"> {
  let summary = "Keep bufferization from writing to a caller's inputs";
  let description = [{
    Sets `bufferization.writable = false` on the tensor arguments of public
    functions that say nothing about it. Only an argument that is marked
    `bufferization.writable = true` (a KV cache) is updated in place.
  }];
}

def UnpackSequencesPass : Pass<"diffattn-unpack-sequences"> {
  let summary = "Rewrite attention on packed sequences as a loop over them";
  let description = [{
    Rewrites `diffattn.attention` with `cu_seqlens_q` as a loop over the sequences,
    with attention on slices of one of them, which takes the schedule of its own
    sizes. So its bits are those of the sequence alone. Pages stay: each sequence
    has its row of `block_table`. On tensors and on memrefs.
  }];
  let dependentDialects = ["arith::ArithDialect", "diffattn::DiffAttnDialect",
                           "memref::MemRefDialect", "scf::SCFDialect",
                           "tensor::TensorDialect"];
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

def CheckSizesPass
    : InterfacePass<"diffattn-check-sizes", "FunctionOpInterface"> {
  let summary = "Assert that sizes known only at run time fit together";
  let description = [{
    Ops on tensors and memrefs take it for granted that their sizes fit: that
    the operands of a `linalg` op have one length along a loop, that a cast to a
    known size or a reshape finds as many elements as it needs, that padding is
    not negative, and everything that the verifiers of our own ops demand. What
    does not follow from how the tensors were made is asserted (`cf.assert`),
    each fact once: at the start of the function where it is one about the
    function's arguments, else before the op. A run with other sizes then ends
    with an error in place of reading past the end. In a message `{0}` and `{1}`
    stand for the sides of the comparison that is asserted. What cu_seqlens_q,
    cu_seqlens_k and block_table of attention hold is asserted too, unless the
    tensors are in device memory (`device`), which the host does not read.
    Tensors with an encoding, as sparse ones have, are an error.
  }];
  let options = [Option<"device", "device", "bool", /*default=*/"false",
                        "Assert nothing of what tensors hold">];
  let dependentDialects = ["arith::ArithDialect", "cf::ControlFlowDialect",
                           "memref::MemRefDialect", "tensor::TensorDialect"];
}

def CheckAccessesPass : Pass<"diffattn-check-accesses", "func::FuncOp"> {
  let summary = "Assert that elements and slices lie inside of their buffers";
  let description = [{
    Loads, stores and slices of memrefs take it for granted that their indices
    lie inside, divisions that the quotient exists, shifts that they are less
    than the width, loops that their counter goes up and does not wrap around.
    What does not follow from sizes, counters, minima and maxima is asserted
    (`cf.assert`). Loops do not get slower: of an index that runs with the
    counters of loops the ends are compared before them, and the indices that a
    `linalg` op reads as data are gone through once before it, along the loops
    that they depend on. Only what neither is possible for is asserted before
    the op. Large buffers of the stack are moved off it.
  }];
  let dependentDialects = ["affine::AffineDialect", "arith::ArithDialect",
                           "cf::ControlFlowDialect", "linalg::LinalgDialect",
                           "memref::MemRefDialect"];
}

def FuseDifferentialPass
    : InterfacePass<"diffattn-fuse-differential", "FunctionOpInterface"> {
  let summary = "Raise the difference of two attentions to diffattn.attention";
  let description = [{
    Finds `(softmax(s*Q1*K1') - lambda * softmax(s*Q2*K2')) * V` in graphs of
    `linalg`, `tensor`, `arith` and `math` ops by what they compute, whatever
    ops an exporter spelled it with, and replaces it by one
    `diffattn.attention`. The norm of each head, its weight, a constant factor
    and a sigmoid gate behind it become the op's epilogue; masks become
    attributes where they are proven to be causal or a window, else operands.

    All or nothing: a candidate that the op cannot express stays as it is, with
    a missed-optimization remark of category `diffattn-fuse`. docs/raising.md
    lists what is seen and what changes. Changes rounding: the maps are not
    rounded before they are subtracted, and rows that see no key become 0.
  }];
  let options = [
    Option<"rescaleQueries", "rescale-queries", "bool", "false",
           "Raise maps of different scale by scaling the second query">];
  let dependentDialects = ["arith::ArithDialect", "diffattn::DiffAttnDialect",
                           "linalg::LinalgDialect", "math::MathDialect",
                           "tensor::TensorDialect"];
}

def ConvertCopyToLoopsPass
    : InterfacePass<"convert-diffattn-copy-to-loops", "FunctionOpInterface"> {
  let summary = "Copy strided buffers by loops instead of a library call";
  let description = [{
    Rewrites a `memref.copy` that is not between two contiguous buffers of one
    type to a `linalg.generic`, and drops copies of a buffer to itself. The rest
    becomes `llvm.intr.memcpy` with the other memref ops.
  }];
  let dependentDialects = ["linalg::LinalgDialect"];
}

def ConvertReshapeToStridedPass
    : InterfacePass<"convert-diffattn-reshape-to-strided", "FunctionOpInterface"> {
  let summary = "Rewrite memref reshapes to one reinterpreted view";
  let description = [{
    Rewrites `memref.expand_shape` with two or more dynamic sizes in a group,
    which `expand-strided-metadata` cannot take, to `memref.reinterpret_cast`
    with the offset and strides of its source.
  }];
  let dependentDialects = ["affine::AffineDialect", "arith::ArithDialect", "memref::MemRefDialect"];
}

def ConvertSubviewToStridedPass
    : InterfacePass<"convert-diffattn-subview-to-strided", "FunctionOpInterface"> {
  let summary = "Rewrite memref slices that leave out one of several axes of 1";
  let description = [{
    Rewrites `memref.subview` with steps that leaves out some of its axes of size 1
    and keeps others, on which `fold-memref-alias-ops` and `expand-strided-metadata`
    crash, to `memref.reinterpret_cast` with the offset and strides of its source.
  }];
  let dependentDialects = ["affine::AffineDialect", "arith::ArithDialect", "memref::MemRefDialect"];
}

def ReuseBuffersPass : Pass<"diffattn-reuse-buffers", "func::FuncOp"> {
  let summary = "Let values that do not live at once share one buffer";
  let description = [{
    A buffer that no op uses any more takes the place of one of the same type
    and sizes that is first used later in the same block, so that the memory of
    a graph without loops does not grow with its depth, and what is written
    next lies in the caches. Views that are made of a buffer count as its uses.
    Buffers that leave their block are left alone.
  }];
  let dependentDialects = ["memref::MemRefDialect"];
}

def ScopeArenaPass : Pass<"diffattn-scope-arena", "ModuleOp"> {
  let summary = "Release the arena at the ends of functions and loop bodies";
  let description = [{
    Surrounds the body of a function that allocates and returns no memref, and
    the body of a loop that allocates and yields none, by `diffattn_rt_mark` and
    `diffattn_rt_release`, so that a deep model needs the memory of one layer.
    With `device` these are `diffattn_rt_device_mark` and
    `diffattn_rt_device_release`.
  }];
  let options = [Option<"device", "device", "bool", /*default=*/"false",
           "Buffers lie on a GPU: call the runtime's functions for it">];
  let dependentDialects = ["LLVM::LLVMDialect"];
}

def ExportFunctionsPass : Pass<"diffattn-export-functions", "ModuleOp"> {
  let summary = "Give public functions the C interface, hide the private ones";
  let description = [{
    Sets `llvm.emit_c_interface` on public functions with a body, so that they
    can be called with descriptors by pointer, and internal linkage on private
    ones. Declarations stay as the user wrote them.
  }];
  let dependentDialects = ["LLVM::LLVMDialect"];
}

def ExpandMathPass : InterfacePass<"diffattn-expand-math", "FunctionOpInterface"> {
  let summary = "Compute exp, log, tanh, erf and powers without a library";
  let description = [{
    Rewrites `math` ops on f32, and on f16 and bf16 through f32, to arithmetic
    that LLVM vectorizes: `exp`, `exp2`, `expm1`, `log`, `log2`, `log1p`, `tanh`,
    `erf`, `rsqrt`, `sin`, `cos`, `tan`, `atan`, `atan2`, the hyperbolic functions and
    their inverses, and powers to a small constant integer. Each is good to a few units in the last
    place of f32, for every finite number; infinities and NaN come out as from a
    library. Ops on tensors stay: `diffattn-decompose-tensor-ops` makes loops of them.

    `pow`, `log10` and all of f64 stay calls of the C library, among others, unless
    `all` is set: then the rest on f32 is arithmetic or written in terms of the
    others; and `round` and `arith.remf` are arithmetic on every type of float, and
    exact.
  }];
  let options = [Option<"all", "all", "bool", /*default=*/"false",
                        "Leave no function of f32 to a library">];
  let dependentDialects = ["arith::ArithDialect", "math::MathDialect", "scf::SCFDialect", "vector::VectorDialect"];
}

#endif // DIFFATTN_TRANSFORMS_PASSES_TD
