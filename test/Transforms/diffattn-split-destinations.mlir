// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-split-destinations))" | FileCheck %s

// Two writers of one filled tensor get one each.
// CHECK-LABEL: func.func @writers(
// CHECK-COUNT-2: linalg.fill
func.func @writers(%x: tensor<4x4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %a = linalg.reduce ins(%x : tensor<4x4xf32>) outs(%f : tensor<4xf32>) dimensions = [0] (%p: f32, %q: f32) {
    %s = arith.addf %p, %q : f32
    linalg.yield %s : f32
  }
  %b = linalg.reduce ins(%x : tensor<4x4xf32>) outs(%f : tensor<4xf32>) dimensions = [1] (%p: f32, %q: f32) {
    %s = arith.addf %p, %q : f32
    linalg.yield %s : f32
  }
  return %a, %b : tensor<4xf32>, tensor<4xf32>
}

// A slice that is written and put back means the tensor that it comes from.
// CHECK-LABEL: func.func @slices(
// CHECK:         %[[E:.+]] = tensor.empty
// CHECK-NOT:     tensor.empty
// CHECK:         tensor.extract_slice %[[E]]
// CHECK:         tensor.insert_slice %{{.+}} into %[[E]]
func.func @slices(%x: f32) -> tensor<4x8xf32> {
  %e = tensor.empty() : tensor<4x8xf32>
  %s = tensor.extract_slice %e[0, 0] [4, 4] [1, 1] : tensor<4x8xf32> to tensor<4x4xf32>
  %f = linalg.fill ins(%x : f32) outs(%s : tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = tensor.insert_slice %f into %e[0, 0] [4, 4] [1, 1] : tensor<4x4xf32> into tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
