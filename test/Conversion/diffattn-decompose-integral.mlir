// Integral attention is the states of both maps, a mean over the queries and an end; no op of the dialect is left.
//
// RUN: diffattn-opt %s --diffattn-decompose | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-to-online))" | FileCheck %s --check-prefix=STAYS

// CHECK-LABEL: func.func @tensors(
// CHECK-NOT:     diffattn.
// The mean: a reduction along the queries, divided by their number.
// CHECK:         linalg.generic {{.*}}iterator_types = ["parallel", "parallel", "reduction", "parallel"]
// CHECK:         arith.divf {{.*}}, %cst
// STAYS-LABEL: func.func @tensors(
// STAYS:         diffattn.attention {{.*}}integral
func.func @tensors(%q1: tensor<1x4x6x8xf32>, %k: tensor<1x2x9x8xf32>, %q2: tensor<1x2x6x8xf32>, %v: tensor<1x4x9x16xf32>,
                   %l: tensor<4xf32>) -> tensor<1x4x6x16xf32> {
  %init = tensor.empty() : tensor<1x4x6x16xf32>
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : tensor<1x4x6x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x9x8xf32>, tensor<1x4x9x16xf32>) lambda(%l : tensor<4xf32>)
         outs(%init : tensor<1x4x6x16xf32>) {scale = 0.25 : f32, integral, norm = #diffattn.norm<rms>} -> tensor<1x4x6x16xf32>
  return %o : tensor<1x4x6x16xf32>
}

// CHECK-LABEL: func.func @memrefs(
// CHECK-NOT:     diffattn.
// CHECK:         return
func.func @memrefs(%q1: memref<?x2x?x8xf16>, %k: memref<?x2x?x8xf16>, %v: memref<?x1x?x16xf16>, %l: memref<f32>, %o: memref<?x2x?x16xf16>) {
  diffattn.attention ins(%q1, %k, %q1, %k, %v : memref<?x2x?x8xf16>, memref<?x2x?x8xf16>, memref<?x2x?x8xf16>,
    memref<?x2x?x8xf16>, memref<?x1x?x16xf16>) lambda(%l : memref<f32>) outs(%o : memref<?x2x?x16xf16>) {scale = 0.25 : f32, integral}
  return
}
