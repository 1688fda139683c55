// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512},convert-diffattn-to-vector{threads=2})" | FileCheck %s

!q = memref<1x8x512x64xf32>
!v = memref<1x8x512x128xf32>

// 8 heads of 11 blocks of queries are handed out; ops of one signature share a body.
// CHECK:       llvm.func @diffattn_rt_parallel_for(!llvm.ptr, !llvm.ptr, i64, i64, i64)
// CHECK-LABEL: func.func @twice(
// CHECK-NOT:     diffattn.attention
// CHECK-NOT:     memref.alloc
// CHECK:         %[[BODY:.+]] = llvm.mlir.addressof @[[$NAME:.+]] : !llvm.ptr
// CHECK:         llvm.call @diffattn_rt_parallel_for(%[[BODY]], %{{[^,]+}}, %[[COUNT:[^,]+]], %{{[^,]+}}, %[[THREADS:[^)]+]])
// CHECK:         %[[SAME:.+]] = llvm.mlir.addressof @[[$NAME]] : !llvm.ptr
// CHECK:         llvm.call @diffattn_rt_parallel_for(%[[SAME]]
// CHECK-NOT:     diffattn.attention
func.func @twice(%q: !q, %k: !q, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
      outs(%o : !v) {scale = 0.125 : f32}
  diffattn.attention ins(%k, %k, %q, %k, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
      outs(%o : !v) {scale = 0.125 : f32}
  return
}

// The linalg path is left alone.
// CHECK-LABEL: func.func @other_path(
// CHECK:         diffattn.attention
func.func @other_path(%q: !q, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
      outs(%o : !v) {scale = 0.125 : f32, schedules = [#diffattn.linalg]}
  return
}

// The item calls each phase, and multiplies with V once for both maps.
// CHECK-LABEL: llvm.func private @diffattn_attention_0(
// CHECK-COUNT-2: llvm.call @diffattn_pack_queries_f32_r48_16_avx512
// CHECK:         llvm.call @diffattn_scores_8x3
// CHECK:         llvm.call @diffattn_combine_3
// CHECK:         llvm.call @diffattn_product_6x4
// CHECK-NOT:     llvm.call @diffattn_product_6x4

// Queries are turned in registers: four rounds of 16 shuffles for 16 rows.
// CHECK-LABEL: llvm.func private @diffattn_pack_queries_f32_r48_16_avx512(
// CHECK-SAME:    no_inline
// CHECK:         scf.for
// CHECK-COUNT-64:  vector.shuffle
// CHECK-NOT:       vector.shuffle
// CHECK:         llvm.return

// Register blocks: 24 accumulators are carried, and no vector is reduced.
// CHECK-LABEL: llvm.func private @diffattn_scores_8x3_u4_r48_16_avx512(
// CHECK-SAME:    no_inline
// CHECK-SAME:    target_features
// CHECK:         scf.for
// CHECK:           scf.for {{.*}} iter_args({{(%arg[0-9]+ = [^ ]+ ?)+}}) -> ({{(vector<16xf32>, )+}}vector<16xf32>)
// CHECK-COUNT-8:     vector.broadcast
// CHECK:             vector.fma
// CHECK:         llvm.return
// CHECK-LABEL: llvm.func private @diffattn_exp_3_d5_r48_16_avx512(
// CHECK-LABEL: llvm.func private @diffattn_combine_3_r48_16_avx512(
// CHECK-LABEL: llvm.func private @diffattn_product_6x4_u2_r48_16_avx512(
// CHECK:           scf.for {{.*}} iter_args({{(%arg[0-9]+ = [^ ]+ ?)+}}) -> ({{(vector<16xf32>, )+}}vector<16xf32>)

// A block of keys that the mask hides from a block of queries is passed over, and
// one that it leaves as it is not edited: by the greatest and least byte.
// CHECK-LABEL: llvm.func private @diffattn_attention_1(
// CHECK:         arith.minui
// CHECK:         vector.reduction <or>
// CHECK:         vector.reduction <minui>
// CHECK:         scf.if
// CHECK:           llvm.call @diffattn_scores
// CHECK:           scf.if
// CHECK:             llvm.call @diffattn_pack_bias_i1

// A mask is turned as bytes are read, and only what fills no vector of keys goes
// one by one.
// CHECK-LABEL: llvm.func private @diffattn_pack_bias_i1_r48_16_avx512(
// CHECK:         llvm.load {{.*}} -> vector<16xi8>
// CHECK-COUNT-64: vector.shuffle
// CHECK-NOT:      vector.shuffle
// CHECK:         llvm.return

// Of numbers -inf alone hides, and the others are added.
// CHECK-LABEL: llvm.func private @diffattn_attention_2(
// CHECK:         arith.constant dense<-8388608> : vector<16xi32>
// CHECK-NEXT:    arith.xori
// CHECK:         vector.reduction <or>
func.func @masked(%q: !q, %k: !q, %v: !v, %l: memref<f32>, %m: memref<1x1x512x512xi1>, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
      bias(%m : memref<1x1x512x512xi1>) outs(%o : !v) {scale = 0.125 : f32}
  return
}
func.func @biased(%q: !q, %k: !q, %v: !v, %l: memref<f32>, %m: memref<1x1x512x512xf32>, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
      bias(%m : memref<1x1x512x512xf32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}
