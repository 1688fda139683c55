// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=avx512" | FileCheck %s
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=avx512bf16" | FileCheck %s --check-prefix=NONE
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=avx512 prefetch-bytes=0" | FileCheck %s --check-prefix=NONE
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=avx512bf16 prefetch-bytes=4096" | FileCheck %s
// RUN: not diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=avx512 prefetch-bytes=65537" 2>&1 | FileCheck %s --check-prefix=WRONG

// WRONG: expected prefetch-bytes to be between 0 and 65536, or -1, but got 65537

// One row of A: a step reads 64 bytes of B in bf16, and asks for the line that
// lies 4 KB ahead, where the CPU does not do so by itself, or as the option says.

// CHECK-LABEL: llvm.func private @diffattn_gemv_f32_bf16_f32_
// CHECK:         scf.for
// CHECK:           %[[AT:.+]] = arith.addi %{{.+}}, %c4096_i64{{.*}}
// CHECK-NEXT:      %[[LINE:.+]] = llvm.getelementptr %{{.+}}[%[[AT]]]
// CHECK-NEXT:      "llvm.intr.prefetch"(%[[LINE]])
// CHECK-NOT:       llvm.intr.prefetch
// CHECK:           scf.yield
// NONE-NOT:    llvm.intr.prefetch
func.func @product(%x: memref<1x64xf32>, %w: memref<96x64xbf16>, %y: memref<1x96xf32>) {
  diffattn.gemm ins(%x, %w : memref<1x64xf32>, memref<96x64xbf16>) outs(%y : memref<1x96xf32>) {transpose_b}
  return
}
