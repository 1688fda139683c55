// Exponentials beside a product of the same warpgroup, asked for by name.
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90a},convert-diffattn-to-gpu{chip=sm_90a})" -o %t.mlir
// RUN: FileCheck %s --input-file=%t.mlir
// RUN: FileCheck %s --check-prefix=KERNEL --input-file=%t.mlir
// RUN: diffattn-opt %t.mlir --pass-pipeline="builtin.module(diffattn-gpu-to-ptx{chip=sm_90a file=%t no-spills=true})" | FileCheck %s --check-prefix=PTXAS

!q = memref<2x8x?x64xbf16>
!v = memref<2x8x?x128xbf16>

// CHECK-LABEL: func.func @narrow
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_bf16_wgmma_both_k48s8o blocks in
func.func @narrow(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
    outs(%o : !v) {scale = 0.125 : f32, is_causal, schedules = [
      #diffattn.when<tensor_maps = true
        : #diffattn.gpu_wgmma<placement = both, kv_block_size = 48, stages = 8, overlap = true>>,
      #diffattn.gpu_forward<placement = apart, warps = 8, row_tiles = 2, kv_block_size = 32, q_in_registers = true>]}
  return
}

// The first tile lies before the loop: scores of the first map alone, then those of the second beside P V of the first. In the loop each
// map's scores come with the product of the other one, which is waited for after the powers. The last product has no scores beside it.
// KERNEL-LABEL: llvm.func @diffattn_forward_64x128_bf16_wgmma_both_k48s8o
// KERNEL-NOT:     llvm.nvvm.barrier.cta.arrive
// KERNEL:         wgmma.mma_async.sync.aligned.m64n48k16
// KERNEL:         wgmma.wait_group.sync.aligned 0
// KERNEL:         wgmma.mma_async.sync.aligned.m64n48k16
// KERNEL:         wgmma.mma_async.sync.aligned.m64n128k16
// KERNEL:         wgmma.wait_group.sync.aligned 1
// KERNEL:         ex2
// KERNEL:         wgmma.wait_group.sync.aligned 0
// KERNEL-COUNT-2: wgmma.wait_group.sync.aligned 1
// KERNEL-NOT:     wgmma.wait_group.sync.aligned 1
// KERNEL:         wgmma.mma_async.sync.aligned.m64n128k16
// KERNEL:         wgmma.wait_group.sync.aligned 0
// KERNEL-NOT:     wgmma.mma_async
// KERNEL:         llvm.return

// PTXAS: diffattn_forward_64x128_bf16_wgmma_both_k48s8o = {registers = 168 : i64, spill_loads = 0 : i64, spill_stores = 0 : i64}
// PTXAS-NOT: ptxas_warnings
