// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=amx},convert-diffattn-to-vector)" --split-input-file | FileCheck %s

// Behind whole tiles a narrow one ends where the row of a key ends, so that nothing behind it is read: 16 keys x 16 columns, 8
// pairs of the five queries. The last tile of keys that are no multiple of 16 is a copy.
// CHECK-LABEL: llvm.func private @diffattn_attention_0_scores_of_map(
// CHECK:         llvm.call @diffattn_tile_few_scores_5x80_bf16_ahead_16_amx(
// CHECK:         scf.for
// CHECK:         llvm.intr.masked.load
// CHECK:         llvm.call @diffattn_tile_few_scores_5x80_bf16_ahead_16_amx(
// CHECK-LABEL: llvm.func private @diffattn_tile_few_scores_5x80_bf16_ahead_16_amx(
// CHECK-COUNT-2: amx.tile_load {{.*}} into !amx.tile<16x10xbf16>
// CHECK:         amx.tile_load {{.*}} into !amx.tile<8x10xbf16>
// CHECK:         scf.for
// CHECK-COUNT-2:   amx.tile_mulf {{.*}} : !amx.tile<16x32xbf16>, !amx.tile<16x10xbf16>, !amx.tile<16x5xf32>
// CHECK:           amx.tile_load {{.*}} into !amx.tile<16x16xbf16>
// CHECK:           amx.tile_mulf {{.*}} : !amx.tile<16x16xbf16>, !amx.tile<8x10xbf16>, !amx.tile<16x5xf32>
// Eight sums are kept for a key, of which five are scores.
// CHECK:         scf.for
// CHECK-COUNT-8:   llvm.load {{.*}} -> vector<16xf32>
// CHECK-COUNT-5:   llvm.store {{.*}} : vector<16xf32>
// CHECK-NOT:       llvm.store
// CHECK:         llvm.return
!q = memref<1x5x1x80xbf16>
!k = memref<1x1x?x80xbf16>
func.func @narrow(%q: !q, %k: !k, %l: memref<f32>, %o: !q) {
  diffattn.attention ins(%q, %k, %q, %k, %k : !q, !k, !q, !k, !k) lambda(%l : memref<f32>) outs(%o : !q) {scale = 0.125 : f32}
  return
}

// -----

// An odd number of columns: every key is copied, before any tile, and padded.
// CHECK-LABEL: llvm.func private @diffattn_attention_0_scores_of_map(
// CHECK-NOT:     llvm.call
// CHECK:         llvm.intr.masked.load
// CHECK:         llvm.call @diffattn_tile_few_scores_1x34_bf16_ahead_16_amx(
// CHECK-NOT:     llvm.call
// CHECK:         llvm.return
// CHECK-LABEL: llvm.func private @diffattn_tile_few_scores_1x34_bf16_ahead_16_amx(
// CHECK:         amx.tile_mulf {{.*}} : !amx.tile<16x2xbf16>, !amx.tile<1x2xbf16>, !amx.tile<16x1xf32>
// One row of scores needs no change of places.
// CHECK-NOT:     scf.for
// CHECK:         llvm.return
!q = memref<1x1x1x33xbf16>
!k = memref<1x1x?x33xbf16>
func.func @odd(%q: !q, %k: !k, %l: memref<f32>, %o: !q) {
  diffattn.attention ins(%q, %k, %q, %k, %k : !q, !k, !q, !k, !k) lambda(%l : memref<f32>) outs(%o : !q) {scale = 0.125 : f32}
  return
}

// -----

// How many rows there are is not known, but four to a query: one query takes one tile, and more of them up to 16 rows.
// CHECK-LABEL: llvm.func private @diffattn_attention_0_scores_of_map(
// CHECK:         llvm.call @diffattn_tile_few_scores_16x64_bf16_ahead_16_amx(
// CHECK:         llvm.call @diffattn_tile_few_scores_4x64_bf16_ahead_16_amx(
// CHECK-NOT:   llvm.func private @diffattn_tile_few_scores_{{[1238]}}x
!q = memref<1x8x?x64xbf16>
!k = memref<1x2x?x64xbf16>
func.func @dynamic(%q: !q, %k: !k, %l: memref<f32>, %o: !q) {
  diffattn.attention ins(%q, %k, %q, %k, %k : !q, !k, !q, !k, !k) lambda(%l : memref<f32>) outs(%o : !q) {scale = 0.125 : f32}
  return
}
