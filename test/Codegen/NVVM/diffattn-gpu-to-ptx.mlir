// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_80},convert-diffattn-to-gpu{chip=sm_80},diffattn-gpu-to-ptx{file=%t no-spills=true})" | FileCheck %s
// RUN: FileCheck %s --check-prefix=PTX --input-file=%t.ptx
// RUN: FileCheck %s --check-prefix=LLVM --input-file=%t.ll
// RUN: rm -f %t.alone.* && diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_80},convert-diffattn-to-gpu{chip=sm_80},diffattn-gpu-to-ptx{file=%t.alone ptx=false})" -o /dev/null
// RUN: cmp %t.ll %t.alone.ll && not ls %t.alone.ptx %t.alone.cubin
// RUN: not diffattn-opt %s --diffattn-gpu-to-ptx="chip=sm_80 ptx=false" 2>&1 | FileCheck %s --check-prefix=NOWHERE
// NOWHERE: expected `file` with `ptx=false`, which gives LLVM IR alone, but got none
// RUN: not diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule,convert-diffattn-to-gpu,diffattn-gpu-to-ptx{ptxas=no-such-ptxas})" 2>&1 | FileCheck %s --check-prefix=NONE

// CHECK: diffattn.ptxas = {{.*}}diffattn_forward_32x64_f16_both4x1_k32s2q = {registers = {{[0-9]+}} : i64, spill_loads = 0 : i64, spill_stores = 0 : i64}

// PTX:     .target sm_80
// PTX:     .extern .shared .align 1024 .b8 diffattn_shared[]
// PTX:     .visible .entry diffattn_forward_32x64_f16_both4x1_k32s2q(
// PTX:     .reqntid 128
// PTX-NOT: __nv_
// PTX:     ld.global.nc
// PTX:     cp.async.cg.shared.global
// PTX:     ldmatrix.sync.aligned.m8n8.x4.shared.b16
// PTX:     mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
// PTX:     ex2.approx.ftz.f32
// PTX:     ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16

// What a warp must reach together is marked on the call, as LLVM's declaration of mma is not.
// LLVM:     call { float, float, float, float } @llvm.nvvm.mma.m16n8k16.row.col.f32.f32({{.*}}) #[[MARK:[0-9]+]]
// LLVM:     attributes #[[MARK]] = { convergent

// NONE: error: expected ptxas to assemble the module, but got: expected ptxas of CUDA 12 or 13, but found none; tried {{.*}}/usr/local/cuda/bin/no-such-ptxas. It comes

!q = memref<?x2x?x32xf16>
!v = memref<?x2x?x64xf16>
func.func @timm(%q: !q, %k: !q, %k2: !q, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}
