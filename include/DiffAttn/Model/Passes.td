//===- Passes.td - passes of models around attention ------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_PASSES_TD
#define DIFFATTN_MODEL_PASSES_TD

include "mlir/IR/EnumAttr.td"
include "mlir/Pass/PassBase.td"

/// The stages of the pipelines and of what is emitted, in their order: passes,
/// runner, C API and Python take these words (docs/pipelines.md).
def Stage : I32Enum<"Stage", "stage of compilation", [
    I32EnumCase<"Input", 0, "input">, I32EnumCase<"Imported", 1, "imported">,
    I32EnumCase<"Raised", 2, "raised">, I32EnumCase<"Scheduled", 3, "scheduled">,
    I32EnumCase<"Bufferized", 4, "bufferized">, I32EnumCase<"GPU", 5, "gpu">,
    I32EnumCase<"PTX", 6, "ptx">, I32EnumCase<"Cubin", 7, "cubin">,
    I32EnumCase<"Loops", 8, "loops">, I32EnumCase<"LLVM", 9, "llvm">,
    I32EnumCase<"LLVMIR", 10, "llvm-ir">, I32EnumCase<"Assembly", 11, "assembly">,
    I32EnumCase<"Object", 12, "object">]> {
  let cppNamespace = "::mlir::diffattn";
}

/// Whether a row of a product must be bitwise the same for every number of rows,
/// position among them and number of threads: of products with weights, where
/// `isInvariantByDefault` says so (auto), of all (true) or of none (false).
def BatchInvariance : I32Enum<"BatchInvariance", "choice of products that sum in one order", [
    I32EnumCase<"Auto", 0, "auto">, I32EnumCase<"Always", 1, "true">,
    I32EnumCase<"Never", 2, "false">]> {
  let cppNamespace = "::mlir::diffattn";
}

class BatchInvariantOption
    : Option<"batchInvariant", "batch-invariant", "::mlir::diffattn::BatchInvariance",
             /*default=*/"::mlir::diffattn::BatchInvariance::Auto",
             "Products whose rows do not depend on one another: auto, true or false">;

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
    BatchInvariantOption<>];
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

    Products stay apart whose sizes are not aligned as `DiffAttn/Model/Schedule/MergedGemm.h`
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

def ConvertLinalgToRegisterLoopsPass
    : InterfacePass<"convert-diffattn-linalg-to-loops", "FunctionOpInterface"> {
  let summary = "Lower linalg to loops that keep their sums in registers";
  let description = [{
    Lowers `linalg` ops on memrefs to `scf.for`. Where the reduction dimensions
    are the innermost ones the accumulator is a value carried by the loops, read
    before and written after them, so that LLVM can vectorize the sum without
    proving that nothing else writes to it.

    Long sums whose `arith.addf` may come in any order (`fastmath<reassoc>`) have
    parts with sums of their own, so that equal terms are not all rounded alike: of
    8192 iterations where they lie in registers, of 256 rows in a buffer on the
    stack where the columns are the innermost loops.

    Where neighbours in a parallel loop read elements that lie side by side, as
    those of a convolution of each channel by itself, that loop is the innermost
    one and its vectors hold neighbours: small windows are unrolled in it, and
    larger sums are added to rows in memory. Either way each element adds up in
    the order of the loops, wherever it lies.

    Of ops without reductions, what depends on outer loops alone is computed and
    asserted there, and transpositions go by tiles.
  }];
  let dependentDialects = ["affine::AffineDialect", "arith::ArithDialect",
                           "memref::MemRefDialect", "scf::SCFDialect"];
}

def ConvertLinalgToGpuPass : Pass<"convert-linalg-to-gpu", "ModuleOp"> {
  let summary = "Emit GPU kernels for everything but attention and large products";
  let description = [{
    Replaces what computes or moves elements in host functions on memrefs
    (`linalg` ops, `memref.copy`, `memref.load`, `memref.store`, assertions about
    what was loaded) by `gpu.launch_func`s of kernels in the `gpu.module`
    `diffattn_kernels`. What is left is control flow, sizes, views, allocations,
    products, attention and launches, so memrefs may lie in device memory.

    Three kinds: `elementwise` (a thread computes up to 16 bytes of consecutive
    outputs), `row-reduction` (a warp or a block computes a row: reductions, with what is
    element-wise before and after them over the same row, in one kernel; sums in
    f32 in an order that depends on the row's length alone) and `generic` (a thread
    computes one output by loops, with a remark of category `diffattn-gpu`).

    A `diffattn.gemm` with at most four rows, of which 16 bytes can be read at a
    time, is a kernel too (`small_gemm`); the host code keeps the op for calls with
    more. Launches that follow one another, of which none touches what another one
    writes, become one (`horizontal`).

    Scalars that are read from memrefs stay on the device: they are computed in
    the kernels that use them. A size, a trip count or a result of a function
    that depends on one is an error. An assertion about one sets a status word,
    which every kernel that writes an argument or addresses memory by data
    tests, and which is read at the end of a public function
    (`diffattn_rt_device_check`).
  }];
  let options = [Option<"chip", "chip", "std::string", /*default=*/"\"sm_80\"",
                        "Chip to emit kernels for">];
  let dependentDialects = ["affine::AffineDialect", "arith::ArithDialect", "cf::ControlFlowDialect",
                           "gpu::GPUDialect", "linalg::LinalgDialect", "LLVM::LLVMDialect",
                           "math::MathDialect", "memref::MemRefDialect", "NVVM::NVVMDialect",
                           "scf::SCFDialect", "ub::UBDialect", "vector::VectorDialect"];
}

