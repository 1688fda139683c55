// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512},convert-diffattn-to-vector)" | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512bf16},convert-diffattn-to-vector)" \
// RUN:   | FileCheck %s --check-prefix=NONE

// Decode asks for the rows that lie 4 KB ahead, 16 of 256 bytes and 8 of 512,
// line by line, where the CPU does not do so by itself.

// CHECK-LABEL: llvm.func private @diffattn_attention_0_scores
// CHECK:         %[[LINE:.+]] = llvm.getelementptr %[[ROW:.+]][%c4096_i64
// CHECK:         "llvm.intr.prefetch"(%[[LINE]])
// CHECK:         %[[NEXT:.+]] = llvm.getelementptr %[[ROW]][%c4160_i64
// CHECK:         "llvm.intr.prefetch"(%[[NEXT]])
// CHECK-LABEL: llvm.func private @diffattn_attention_0_values
// CHECK:         "llvm.intr.prefetch"
// NONE-LABEL:  llvm.func private @diffattn_attention_0_scores
// NONE-NOT:    llvm.intr.prefetch
func.func @decode(%q: memref<1x2x1x64xf32>, %k: memref<1x2x4096x64xf32>, %v: memref<1x2x4096x128xf32>, %l: memref<f32>, %o: memref<1x2x1x128xf32>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : memref<1x2x1x64xf32>, memref<1x2x4096x64xf32>, memref<1x2x1x64xf32>, memref<1x2x4096x64xf32>, memref<1x2x4096x128xf32>)
      lambda(%l : memref<f32>) outs(%o : memref<1x2x1x128xf32>) {scale = 0.125 : f32}
  return
}

// Rows of one head beside those of another: 64 rows ahead into the second level
// of caches, on every CPU and nothing else; each line and that of the last byte.

// CHECK-LABEL: llvm.func private @diffattn_attention_1_scores_of_map(
// NONE-LABEL:  llvm.func private @diffattn_attention_1_scores_of_map(
// CHECK-COUNT-5: "llvm.intr.prefetch"(%{{.+}}) <{cache = 1 : i32, hint = 2 : i32, rw = 0 : i32}>
// NONE-COUNT-5:  "llvm.intr.prefetch"(%{{.+}}) <{cache = 1 : i32, hint = 2 : i32, rw = 0 : i32}>
// CHECK-NOT:   llvm.intr.prefetch
// NONE-NOT:    llvm.intr.prefetch
// CHECK-LABEL: llvm.func private @diffattn_attention_1_scores(
// NONE-LABEL:  llvm.func private @diffattn_attention_1_scores(
// CHECK-LABEL: llvm.func private @diffattn_attention_1_values
// NONE-LABEL:  llvm.func private @diffattn_attention_1_values
// CHECK:         "llvm.intr.prefetch"(%{{.+}}) <{cache = 1 : i32, hint = 2 : i32, rw = 0 : i32}>
// CHECK-NOT:     hint = 3
// NONE:          "llvm.intr.prefetch"(%{{.+}}) <{cache = 1 : i32, hint = 2 : i32, rw = 0 : i32}>
// CHECK-LABEL: llvm.func private @diffattn_attention_1_merge
// NONE-LABEL:  llvm.func private @diffattn_attention_1_merge
!k = memref<1x2x4096x64xf32, strided<[524288, 64, 128, 1]>>
!v = memref<1x2x4096x128xf32, strided<[1048576, 128, 256, 1]>>
func.func @apart(%q: memref<1x2x1x64xf32>, %k: !k, %v: !v, %l: memref<f32>, %o: memref<1x2x1x128xf32>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : memref<1x2x1x64xf32>, !k, memref<1x2x1x64xf32>, !k, !v)
      lambda(%l : memref<f32>) outs(%o : memref<1x2x1x128xf32>) {scale = 0.125 : f32}
  return
}

// CHECK-LABEL: llvm.func private @diffattn_attention_2_scores
// CHECK-NOT:   llvm.intr.prefetch
// NONE-NOT:    llvm.intr.prefetch
func.func @not_at_all(%q: memref<1x2x1x64xf32>, %k: !k, %v: !v, %l: memref<f32>, %o: memref<1x2x1x128xf32>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : memref<1x2x1x64xf32>, !k, memref<1x2x1x64xf32>, !k, !v)
      lambda(%l : memref<f32>) outs(%o : memref<1x2x1x128xf32>) {scale = 0.125 : f32,
        schedules = [#diffattn.cpu_split_kv<isa = "avx512", lanes = 16, kv_split_size = 512, qk_rows = 4, q_vectors = 16, pv_rows = 2, pv_keys = 8,
                                            o_vectors = 16, o_row_vectors = 8, prefetch_rows = 0>]}
  return
}
