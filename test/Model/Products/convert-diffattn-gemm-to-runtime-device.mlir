// What the runtime is asked for where buffers lie on a GPU.
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-diffattn-gemm-to-runtime{device=true},diffattn-scope-arena{device=true},convert-diffattn-alloc-to-runtime{device=true})" | FileCheck %s

// CHECK-LABEL: func.func @product(
// CHECK:         %[[MARK:.+]] = llvm.call @diffattn_rt_device_mark()
// CHECK:         llvm.call @diffattn_rt_device_alloc
// No kernel of the CPU for few rows.
// CHECK-NOT:     scf.if
// CHECK-DAG:     %[[ONE:.+]] = arith.constant 1 : i64
// CHECK:         llvm.call @diffattn_rt_device_gemm({{.*}}, %[[ONE]], %{{[^,]+}}, %{{[^,]+}}, %{{[^,]+}}) : (i32, i32, i32, i64, i64, i64, !llvm.ptr, i64, !llvm.ptr, i64, i32, !llvm.ptr, i64, f32, i64, i64, i64, i64) -> ()
// CHECK:         llvm.call @diffattn_rt_device_release(%[[MARK]])
func.func @product(%x: memref<1x64xbf16>, %w: memref<96x64xbf16>) {
  %y = memref.alloc() : memref<1x96xbf16>
  diffattn.gemm ins(%x, %w : memref<1x64xbf16>, memref<96x64xbf16>) outs(%y : memref<1x96xbf16>) {transpose_b}
  return
}

// The last batch dimension goes along, the others are loops.
// CHECK-LABEL: func.func @batches(
// CHECK:         scf.for
// CHECK:           llvm.call @diffattn_rt_device_gemm
func.func @batches(%x: memref<2x3x4x8xf32>, %w: memref<2x3x8x6xf32>, %y: memref<2x3x4x6xf32>) {
  diffattn.gemm ins(%x, %w : memref<2x3x4x8xf32>, memref<2x3x8x6xf32>) outs(%y : memref<2x3x4x6xf32>)
  return
}
