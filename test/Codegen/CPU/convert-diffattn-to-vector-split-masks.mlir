// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512},convert-diffattn-to-vector)" | FileCheck %s

!q = memref<2x8x1x64xf32>
!k = memref<2x2x4096x64xf32>
!v = memref<2x2x4096x128xf32>

// A mask of all heads is read once for an item of keys, before its keys: where it hides all of them there are none, and where it hides
// none no score is looked at.
// CHECK-LABEL: llvm.func private @diffattn_attention_0_scores_of_map(
// CHECK-NOT:     vector.fma
// CHECK:         %[[FOUND:.+]]:2 = scf.for {{.*}} -> (i1, i1)
// CHECK:           vector.reduction <or>
// CHECK:           vector.reduction <minui>
// CHECK:         %[[KEYS:.+]] = arith.select %[[FOUND]]#0, %c0_i64
// CHECK:         %[[ARE_THERE:.+]] = arith.cmpi sgt, %[[KEYS]], %c0_i64
// CHECK:         scf.if %[[ARE_THERE]]
// CHECK:           vector.fma
// CHECK:           arith.select %[[FOUND]]#1, %{{[^,]+}}, %c0_i64
// Values of rows that see every key are multiplied for four heads at once, others key by key.
// CHECK-LABEL: llvm.func private @diffattn_attention_0_values(
// CHECK:         vector.reduction <or>
// CHECK:         vector.reduction <minui>
// CHECK:         scf.if
// CHECK-NOT:       arith.cmpf
// CHECK:         } else {
// CHECK:           arith.cmpf une
func.func @masked(%q: !q, %k: !k, %v: !v, %l: memref<f32>, %m: memref<2x1x1x4096xi1>, %o: memref<2x8x1x128xf32>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !k, !q, !k, !v) lambda(%l : memref<f32>)
      bias(%m : memref<2x1x1x4096xi1>) outs(%o : memref<2x8x1x128xf32>) {scale = 0.125 : f32}
  return
}

// Numbers of each head: all four heads of an item must hide its keys, and the first number is read before the others.
// CHECK-LABEL: llvm.func private @diffattn_attention_1_scores_of_map(
// CHECK:         scf.for {{.*}} -> (i1, i1)
// CHECK:           %[[FIRST:.+]] = llvm.load {{.*}} -> i32
// CHECK:           %[[IS_HIDDEN:.+]] = arith.cmpi eq, %[[FIRST]], %c-8388608_i32
// CHECK:           scf.if %[[IS_HIDDEN]] -> (i1) {
// CHECK:             arith.constant dense<-8388608> : vector<16xi32>
// CHECK-NEXT:        arith.xori
// CHECK:             vector.reduction <or>
// CHECK-NOT:         vector.reduction <minui>
// CHECK:         vector.fma
// CHECK-LABEL: llvm.func private @diffattn_attention_1_values(
// CHECK:         scf.for {{.*}} -> (i1, i1)
// CHECK:           vector.reduction <minui>
func.func @biased(%q: !q, %k: !k, %v: !v, %l: memref<f32>, %m: memref<1x8x1x4096xf32>, %o: memref<2x8x1x128xf32>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !k, !q, !k, !v) lambda(%l : memref<f32>)
      bias(%m : memref<1x8x1x4096xf32>) outs(%o : memref<2x8x1x128xf32>) {scale = 0.125 : f32}
  return
}
