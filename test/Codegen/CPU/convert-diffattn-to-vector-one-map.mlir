// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512},convert-diffattn-to-vector)" | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512bf16},convert-diffattn-to-vector)" | FileCheck %s --check-prefix=PAIRS
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=amx},convert-diffattn-to-vector)" | FileCheck %s --check-prefix=TILES

!q = memref<1x8x512x64xf32>
!v = memref<1x8x512x128xf32>

// CHECK-LABEL: func.func @prefill(
func.func @prefill(%q: !q, %k: !q, %v: !v, %o: !v) {
  diffattn.attention ins(%q, %k, %v : !q, !q, !v) outs(%o : !v) {scale = 0.125 : f32}
  return
}

// Of few queries: 2 batches x 2 groups of heads x 8 blocks of 512 keys, of one map.
// CHECK-LABEL: func.func @decode(
// CHECK:         %[[SCORES:.+]] = llvm.mlir.addressof @diffattn_attention_1_scores
// CHECK:         llvm.call @diffattn_rt_parallel_for(%[[SCORES]], %{{[^,]+}}, %c32_i64
// CHECK:         %[[VALUES:.+]] = llvm.mlir.addressof @diffattn_attention_1_values
// CHECK:         llvm.call @diffattn_rt_parallel_for(%[[VALUES]], %{{[^,]+}}, %c32_i64
// CHECK-NOT:     diffattn_attention_1_scores1
// CHECK-NOT:     diffattn_attention_1_scores_of_map
func.func @decode(%q: memref<2x8x1x64xf32>, %k: memref<2x2x4096x64xf32>, %v: memref<2x2x4096x128xf32>, %o: memref<2x8x1x128xf32>) {
  diffattn.attention ins(%q, %k, %v : memref<2x8x1x64xf32>, memref<2x2x4096x64xf32>, memref<2x2x4096x128xf32>)
      outs(%o : memref<2x8x1x128xf32>) {scale = 0.125 : f32}
  return
}

// Queries are packed once, weights are multiplied where scores lay, and there is nothing to combine.
// CHECK-LABEL: llvm.func private @diffattn_attention_0(
// CHECK:         llvm.call @diffattn_pack_queries_f32_r48_16_avx512
// CHECK-NOT:     llvm.call @diffattn_pack_queries
// CHECK:         llvm.call @diffattn_scores_8x3
// CHECK-NOT:     llvm.call @diffattn_scores_8x3
// CHECK:         llvm.call @diffattn_exp_3
// CHECK-NOT:     llvm.call @diffattn_exp_3
// CHECK-NOT:     diffattn_combine
// CHECK:         llvm.call @diffattn_product_6x4
// CHECK-NOT:     llvm.call @diffattn_product_6x4
// CHECK:         llvm.return
// CHECK-NOT:   diffattn_combine

// Weights in packs are exponentials as they are.
// PAIRS-LABEL: llvm.func private @diffattn_weights_3_bf16_r48_16_avx512bf16(
// PAIRS-NOT:     arith.mulf
// PAIRS-NOT:     arith.subf
// PAIRS:         llvm.return
// PAIRS-NOT:   diffattn_combine
// TILES-LABEL: llvm.func private @diffattn_tile_weights_bf16_r64_16_amx(
// TILES-NOT:     arith.mulf
// TILES-NOT:     arith.subf
// TILES:         llvm.return
// TILES-NOT:   diffattn_tile_combine
!b = memref<1x8x512x64xbf16>
func.func @packs(%q: !b, %o: !b) {
  diffattn.attention ins(%q, %q, %q : !b, !b, !b) outs(%o : !b) {scale = 0.125 : f32}
  return
}
