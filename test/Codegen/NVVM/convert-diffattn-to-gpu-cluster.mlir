// Two blocks that bring tiles for each other, asked for by name.
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90a},convert-diffattn-to-gpu{chip=sm_90a})" -o %t.mlir
// RUN: FileCheck %s --input-file=%t.mlir
// RUN: FileCheck %s --check-prefix=KERNEL --input-file=%t.mlir
// RUN: diffattn-opt %t.mlir --pass-pipeline="builtin.module(diffattn-gpu-to-ptx{chip=sm_90a file=%t no-spills=true})" | FileCheck %s --check-prefix=PTXAS
// RUN: FileCheck %s --check-prefix=PTX --input-file=%t.ptx

!q = memref<2x8x?x128xbf16>
!v = memref<2x8x?x256xbf16>

// A grid of whole clusters: (queries + 127) / 128 * 2 blocks.
// CHECK-LABEL: func.func @wide
// CHECK:         %[[ALL:.+]] = arith.addi %{{.+}}, %c127
// CHECK:         %[[CLUSTERS:.+]] = arith.divui %[[ALL]], %c128
// CHECK:         %[[BLOCKS:.+]] = arith.muli %[[CLUSTERS]], %c2
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_forward_128x256_bf16_wgmma_apart_k96s2c2 blocks in (%[[BLOCKS]],
func.func @wide(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
    outs(%o : !v) {scale = 0.125 : f32, is_causal, schedules = [
      #diffattn.when<tensor_maps = true
        : #diffattn.gpu_wgmma<placement = apart, kv_block_size = 96, stages = 2, cluster = 2>>,
      #diffattn.gpu_forward<placement = pair, warps = 8, kv_block_size = 32, stages = 2, q_in_registers = true>]}
  return
}

// KERNEL-LABEL: llvm.func @diffattn_forward_128x256_bf16_wgmma_apart_k96s2c2
// KERNEL-SAME:    nvvm.cluster_dim = array<i32: 2, 1, 1>

// PTXAS: diffattn_forward_128x256_bf16_wgmma_apart_k96s2c2 = {registers = 168 : i64, spill_loads = 0 : i64, spill_stores = 0 : i64}
// PTXAS-NOT: ptxas_warnings

// PTX-LABEL: .entry diffattn_forward_128x256_bf16_wgmma_apart_k96s2c2(
// PTX:     .reqnctapercluster 2
// PTX-DAG: barrier.cluster.arrive.aligned
// PTX-DAG: barrier.cluster.wait.aligned
// PTX-DAG: setmaxnreg.dec.sync.aligned.u32 40
// PTX-DAG: setmaxnreg.inc.sync.aligned.u32 232
// PTX-DAG: cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
// PTX-DAG: mbarrier.arrive.release.cluster.shared::cluster.b64
// PTX-DAG: mbarrier.try_wait.parity.acquire.cluster.shared.b64
