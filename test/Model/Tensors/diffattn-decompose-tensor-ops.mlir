// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-decompose-tensor-ops))" | FileCheck %s

// CHECK-LABEL: func.func @softmax(
// CHECK-NOT:     linalg.softmax
// CHECK:         math.exp
// CHECK:         arith.divf
func.func @softmax(%x: tensor<4x8xf32>, %init: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = linalg.softmax dimension(1) ins(%x : tensor<4x8xf32>) outs(%init : tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// What is read and what is written have one type, with the sizes that either knows.
// CHECK-LABEL: func.func @softmax_of_other_sizes(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<4x?xf32>, %[[INIT:[^:]+]]: tensor<?x8xf32>
// CHECK-DAG:     tensor.cast %[[X]] : tensor<4x?xf32> to tensor<4x8xf32>
// CHECK-DAG:     tensor.cast %[[INIT]] : tensor<?x8xf32> to tensor<4x8xf32>
// CHECK-NOT:     linalg.softmax
// CHECK:         %[[Y:.+]] = tensor.cast %{{.+}} : tensor<4x8xf32> to tensor<?x8xf32>
// CHECK:         return %[[Y]]
func.func @softmax_of_other_sizes(%x: tensor<4x?xf32>, %init: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %y = linalg.softmax dimension(1) ins(%x : tensor<4x?xf32>) outs(%init : tensor<?x8xf32>) -> tensor<?x8xf32>
  return %y : tensor<?x8xf32>
}

// CHECK-LABEL: func.func @softmax_of_buffers(
// CHECK-NOT:     linalg.softmax
// CHECK:         arith.maximumf
// CHECK:         arith.divf
// CHECK-COUNT-2: memref.dealloc
func.func @softmax_of_buffers(%x: memref<4x?xf16, strided<[?, 1]>>) {
  linalg.softmax dimension(1) ins(%x : memref<4x?xf16, strided<[?, 1]>>) outs(%x : memref<4x?xf16, strided<[?, 1]>>)
  return
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
