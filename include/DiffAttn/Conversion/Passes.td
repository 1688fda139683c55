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
  }];
  let options = [
    Option<"all", "all", "bool", /*default=*/"false",
           "Decompose also the ops whose schedule has a lowering of its own">,
    Option<"target", "target", "std::string", /*default=*/"\"any\"",
           "Whose schedules count: cpu, gpu or any">];
  let dependentDialects = ["arith::ArithDialect", "linalg::LinalgDialect", "math::MathDialect",
                           "memref::MemRefDialect", "scf::SCFDialect", "tensor::TensorDialect"];
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
    Option<"batchInvariant", "batch-invariant", "std::string", /*default=*/"\"auto\"",
           "Products whose rows do not depend on one another: auto, true or false">,
    Option<"device", "device", "bool", /*default=*/"false",
           "Buffers lie on a GPU: call the runtime's functions for it">];
  let dependentDialects = ["arith::ArithDialect", "LLVM::LLVMDialect", "math::MathDialect",
                           "memref::MemRefDialect", "scf::SCFDialect", "vector::VectorDialect"];
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

#endif // DIFFATTN_CONVERSION_PASSES_TD
