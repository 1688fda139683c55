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
// NONE-NOT:    llvm.intr.prefetch
func.func @decode(%q: memref<1x2x1x64xf32>, %k: memref<1x2x4096x64xf32>, %v: memref<1x2x4096x128xf32>, %l: memref<f32>, %o: memref<1x2x1x128xf32>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : memref<1x2x1x64xf32>, memref<1x2x4096x64xf32>, memref<1x2x1x64xf32>, memref<1x2x4096x64xf32>, memref<1x2x4096x128xf32>)
      lambda(%l : memref<f32>) outs(%o : memref<1x2x1x128xf32>) {scale = 0.125 : f32}
  return
}
