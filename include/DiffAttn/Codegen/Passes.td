//===- Passes.td - passes that emit kernels ----------------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_PASSES_TD
#define DIFFATTN_CODEGEN_PASSES_TD

include "mlir/Pass/PassBase.td"

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

def ConvertDiffAttnToVectorPass : Pass<"convert-diffattn-to-vector", "ModuleOp"> {
  let summary = "Emit a fused kernel for each scheduled attention on memrefs";
  let description = [{
    Replaces every `diffattn.attention` on memrefs that has schedules of CPU kernels
    by calls of the runtime's `diffattn_rt_parallel_for` over work items; which of
    the kernels a call takes is asked at run time where the types do not tell. What one work item does is a private `llvm.func` a signature (operand
    types, attributes, schedules), made of `scf`, `arith`, `vector` and `math` ops
    on raw pointers; ops of equal signature share it. Its register-blocked phases
    are private functions of their own, shared by all signatures of a module.

    A work item computes some rows of the result from the operands as they lie in
    memory, epilogue included. Which thread runs it, and how many there are, has no
    influence on the result.
  }];
  let options = [Option<"threads", "threads", "int64_t", /*default=*/"0",
                        "The most threads to use; 0 leaves it to the runtime">];
  let dependentDialects = ["amx::AMXDialect", "arith::ArithDialect", "LLVM::LLVMDialect",
                           "math::MathDialect", "memref::MemRefDialect", "scf::SCFDialect",
                           "vector::VectorDialect"];
}

def EmulateAmxPass : Pass<"diffattn-emulate-amx", "ModuleOp"> {
  let summary = "Compute products of AMX tiles by vectors, with the hardware's rounding";
  let description = [{
    Rewrites every `amx` op, for machines without AMX: a tile is memory in the frame of
    its function, whose rows are moved as vectors, a product is a call of a private
    function that adds it to its sum as the hardware does, bit for bit.

    - `amx.tile_mulf` of bf16: of each pair of columns of A, the first factors are summed by
      multiply-adds from 0 on in one chain, the second ones in another; the sum of both is added to C.
      After each step, and in what is read, a subnormal number is 0 with its sign, whatever the mode of
      the CPU. A result that is NaN may have another payload.
    - `amx.tile_muli`: sums of 32 bits that wrap around.

    `amx.tile_mulf` of f16 is an error, and so is a tile that other ops than `scf.for`,
    `scf.if` and `scf.while` hand on. With `missing-only`, functions whose
    `target_features` have `+amx-tile` keep their tiles.
  }];
  let options = [Option<"missingOnly", "missing-only", "bool", /*default=*/"false",
                        "Keep the tiles of functions whose target features have AMX">];
  let dependentDialects = ["arith::ArithDialect", "LLVM::LLVMDialect", "math::MathDialect",
                           "scf::SCFDialect", "vector::VectorDialect"];
}

def ConvertAmxToLLVMPass : Pass<"convert-diffattn-amx-to-llvm", "ModuleOp"> {
  let summary = "Lower AMX ops to LLVM, with the branches that carry tiles";
  let description = [{
    Converts `amx` ops and, in modules that have some, all `cf` branches, in one step: a tile that a
    loop carries is an argument of a block. (`convert-to-llvm` does the same together with every other
    dialect.)
  }];
  let dependentDialects = ["LLVM::LLVMDialect"];
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

def SplitKVPass : Pass<"diffattn-split-kv"> {
  let summary = "Rewrite attention scheduled as gpu_split_kv to ops on states";
  let description = [{
    Replaces every `diffattn.attention` on memrefs that has a schedule `gpu_split_kv`, for calls that
    take it, by a `diffattn.online_attention` with `kv_split_size` and that schedule, a
    `diffattn.merge` of the ranges of each map, and a `diffattn.finalize`. States of ranges lie in a
    `gpu.alloc`; the buffers of joined states are gone once `convert-diffattn-to-gpu` has made one
    kernel of merges and finalize. Calls that take other schedules keep an attention. That pass
    does this first; on its own it is for looking at the result, or for changing it.
  }];
  let dependentDialects = ["arith::ArithDialect", "gpu::GPUDialect", "memref::MemRefDialect",
                           "scf::SCFDialect"];
}

def ConvertDiffAttnToGpuPass : Pass<"convert-diffattn-to-gpu", "ModuleOp"> {
  let summary = "Emit whole GPU kernels for scheduled attention ops";
  let description = [{
    Replaces every `diffattn.attention` on memrefs that has schedules of GPU kernels by
    `gpu.launch_func`s of kernels in the `gpu.module` `diffattn_kernels`; what is scheduled as
    `gpu_split_kv` by way of the ops on states that `diffattn-split-kv` makes. Kernels are functions of
    the `llvm` and `nvvm` dialects and need no further lowering; ops with equal kernels share them.
    The first schedule whose conditions hold is launched; what the types do not tell is asked at run
    time, also whether pointers and strides allow copies of 16 bytes: where they do not, elements are
    copied. Nothing is launched without queries. The memrefs must lie in memory that the device can read.
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

#endif // DIFFATTN_CODEGEN_PASSES_TD