def ConvertLinalgToGemmPass
    : InterfacePass<"convert-linalg-to-gemm", "FunctionOpInterface"> {
  let summary = "Turn contractions into products of the runtime's library";
  let description = [{
    Rewrites `linalg` contractions of f32, f16, bf16 or f64 (`linalg.matmul` with
    any maps, batched ones, products with a vector, generics that multiply and
    add) to `diffattn.gemm`, if rows of A and C are rows: B may be transposed.
    Rows, columns and the inner dimension may each be of several axes that lie
    side by side; on tensors they are collapsed. What copies an operand without
    change (transpositions, broadcasts, widenings, unit axes, casts) is not
    computed if the operand's source is matrices as well, so that a weight that
    is repeated for a batch becomes one product of all rows. A zero fill of the destination becomes the form
    that overwrites. Sums are in f32 whatever the element type, so a product in
    half precision is rounded once and not at every step. Where nothing but a
    rounding to the operands' type needs a result in f32, the product stores
    that type. Other contractions stay and become loops.

    A convolution of floats with known sizes but for its batches is such a product as well (im2col): what the filter meets
    at each place of the result is copied side by side, a few MiB at a time, in a loop over batches, groups and rows of the image. Where the filter has
    one element, the input is the matrix. Groups with fewer than eight channels each that meet at most 64 elements stay loops. With more than 256 MiB of copies for a row of the image it stays a loop.
  }];
  let options = [Option<"convolutions", "convolutions", "bool", /*default=*/"true", "Convolutions, too.">];
  let dependentDialects = ["affine::AffineDialect", "diffattn::DiffAttnDialect", "scf::SCFDialect", "tensor::TensorDialect"];
}

def ConvertGemmToRuntimePass
    : Pass<"convert-diffattn-gemm-to-runtime", "ModuleOp"> {
  let summary = "Call the runtime's library for matrix products";
  let description = [{
    Rewrites `diffattn.gemm` on memrefs to `diffattn_rt_gemm`, or with batches to
    `diffattn_rt_batch_gemm`, with addresses and leading dimensions: views with
    contiguous rows are read where they lie, a B with contiguous columns is read
    as transposed, and only what has neither is copied first. Where B is a
    `diffattn.weight` the call gets its slot, so the runtime may pack it once.
    A constant B gets a slot of its own, which `diffattn_release_constants`, an
    external function that is emitted then, frees.

    `batch-invariant` chooses products that sum in the order of their inner
    dimension, by the runtime's own code, so that a row does not depend on the
    others: all (`true`), none (`false`), or those with weights and constants
    whose type the table of docs/numerics.md has for `isa` (`auto`). Of the
    others, a product of at most eight rows with a transposed B, which is that
    of a decode step, is computed by a kernel that is emitted for `isa`; where
    the number of rows is not static it is tested when the code runs.

    `diffattn.quantized_gemm` becomes a call of a kernel that widens the integers
    in registers, for at most 64 rows or, with `batch-invariant=true`, for any
    number. More rows are multiplied by the tiles of `isa`, in
    `diffattn_rt_quantized_gemm`, or where it has none by `diffattn_rt_gemm` with
    weights that are widened to the type of A, some rows of them at a time.

    With `device` every product is one call of `diffattn_rt_device_gemm` for each
    index of all batch dimensions but the last.
  }];
  let options = [
    Option<"isa", "isa", "std::string", /*default=*/"\"native\"",
           "Instruction set of the kernels for few rows">,
    Option<"prefetchBytes", "prefetch-bytes", "int64_t", /*default=*/"-1",
           "How far ahead of weights lines are asked for, 0: not at all, -1: as "
           "the instruction set has it">,
    Option<"threads", "threads", "int64_t", /*default=*/"0",
                        "Most threads of a product; 0 leaves it to the runtime">,
    BatchInvariantOption<>,
    Option<"device", "device", "bool", /*default=*/"false",
           "Buffers lie on a GPU: call the runtime's functions for it">];
  let dependentDialects = ["arith::ArithDialect", "LLVM::LLVMDialect", "math::MathDialect",
                           "memref::MemRefDialect", "scf::SCFDialect", "vector::VectorDialect"];
}

