// Attention goes to kernels, what has none to linalg, and all of it to the LLVM dialect, by our passes for attention and upstream's.
// RUN: diffattn-opt %s --diffattn-attention-pipeline="isa=avx2 threads=2" | FileCheck %s
// RUN: diffattn-opt %source/test/graphs/a_plain_fx.mlir --diffattn-attention-pipeline="isa=avx2" | FileCheck %s --check-prefix=GRAPH
// RUN: diffattn-opt %source/test/graphs/a_plain_fx.mlir --diffattn-attention-pipeline="raise=false" | FileCheck %s --check-prefix=UNRAISED
// RUN: not diffattn-opt %s --diffattn-attention-pipeline="isa=z80" 2>&1 | FileCheck %s --check-prefix=ISA
// ISA: z80

// CHECK-NOT: {{(func|memref|scf|arith|linalg|tensor|unrealized|diffattn)\.[a-z]}}
// CHECK-DAG: llvm.func @diffattn_rt_parallel_for
// CHECK-DAG: llvm.func @attend(
// CHECK-DAG: llvm.func @cached(
// CHECK-NOT: llvm.func @diffattn_rt_gemm
// CHECK-NOT: {{(func|memref|scf|arith|linalg|tensor|unrealized|diffattn)\.[a-z]}}

// GRAPH: llvm.call @diffattn_rt_parallel_for

// UNRAISED-NOT: diffattn_rt_parallel_for
// UNRAISED:     llvm.return
// UNRAISED-NOT: diffattn_rt_parallel_for
!t = tensor<1x2x?x8xf32>
!b = memref<1x2x?x8xbf16, strided<[?, ?, ?, 1], offset: ?>>
func.func @attend(%q1: !t, %k1: !t, %q2: !t, %k2: !t, %v: !t, %l: tensor<f32>, %init: !t) -> !t {
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>)
         outs(%init : !t) {scale = 0.5 : f32, is_causal} -> !t
  return %o : !t
}
// On buffers, strided ones.
func.func @cached(%q1: !b, %k1: !b, %q2: !b, %k2: !b, %v: !b, %l: memref<f32>, %o: !b) {
  diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !b, !b, !b, !b, !b) lambda(%l : memref<f32>) outs(%o : !b) {scale = 0.5 : f32}
  return
}
