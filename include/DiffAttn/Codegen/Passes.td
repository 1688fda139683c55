//===- Passes.td - passes that emit kernels ----------------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_PASSES_TD
#define DIFFATTN_CODEGEN_PASSES_TD

include "mlir/Pass/PassBase.td"

def ConvertDiffAttnToVectorPass : Pass<"convert-diffattn-to-vector", "ModuleOp"> {
  let summary = "Emit a fused kernel for each scheduled attention on memrefs";
  let description = [{
    Replaces every `diffattn.attention` on memrefs that has schedules of CPU kernels
    by calls of the runtime's `diffattn_rt_parallel_for` over work items. Where the
    types do not decide which kernel a call takes, the code decides at run time. The
    work item is a private `llvm.func`, one for each signature (operand types,
    attributes, schedules), made of `scf`, `arith`, `vector` and `math` ops on raw
    pointers; ops of equal signature share it. Its register-blocked phases are private
    functions of their own, shared by all signatures of a module.

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
    `scf.if` and `scf.while` carry. With `missing-only`, functions whose
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
    `gpu.launch_func`s of kernels in the `gpu.module` `diffattn_kernels`. Ops scheduled as
    `gpu_split_kv` are first rewritten as by `diffattn-split-kv`. Kernels are functions of the `llvm`
    and `nvvm` dialects and need no further lowering; ops with equal kernels share them. The first
    schedule whose conditions hold is launched; conditions that the types do not decide are checked at
    run time, also whether pointers and strides allow copies of 16 bytes: where they do not, elements
    are copied. Nothing is launched without queries. The memrefs must lie in memory that the device
    can read.
  }];
  let options = [Option<"chip", "chip", "std::string", /*default=*/"\"sm_80\"",
                        "Chip to emit kernels for">];
  let dependentDialects = ["arith::ArithDialect", "gpu::GPUDialect", "LLVM::LLVMDialect",
                           "memref::MemRefDialect", "NVVM::NVVMDialect", "scf::SCFDialect"];
}

def GpuToPtxPass : Pass<"diffattn-gpu-to-ptx", "ModuleOp"> {
  let summary = "Translate GPU modules to PTX and assemble them";
  let description = [{
    Translates every `gpu.module` to LLVM IR, marks the calls that the threads of a warp must reach
    together (which `gpu-module-to-binary` cannot), optimizes, writes PTX, and runs `ptxas`. The module gets
    `diffattn.ptx`, `diffattn.cubin` (both only without `file`) and `diffattn.ptxas`, which has
    registers and spilled bytes of each kernel. With `file`, text and binary are written to
    `<file>.ll`, `<file>.ptx` and `<file>.cubin` instead; with `ptx=false`, as the simulator needs no
    more, to `<file>.ll` alone. A spill is an error with `no-spills`.
  }];
  let options = [
    Option<"chip", "chip", "std::string", /*default=*/"\"\"",
           "Chip; by default that of the module's target attribute">,
    Option<"file", "file", "std::string", /*default=*/"\"\"", "Write files with this stem">,
    Option<"ptx", "ptx", "bool", /*default=*/"true", "Write PTX; false: LLVM IR alone">,
    Option<"assemble", "assemble", "bool", /*default=*/"true", "Run ptxas on PTX">,
    Option<"noSpills", "no-spills", "bool", /*default=*/"false", "Refuse kernels that spill">,
    Option<"ptxas", "ptxas", "std::string", /*default=*/"\"ptxas\"",
           "Path or name of the assembler">];
  let dependentDialects = ["gpu::GPUDialect", "LLVM::LLVMDialect", "NVVM::NVVMDialect"];
}

#endif // DIFFATTN_CODEGEN_PASSES_TD