def TraceOpsPass : Pass<"diffattn-trace-ops", "ModuleOp"> {
  let summary = "Call the runtime where products and attentions begin and end";
  let description = [{
    Puts calls of `diffattn_rt_trace_begin` and `diffattn_rt_trace_end` around
    each product and attention on memrefs. The first is told a text, lines of
    category, name with sizes, place and function, and what the op has to do:
    floating-point operations, and bytes of the buffers that it reads and writes.
    Of attention, pairs of query and key that `kv_len`, `is_causal` and `window`
    hide are not counted, and a difference of maps is multiplied by the values
    once; of gradients, scores, the gradient of the maps' weights, and each
    gradient that is asked for.
  }];
  let dependentDialects = ["arith::ArithDialect", "LLVM::LLVMDialect",
                           "memref::MemRefDialect", "scf::SCFDialect"];
}

def ConvertWeightToRuntimePass
    : Pass<"convert-diffattn-weight-to-runtime", "ModuleOp"> {
  let summary = "Read the addresses of weights from the table diffattn_weights";
  let description = [{
    Rewrites `diffattn.weight` to a load from the external table
    `diffattn_weights`, which whoever loads the object provides.
  }];
  let dependentDialects = ["arith::ArithDialect", "LLVM::LLVMDialect"];
}

def ConvertAllocToRuntimePass
    : Pass<"convert-diffattn-alloc-to-runtime", "ModuleOp"> {
  let summary = "Take buffers from the arena of the runtime";
  let description = [{
    Rewrites `memref.alloc` to a call of `diffattn_rt_alloc`, whose memory is
    aligned to 64 bytes and lives until the arena is released, and one that a
    public function returns to a call of `diffattn_rt_alloc_result`, whose
    memory a caller can keep. `memref.dealloc` of either is dropped. With `device` the call is of
    `diffattn_rt_device_alloc`, with memory of the device aligned to 256 bytes.
  }];
  let options = [Option<"device", "device", "bool", /*default=*/"false",
           "Buffers lie on a GPU: call the runtime's functions for it">];
  let dependentDialects = ["LLVM::LLVMDialect", "memref::MemRefDialect"];
}

def ConvertAssertToRuntimePass
    : Pass<"convert-diffattn-assert-to-runtime", "ModuleOp"> {
  let summary = "Let a failed cf.assert end the run, not the process";
  let description = [{
    Rewrites `cf.assert` outside of structured control flow to a branch: on
    failure `diffattn_rt_fail` ends the run with the message and does not come
    back, so what the assertion guards (a gather out of bounds) is not executed.
  }];
  let dependentDialects = ["LLVM::LLVMDialect", "cf::ControlFlowDialect"];
}

def ConvertBitsToBytesPass : Pass<"convert-diffattn-bits-to-bytes", "ModuleOp"> {
  let summary = "Load and store truth values as bytes";
  let description = [{
    Rewrites `llvm.load` and `llvm.store` of an i1 to those of a byte: any but 0 is true, as it is for the callers whose arrays
    these are, and what is stored is 0 or 1. LLVM would take the lowest bit of some byte, and vectorizes no loop over an i1.
  }];
  let dependentDialects = ["LLVM::LLVMDialect"];
}

def VerifyLLVMPass : Pass<"diffattn-verify-llvm", "ModuleOp"> {
  let summary = "Fail where an op is left that nothing lowers";
  let description = [{
    Fails at the first op outside of the LLVM dialect and of nested modules: its name says more than
    the casts around it, of which a translation to LLVM IR would speak.
  }];
}

def ConvertConstantToWeightPass : Pass<"convert-diffattn-constant-to-weight", "ModuleOp"> {
  let summary = "Put constants in memory behind the weights of the table";
  let description = [{
    Replaces `memref.get_global` of a constant by `diffattn.weight` with a slot behind those of `diffattn.weights`, and lists the
    constants in the attribute `diffattn.constants` of the module: what a kernel reads must lie on the device, and so does what
    the table points to.
  }];
  let dependentDialects = ["arith::ArithDialect", "diffattn::DiffAttnDialect", "memref::MemRefDialect"];
}

def ConvertGpuLaunchToRuntimePass : Pass<"convert-gpu-launch-to-runtime", "ModuleOp"> {
  let summary = "Call the runtime for launches of GPU kernels and for copies on the device";
  let description = [{
    Replaces every `gpu.launch_func` of a kernel whose arguments are numbers and pointers by a call of
    `diffattn_rt_device_launch` (include/DiffAttn/Runtime/ABI/DeviceCalls.h) with the kernel's number, its grid, block and dynamic
    shared memory, and the bits of each argument in a word of its own. The number is the place of the kernel in
    `diffattn.kernels`, a list that this pass puts on the module if it is not there: name and layout of the parameters of each
    kernel, in the order of the `gpu.module`. `gpu.alloc` becomes `memref.alloc`, and, where no code of the host touches buffers,
    a `memref.copy` between contiguous buffers becomes `diffattn_rt_device_copy`. Kernels stay in their `gpu.module`.
  }];
  let dependentDialects = ["arith::ArithDialect", "LLVM::LLVMDialect", "memref::MemRefDialect"];
}

#endif // DIFFATTN_MODEL_PASSES_TD
