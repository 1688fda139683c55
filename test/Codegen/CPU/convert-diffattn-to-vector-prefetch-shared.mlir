// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx2},convert-diffattn-to-vector)" | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx2 prefetch-bytes=0},convert-diffattn-to-vector)" \
// RUN:   | FileCheck %s --check-prefix=NONE

// NONE-NOT: llvm.intr.prefetch

// Four heads of queries to a head of keys, in bf16, on 16 registers: a key of
// 128 bytes meets four queries, and asks once a line for the row 2 KB ahead. A
// tile of 8 values is widened, read in parts of 16 columns by four rows, and
// meanwhile the next 2 KB are asked for in the order of their addresses: 32
// bytes a part and key.
// CHECK-LABEL: llvm.func private @diffattn_attention_0_scores_of_map(
// CHECK:         %[[FIRST:.+]] = llvm.getelementptr %[[ROW:.+]][%c2048_i64{{.*}}] : (!llvm.ptr, i64) -> !llvm.ptr, i8
// CHECK-NEXT:    "llvm.intr.prefetch"(%[[FIRST]])
// CHECK-COUNT-16: vector.fma
// CHECK:         %[[SECOND:.+]] = llvm.getelementptr %[[ROW]][%c2112_i64{{.*}}] : (!llvm.ptr, i64) -> !llvm.ptr, i8
// CHECK-NEXT:    "llvm.intr.prefetch"(%[[SECOND]])
// CHECK-COUNT-16: vector.fma
// The second key.
// CHECK-COUNT-2: "llvm.intr.prefetch"
// The last one of an odd number of them.
// CHECK-COUNT-4: "llvm.intr.prefetch"
// CHECK-NOT:     "llvm.intr.prefetch"
// CHECK-LABEL: llvm.func private @diffattn_attention_0_scores(
// CHECK-LABEL: llvm.func private @diffattn_attention_0_values
// CHECK:         "llvm.intr.prefetch"
// CHECK-NOT:     "llvm.intr.prefetch"
// CHECK-COUNT-8: vector.fma
// CHECK-NOT:     vector.fma
// CHECK-LABEL: llvm.func private @diffattn_attention_0_merge
func.func @shared(%q: memref<1x8x1x64xbf16>, %k: memref<1x2x4096x64xbf16>, %v: memref<1x2x4096x128xbf16>, %l: memref<f32>, %o: memref<1x8x1x128xbf16>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : memref<1x8x1x64xbf16>, memref<1x2x4096x64xbf16>, memref<1x8x1x64xbf16>, memref<1x2x4096x64xbf16>, memref<1x2x4096x128xbf16>)
      lambda(%l : memref<f32>) outs(%o : memref<1x8x1x128xbf16>) {scale = 0.125 : f32}
  return
}
