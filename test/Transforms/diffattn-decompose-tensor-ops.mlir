// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-decompose-tensor-ops))" | FileCheck %s

// CHECK-LABEL: func.func @softmax(
// CHECK-NOT:     linalg.softmax
// CHECK:         math.exp
// CHECK:         arith.divf
func.func @softmax(%x: tensor<4x8xf32>, %init: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = linalg.softmax dimension(1) ins(%x : tensor<4x8xf32>) outs(%init : tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// CHECK-LABEL: func.func @concat(
// CHECK-NOT:     tensor.concat
// CHECK-COUNT-2: tensor.insert_slice
func.func @concat(%x: tensor<4x?xf32>) -> tensor<4x?xf32> {
  %y = tensor.concat dim(1) %x, %x : (tensor<4x?xf32>, tensor<4x?xf32>) -> tensor<4x?xf32>
  return %y : tensor<4x?xf32>
}

// CHECK-LABEL: func.func @gather(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<5x8xf32>
// CHECK:         linalg.generic
// CHECK:           tensor.extract %[[X]]
func.func @gather(%x: tensor<5x8xf32>, %at: tensor<3x1xindex>) -> tensor<3x8xf32> {
  %y = tensor.gather %x[%at] gather_dims([0]) : (tensor<5x8xf32>, tensor<3x1xindex>) -> tensor<3x8xf32>
  return %y : tensor<3x8xf32>
}

// Named ops become generics, contractions keep their names.
// CHECK-LABEL: func.func @named(
// CHECK:         linalg.matmul
// CHECK-NOT:     linalg.transpose
// CHECK:         linalg.generic
func.func @named(%x: tensor<4x4xf32>, %y: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %a = linalg.matmul ins(%x, %x : tensor<4x4xf32>, tensor<4x4xf32>) outs(%y : tensor<4x4xf32>) -> tensor<4x4xf32>
  %b = linalg.transpose ins(%a : tensor<4x4xf32>) outs(%y : tensor<4x4xf32>) permutation = [1, 0]
  return %b : tensor<4x4xf32>
}
