// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-split-destinations))" | FileCheck %s

// A part that is cut out, written and put back is the result's place: its tensor stays one.
// CHECK-LABEL: func.func @write_parts(
// CHECK:       %[[WHOLE:.+]] = tensor.empty
// CHECK-NOT:   tensor.empty
// CHECK:       tensor.extract_slice %[[WHOLE]]
// CHECK:       tensor.insert_slice %{{.+}} into %[[WHOLE]]
#id = affine_map<(i, j) -> (i, j)>
func.func @write_parts(%x: tensor<?x4xf32>, %n: index) -> tensor<?x8xf32> {
  %whole = tensor.empty(%n) : tensor<?x8xf32>
  %part = tensor.extract_slice %whole[0, 4] [%n, 4] [1, 1] : tensor<?x8xf32> to tensor<?x4xf32>
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x4xf32>) outs(%part : tensor<?x4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<?x4xf32>
  %r = tensor.insert_slice %y into %whole[0, 4] [%n, 4] [1, 1] : tensor<?x4xf32> into tensor<?x8xf32>
  return %r : tensor<?x8xf32>
}

// Empty tensors are not shared.
// CHECK-LABEL: func.func @share(
// CHECK:       %[[A:.+]] = tensor.empty
// CHECK:       %[[B:.+]] = tensor.empty
// CHECK-DAG:   linalg.exp {{.*}} outs(%[[A]] :
// CHECK-DAG:   linalg.exp {{.*}} outs(%[[B]] :
func.func @share(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %e = tensor.empty() : tensor<4xf32>
  %a = linalg.exp ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %b = linalg.exp ins(%y : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %a, %b : tensor<4xf32>, tensor<4xf32>
}
