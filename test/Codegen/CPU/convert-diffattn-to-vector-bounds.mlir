// RUN: diffattn-opt %s --split-input-file --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512},convert-diffattn-to-vector{threads=2})" | FileCheck %s

// What a caller promises about sizes leaves out kernels, and the question which one to call.

!q = memref<1x2x?x16xf32>

// CHECK-LABEL: func.func @any_size(
// CHECK:         scf.if
// CHECK:         llvm.mlir.addressof @diffattn_attention_0 :
// CHECK:         llvm.mlir.addressof @diffattn_attention_0_scores :
func.func @any_size(%q: !q, %k: !q, %l: memref<f32>, %o: !q) {
  diffattn.attention ins(%q, %k, %q, %k, %k : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q) {scale = 0.25 : f32}
  return
}

// -----

!q = memref<1x2x?x16xf32>

// CHECK-LABEL: func.func @many(
// CHECK-NOT:     scf.if
// CHECK:         llvm.mlir.addressof @diffattn_attention_0 :
// CHECK-NOT:   @diffattn_attention_0_scores
func.func @many(%q: !q, %k: !q, %l: memref<f32>, %o: !q) {
  diffattn.attention ins(%q, %k, %q, %k, %k : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 0.25 : f32, size_bounds = #diffattn.size_bounds<min_queries = 9>}
  return
}

// -----

!q = memref<1x2x?x16xf32>

// CHECK-LABEL: func.func @few(
// CHECK-NOT:     scf.if
// CHECK:         llvm.mlir.addressof @diffattn_attention_0_scores :
// CHECK-NOT:   @diffattn_attention_0(
func.func @few(%q: !q, %k: !q, %l: memref<f32>, %o: !q) {
  diffattn.attention ins(%q, %k, %q, %k, %k : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 0.25 : f32, size_bounds = #diffattn.size_bounds<max_queries = 8, min_keys = 9>}
  return
}

// -----

!q = memref<1x2x?x16xf32>

// Of no more keys than queries that are few, blocks are taken.
// CHECK-LABEL: func.func @small(
// CHECK-NOT:     scf.if
// CHECK:         llvm.mlir.addressof @diffattn_attention_0 :
// CHECK-NOT:   @diffattn_attention_0_scores
func.func @small(%q: !q, %k: !q, %l: memref<f32>, %o: !q) {
  diffattn.attention ins(%q, %k, %q, %k, %k : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q)
    {scale = 0.25 : f32, size_bounds = #diffattn.size_bounds<max_queries = 8, max_keys = 8>}
  return
}
