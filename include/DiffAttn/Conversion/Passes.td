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

    By default an op with a schedule that has a lowering of its own is kept; with
    `all` none is.
  }];
  let options = [Option<"all", "all", "bool", /*default=*/"false",
                        "Decompose also the ops whose schedule has a lowering of its own">];
  let dependentDialects = ["arith::ArithDialect", "linalg::LinalgDialect", "math::MathDialect",
                           "memref::MemRefDialect", "tensor::TensorDialect"];
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

def ConvertLinalgToRegisterLoopsPass
    : InterfacePass<"convert-diffattn-linalg-to-loops", "FunctionOpInterface"> {
  let summary = "Lower linalg to loops that keep their sums in registers";
  let description = [{
    Lowers `linalg` ops on memrefs to `scf.for`. Where the reduction dimensions
    are the innermost ones the accumulator is a value carried by the loops, read
    before and written after them, so that LLVM can vectorize the sum without
    proving that nothing else writes to it.
  }];
  let dependentDialects = ["affine::AffineDialect", "arith::ArithDialect",
                           "memref::MemRefDialect", "scf::SCFDialect"];
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

    With `device` every product is one call of `diffattn_rt_device_gemm` for each
    index of all batch dimensions but the last.
  }];
  let options = [
    Option<"isa", "isa", "std::string", /*default=*/"\"native\"",
           "Instruction set of the kernels for few rows">,
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

def ConvertAllocToRuntimePass
    : Pass<"convert-diffattn-alloc-to-runtime", "ModuleOp"> {
  let summary = "Take buffers from the arena of the runtime";
  let description = [{
    Rewrites `memref.alloc` to a call of `diffattn_rt_alloc`, whose memory is
    aligned to 64 bytes and lives until the arena is released. `memref.dealloc`
    of such a buffer is dropped. With `device` the call is of
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
    `erf`, `rsqrt`, and powers to a small constant integer. Each is good to a few
    units in the last place of f32; infinities and NaN come out as from a library.
    `sin`, `cos`, `pow` and all of f64 stay calls of the C library, unless `all`
    is set: then `sin` and `cos` on f32 are polynomials too, right to a few units
    in the last place up to 2^50, and so are the rest on f32 by what they are in
    terms of the others.
  }];
  let options = [Option<"all", "all", "bool", /*default=*/"false",
                        "Leave no function of f32 to a library">];
  let dependentDialects = ["arith::ArithDialect", "math::MathDialect", "vector::VectorDialect"];
}

def ConvertDiffAttnToVectorPass : Pass<"convert-diffattn-to-vector", "ModuleOp"> {
  let summary = "Emit a fused loop nest for each scheduled attention on memrefs";
  let description = [{
    Replaces every `diffattn.attention` on memrefs whose schedule says
    `path = nest` by a call of the runtime's `diffattn_rt_parallel_for` over work
    items. What one work item does is a private `llvm.func` a signature (operand
    types, attributes, schedule), made of `scf`, `arith`, `vector` and `math` ops
    on raw pointers; ops of equal signature share it. Its register-blocked phases
    are private functions of their own, shared by all signatures of a module.

    A work item computes some rows of the result from the operands as they lie in
    memory, epilogue included. Which thread runs it, and how many there are, has no
    influence on the result.
  }];
  let options = [Option<"threads", "threads", "int64_t", /*default=*/"0",
                        "The most threads to use; 0 leaves it to the runtime">];
  let dependentDialects = ["arith::ArithDialect", "LLVM::LLVMDialect", "math::MathDialect",
                           "memref::MemRefDialect", "scf::SCFDialect", "vector::VectorDialect"];
}

def ConvertLinalgToGpuPass : Pass<"convert-linalg-to-gpu", "ModuleOp"> {
  let summary = "Emit GPU kernels for everything but attention and products";
  let description = [{
    Replaces what computes or moves elements in host functions on memrefs
    (`linalg` ops, `memref.copy`, `memref.load`, `memref.store`, assertions about
    what was loaded) by `gpu.launch_func`s of kernels in the `gpu.module`
    `diffattn_kernels`. What is left is control flow, sizes, views, allocations,
    products, attention and launches, so memrefs may lie in device memory.

    Three forms: `flat` (a thread computes up to 16 bytes of consecutive
    outputs), `row` (a warp or a block computes a row: reductions, with what is
    element-wise before and after them over the same row, in one kernel; sums in
    f32 in an order that depends on the row's length alone) and `each` (a thread
    computes one output by loops, with a remark of category `diffattn-gpu`).

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

def ConvertDiffAttnToGpuPass : Pass<"convert-diffattn-to-gpu", "ModuleOp"> {
  let summary = "Emit whole GPU kernels for scheduled attention ops";
  let description = [{
    Replaces every `diffattn.attention` on memrefs that has a `diffattn.gpu_schedule` by
    `gpu.launch_func`s of kernels in the `gpu.module` `diffattn_kernels`. Kernels are functions of
    the `llvm` and `nvvm` dialects and need no further lowering; ops with equal kernels share them.
    Which of the op's schedules is launched is chosen at run time: `diffattn.gpu_decode_schedule`, if it
    is there, for at most 8 queries, and `diffattn.gpu_element_schedule` (or, if it is not there, element
    copies under the same schedule) where pointers or strides do not allow copies of 16 bytes. Nothing is
    launched without queries. The memrefs must lie in memory that the device can read.
  }];
  let options = [Option<"chip", "chip", "std::string", /*default=*/"\"sm_80\"",
                        "Chip to emit kernels for">];
  let dependentDialects = ["arith::ArithDialect", "gpu::GPUDialect", "LLVM::LLVMDialect",
                           "memref::MemRefDialect", "NVVM::NVVMDialect", "scf::SCFDialect"];
}

def GpuToPtxPass : Pass<"diffattn-gpu-to-ptx", "ModuleOp"> {
  let summary = "Translate GPU modules to PTX and assemble them";
  let description = [{
    Translates every `gpu.module` to LLVM IR, marks what the threads of a warp must reach together
    (which `gpu-module-to-binary` cannot), optimizes, writes PTX, and runs `ptxas`. The module gets
    `diffattn.ptx`, `diffattn.cubin` (both only without `file`) and `diffattn.ptxas`, which has
    registers and spilled bytes of each kernel. With `file`, text and binary are written to
    `<file>.ll`, `<file>.ptx` and `<file>.cubin` instead. A spill is an error with `no-spills`.
  }];
  let options = [
    Option<"chip", "chip", "std::string", /*default=*/"\"\"",
           "Chip; by default that of the module's target attribute">,
    Option<"file", "file", "std::string", /*default=*/"\"\"", "Write files with this stem">,
    Option<"assemble", "assemble", "bool", /*default=*/"true", "Run ptxas">,
    Option<"noSpills", "no-spills", "bool", /*default=*/"false", "Refuse kernels that spill">,
    Option<"ptxas", "ptxas", "std::string", /*default=*/"\"ptxas\"",
           "Path or name of the assembler">];
  let dependentDialects = ["gpu::GPUDialect", "LLVM::LLVMDialect", "NVVM::NVVMDialect"];
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
    `diffattn_rt_device_launch` (include/DiffAttn/Runtime/DeviceCalls.h) with the kernel's number, its grid, block and dynamic
    shared memory, and the bits of each argument in a word of its own. The number is the place of the kernel in
    `diffattn.kernels`, a list that this pass puts on the module if it is not there: name and layout of the parameters of each
    kernel, in the order of the `gpu.module`. `gpu.alloc` becomes `memref.alloc`, and, where no code of the host touches buffers,
    a `memref.copy` between contiguous buffers becomes `diffattn_rt_device_copy`. Kernels stay in their `gpu.module`.
  }];
  let dependentDialects = ["arith::ArithDialect", "LLVM::LLVMDialect", "memref::MemRefDialect"];
}

#endif // DIFFATTN_CONVERSION_PASSES_TD
