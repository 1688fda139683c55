// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx2},convert-diffattn-to-vector)" | FileCheck %s

// Keys and values of bf16 are read by pairs of columns, even ones by a shift, odd ones by a mask, and not widened number by number.

!q = memref<1x8x1x64xbf16>
!k = memref<1x2x512x64xbf16>
!v = memref<1x2x512x128xbf16>

// CHECK-LABEL: llvm.func private @diffattn_attention_0_scores_of_map(
// CHECK:         llvm.fence
// CHECK-NOT:     vector<8xbf16>
// CHECK:         arith.andi {{.*}} : vector<8xi32>
// CHECK-NOT:     vector<8xbf16>
// CHECK-LABEL: llvm.func private @diffattn_attention_0_scores(
// CHECK-LABEL: llvm.func private @diffattn_attention_0_values(
// CHECK-NOT:     vector<8xbf16>
// CHECK:         arith.andi {{.*}} : vector<8xi32>
// CHECK-NOT:     vector<8xbf16>
// CHECK:         vector.interleave {{.*}} : vector<8xf32> -> vector<16xf32>
func.func @decode(%q: !q, %k: !k, %v: !v, %l: memref<f32>, %o: memref<1x8x1x128xbf16>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !k, !q, !k, !v) lambda(%l : memref<f32>)
      outs(%o : memref<1x8x1x128xbf16>) {scale = 0.125 : f32}
  return
}
