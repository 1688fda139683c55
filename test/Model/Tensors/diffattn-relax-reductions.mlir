// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-relax-reductions))" | FileCheck %s
#id = affine_map<(i, j) -> (i, j)>

// Only the addition that joins the sum.
// CHECK-LABEL: func.func @sum(
// CHECK:         arith.addf %{{.+}}, %{{.+}} : f32
// CHECK:         arith.addf %{{.+}}, %{{.+}} fastmath<reassoc> : f32
func.func @sum(%x: tensor<4x8xf32>, %s: tensor<4xf32>) -> tensor<4xf32> {
  %r = linalg.generic {indexing_maps = [#id, affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<4x8xf32>) outs(%s : tensor<4xf32>) {
  ^bb0(%a: f32, %b: f32):
    %d = arith.addf %a, %a : f32
    %e = arith.addf %b, %d : f32
    linalg.yield %e : f32
  } -> tensor<4xf32>
  return %r : tensor<4xf32>
}

// CHECK-LABEL: func.func @elementwise(
// CHECK-NOT:     fastmath
func.func @elementwise(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x8xf32>) outs(%y : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f32):
    %e = arith.addf %b, %a : f32
    linalg.yield %e : f32
  } -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
