// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_80},convert-diffattn-to-gpu{chip=sm_80})" | FileCheck %s

// A result in f32 takes another epilogue of the same kernel, and of the merge kernel alone where keys are split.

// Pairs are stored as they lie.
// CHECK-LABEL: llvm.func @diffattn_forward_64x128_bf16_to_f32_both4x1_k32s2q(
// CHECK:       llvm.store {{.*}} {alignment = 8 : i64} : vector<2xf32>, !llvm.ptr<1>
// CHECK-LABEL: func.func @f32_result(
// CHECK:       gpu.launch_func @diffattn_kernels::@diffattn_decode_64x128_bf16_both4x1_k64s2q blocks
// CHECK:       gpu.launch_func @diffattn_kernels::@diffattn_merge_128_f32 blocks
// CHECK:       gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_bf16_to_f32_both4x1_k32s2q 
!q = memref<?x8x?x64xbf16, strided<[?, ?, ?, 1], offset: ?>>
!v = memref<?x8x?x128xbf16, strided<[?, ?, ?, 1], offset: ?>>
!o = memref<?x8x?x128xf32, strided<[?, ?, ?, 1], offset: ?>>
func.func @f32_result(%q: !q, %k: !q, %k2: !q, %v: !v, %l: memref<f32>, %o: !o) {
  diffattn.attention ins(%q, %k, %q, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
    outs(%o : !o) {scale = 0.125 : f32}
  return
}
