// Blocks that take tiles of queries by a counter until there are none left, and a block for each tile.
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90a},convert-diffattn-to-gpu{chip=sm_90a})" -o %t.mlir
// RUN: FileCheck %s --input-file=%t.mlir
// RUN: FileCheck %s --check-prefix=KERNEL --input-file=%t.mlir
// RUN: diffattn-opt %t.mlir --pass-pipeline="builtin.module(diffattn-gpu-to-ptx{chip=sm_90a file=%t no-spills=true})" | FileCheck %s --check-prefix=PTXAS
// RUN: FileCheck %s --check-prefix=PTX --input-file=%t.ptx

!q = memref<2x8x?x64xbf16>
!k = memref<2x4x?x64xbf16>
!v = memref<2x4x?x128xbf16>
!o = memref<2x8x?x128xbf16>

// Tiles of all heads, and at most a block a multiprocessor: where each tile has one, there is no counter to set. A section has whole
// groups of heads with one V: 4 * (64 + 64 + 128) columns of 2 bytes a key.
// CHECK-LABEL: func.func @both
// CHECK-DAG:     %[[ALL:.+]] = arith.addi %{{.+}}, %c127
// CHECK-DAG:     %[[TILES:.+]] = arith.divui %[[ALL]], %c128
// CHECK-DAG:     %[[SECTION:.+]] = arith.minui %{{.+}}, %c16
// CHECK:         %[[WORK:.+]] = arith.muli %[[TILES]], %c16
// CHECK:         %[[FEW:.+]] = arith.cmpi ule, %[[WORK]], %c132
// CHECK:         scf.if %[[FEW]]
// CHECK:         %[[NONE:.+]] = llvm.mlir.zero : !llvm.ptr<1>
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_bf16_wgmma_both_k64s6p blocks in (%[[WORK]], %c1{{[^,]*}}, %c1{{[^)]*}})
// CHECK-SAME:      %[[NONE]] : !llvm.ptr<1>
// CHECK:         else
// CHECK:         %[[COUNTER:.+]] = gpu.alloc () : memref<4xi8>
// CHECK:         gpu.memset  %[[COUNTER]], %{{.+}} : memref<4xi8>, i8
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_bf16_wgmma_both_k64s6p blocks in (%c132{{[^,]*}}, %c1{{[^,]*}}, %c1{{[^)]*}})
// CHECK:         gpu.dealloc  %[[COUNTER]]
func.func @both(%q1: !q, %k1: !k, %q2: !q, %k2: !k, %v: !v, %l: memref<f32>, %o: !o) {
  diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !k, !q, !k, !v) lambda(%l : memref<f32>)
    outs(%o : !o) {scale = 0.125 : f32, is_causal, schedules = [
      #diffattn.when<tensor_maps = true
        : #diffattn.gpu_wgmma<placement = both, kv_block_size = 64, stages = 6, persistent_blocks = 132>>,
      #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32, stages = 2>]}
  return
}

// CHECK-LABEL: func.func @blocks
// CHECK-NOT:     gpu.alloc
// CHECK-NOT:     gpu.memset
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_bf16_wgmma_both_k64s6 blocks in (%{{[^,]+}}, %c8{{[^,]*}}, %c2{{[^)]*}})
func.func @blocks(%q1: !q, %k1: !k, %q2: !q, %k2: !k, %v: !v, %l: memref<f32>, %o: !o) {
  diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !k, !q, !k, !v) lambda(%l : memref<f32>)
    outs(%o : !o) {scale = 0.125 : f32, is_causal, schedules = [
      #diffattn.when<tensor_maps = true : #diffattn.gpu_wgmma<placement = both, kv_block_size = 64, stages = 6>>,
      #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32, stages = 2>]}
  return
}

// KERNEL-LABEL: llvm.func @diffattn_forward_64x128_bf16_wgmma_both_k64s6p
// KERNEL:         nvvm.read.ptx.sreg.ctaid.x
// KERNEL:         llvm.atomicrmw add %{{.+}}, %{{.+}} syncscope("device") monotonic : !llvm.ptr<1>, i32

// PTXAS-DAG: diffattn_forward_64x128_bf16_wgmma_both_k64s6 = {registers = 168 : i64, spill_loads = 0 : i64, spill_stores = 0 : i64}
// PTXAS-DAG: diffattn_forward_64x128_bf16_wgmma_both_k64s6p = {registers = 168 : i64, spill_loads = 0 : i64, spill_stores = 0 : i64}
// PTXAS-NOT: ptxas_warnings

// PTX-LABEL: .entry diffattn_forward_64x128_bf16_wgmma_both_k64s6p(
// PTX-DAG: atom.global.add.u32
// PTX-DAG: cp.async.bulk.prefetch.tensor.4d.L2.global.tile
// PTX-DAG: setmaxnreg.dec.sync.aligned.u32 40
// PTX-DAG: setmaxnreg.inc.sync.aligned.u32 232
// PTX-LABEL: .entry diffattn_forward_64x128_bf16_wgmma_both_k64s6(
// PTX-NOT: atom.
// PTX-DAG: setmaxnreg.dec.sync.aligned.u32 24
// PTX-DAG: setmaxnreg.inc.sync.aligned.u32 240
