// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90a},convert-diffattn-to-gpu{chip=sm_90a})" -o %t.mlir
// RUN: FileCheck %s --input-file=%t.mlir
// RUN: FileCheck %s --check-prefix=KERNEL --input-file=%t.mlir
// RUN: diffattn-opt %t.mlir --pass-pipeline="builtin.module(convert-gpu-launch-to-runtime)" | FileCheck %s --check-prefix=CALLS
// RUN: diffattn-opt %t.mlir --pass-pipeline="builtin.module(diffattn-gpu-to-ptx{chip=sm_90a file=%t no-spills=true})" | FileCheck %s --check-prefix=PTXAS
// RUN: FileCheck %s --check-prefix=PTX --input-file=%t.ptx
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90a})" --remark-format=emitRemark --remarks-filter=diffattn-gpu 2>&1 >/dev/null | FileCheck %s --check-prefix=REMARK

!q = memref<2x8x100x64xbf16>
!v = memref<2x8x100x128xbf16>

// Maps are made for calls that take the kernel, on the stack of the function. Of known sizes and strides addresses alone are asked about.
// CHECK-LABEL: func.func @v1
// CHECK-DAG:     %[[MAP:.+]] = llvm.alloca %{{.+}} x i8 {alignment = 128 : i64} : (i64) -> !llvm.ptr
// CHECK:         scf.if
// CHECK-COUNT-6:   llvm.call @diffattn_rt_device_tensor_map(%{{.+}}) : (!llvm.ptr, i32, i32, i32, !llvm.ptr, i64, i64, i64, i64, i64, i64, i64) -> ()
// CHECK:           gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_bf16_wgmma_both_k64s6p
// CHECK-SAME:        threads in (%c384{{.*}}, %{{.+}}, %{{.+}}) dynamic_shared_memory_size
// CHECK:         } else {
// CHECK:           gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_bf16_both4x1_k32s2q{{(_anystride)?}}
func.func @v1(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
    outs(%o : !v) {scale = 0.125 : f32, is_causal}
  return
}

// The result is one of the operands that maps must describe: here the one whose stride is not known.
// CHECK-LABEL: func.func @strided_result
// CHECK:         memref.extract_strided_metadata %arg6
// CHECK:         arith.cmpi sgt, %[[BYTES:[0-9]+]], %c0
// CHECK:         arith.cmpi slt, %[[BYTES]], %c1099511627776
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_bf16_wgmma_both_k64s6p
func.func @strided_result(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !v, %l: memref<f32>, %o: memref<2x8x100x128xbf16, strided<[?, 12800, 128, 1]>>) {
  diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
    outs(%o : memref<2x8x100x128xbf16, strided<[?, 12800, 128, 1]>>) {scale = 0.125 : f32, is_causal}
  return
}

// KERNEL-LABEL: llvm.func @diffattn_forward_64x128_bf16_wgmma_both_k64s6p
// KERNEL-SAME:    %arg0: !llvm.ptr {llvm.align = 128 : i64, llvm.byval = !llvm.array<128 x i8>, nvvm.grid_constant}
// KERNEL-SAME:    nvvm.minctasm = 1 : i32, nvvm.reqntid = array<i32: 384, 1, 1>
// KERNEL:         %[[MINUS_ONE:.+]] = llvm.mlir.constant(-1 : i32) : i32
// KERNEL:         llvm.call_intrinsic "llvm.nvvm.mbarrier.init.shared"
// KERNEL:         llvm.call_intrinsic "llvm.nvvm.fence.mbarrier_init.release.cluster"
// The last tile of keys is brought and multiplied first.
// KERNEL:         ^bb{{[0-9]+}}(%[[TILES:[0-9]+]]: i32, %{{[0-9]+}}: i32, %{{[0-9]+}}: i32):
// KERNEL-NEXT:      llvm.icmp "sgt" %[[TILES]], %{{.+}} : i32
// KERNEL:           llvm.add %[[TILES]], %[[MINUS_ONE]] : i32
// KERNEL:         llvm.call_intrinsic "llvm.nvvm.cp.async.bulk.tensor.g2s.tile.4d"
// KERNEL:         ^bb{{[0-9]+}}(%[[LEFT:[0-9]+]]: i32, %{{[0-9]+}}: i32, %{{[0-9]+}}: i32, %{{[0-9]+}}: f32
// KERNEL-NEXT:      llvm.icmp "sgt" %[[LEFT]], %{{.+}} : i32
// KERNEL:           llvm.add %[[LEFT]], %[[MINUS_ONE]] : i32
// KERNEL:         llvm.inline_asm has_side_effects asm_dialect = att "{ .reg .pred p; setp.ne.b32 p, ${{[0-9]+}}, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16

// KERNEL:         llvm.call_intrinsic "llvm.nvvm.stmatrix.sync.aligned.m8n8.x4.b16.p3"
// KERNEL:         llvm.call_intrinsic "llvm.nvvm.fence.proxy.async.shared_cta"
// KERNEL:         llvm.call_intrinsic "llvm.nvvm.cp.async.bulk.tensor.s2g.tile.4d"
// KERNEL:         llvm.call_intrinsic "llvm.nvvm.cp.async.bulk.wait.group.read"

// CALLS: diffattn.kernels = [{name = "diffattn_forward_64x128_bf16_wgmma_both_k64s6p", parameters = "mmmmmmpppp

// PTXAS: diffattn_forward_64x128_bf16_wgmma_both_k64s6p = {registers = 168 : i64, spill_loads = 0 : i64, spill_stores = 0 : i64}
// PTXAS-NOT: ptxas_warnings

// PTX:     .version 8.0
// PTX:     .target sm_90a
// PTX-DAG: setmaxnreg.dec.sync.aligned.u32 40
// PTX-DAG: setmaxnreg.inc.sync.aligned.u32 232
// PTX-DAG: wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
// PTX-DAG: cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group

// REMARK: remark: [Missed] {{.*}}Reason="expected no softcap, but got one", Summary="attention does not use wgmma"
func.func @softcap(%q: !q, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) outs(%o : !v) {scale = 0.125 : f32, softcap = 30.0 : f32}
  return
}
