// Kernels get names that nothing of the module has: neither another function, nor the kernels of an earlier run, which were for other ops.
// DEFINE: %{pass} = diffattn-select-schedule{isa=avx512},convert-diffattn-to-vector
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(%{pass})" | FileCheck %s

// CHECK: llvm.func @diffattn_attention_0_scores(
llvm.func @diffattn_attention_0_scores(%n: i64) {
  llvm.return
}
// CHECK: func.func @diffattn_attention_1(
func.func @diffattn_attention_1() {
  return
}
// It is no name of what would be diffattn_attention_2.
// CHECK: func.func @diffattn_attention_20(
func.func @diffattn_attention_20() {
  return
}

// CHECK-LABEL: func.func @decode(
// CHECK:       llvm.mlir.addressof @diffattn_attention_2_scores :
// CHECK:       llvm.mlir.addressof @diffattn_attention_2_merge :
func.func @decode(%q: memref<1x8x1x64xf32>, %k: memref<1x8x4096x64xf32>, %l: memref<f32>, %o: memref<1x8x1x64xf32>) {
  diffattn.attention ins(%q, %k, %q, %k, %k : memref<1x8x1x64xf32>, memref<1x8x4096x64xf32>, memref<1x8x1x64xf32>, memref<1x8x4096x64xf32>, memref<1x8x4096x64xf32>)
      lambda(%l : memref<f32>) outs(%o : memref<1x8x1x64xf32>) {scale = 0.125 : f32}
  return
}
// CHECK: llvm.func private @diffattn_attention_2_scores(
