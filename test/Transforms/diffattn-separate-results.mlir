// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-separate-results)" | FileCheck %s

// A function that is called gives its second result a buffer of its own.
// CHECK-LABEL: func.func private @called(
// CHECK:         %[[Y:.+]] = math.absf
// CHECK:         %[[COPY:.+]] = bufferization.alloc_tensor() copy(%[[Y]])
// CHECK:         return %[[Y]], %[[COPY]]
func.func private @called(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %y = math.absf %x : tensor<4xf32>
  return %y, %y : tensor<4xf32>, tensor<4xf32>
}

// One that is not called may give its caller the same twice.
// CHECK-LABEL: func.func @entry(
// CHECK-NOT:     alloc_tensor
// CHECK:         call @called
// CHECK:         return %{{.+}}#0, %{{.+}}#1, %{{.+}}#0
func.func @entry(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %r:2 = call @called(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %r#0, %r#1, %r#0 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// Views of one value share its buffer; other values, and numbers, do not.
// CHECK-LABEL: func.func @loop(
// CHECK:         %[[Z:.+]] = math.exp
// CHECK:         %[[E:.+]] = tensor.expand_shape %[[Z]]
// CHECK:         %[[COPY:.+]] = bufferization.alloc_tensor() copy(%[[E]]) : tensor<2x?xf32>
// CHECK:         scf.yield %[[Z]], %[[COPY]], %[[N:.+]], %[[N]]
func.func @loop(%x: tensor<?xf32>, %e: tensor<2x?xf32>, %n: index, %half: index) -> tensor<2x?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r:4 = scf.for %i = %c0 to %n step %c1 iter_args(%p = %x, %q = %e, %a = %n, %b = %n) -> (tensor<?xf32>, tensor<2x?xf32>, index, index) {
    %z = math.exp %p : tensor<?xf32>
    %v = tensor.expand_shape %z [[0, 1]] output_shape [2, %half] : tensor<?xf32> into tensor<2x?xf32>
    scf.yield %z, %v, %a, %a : tensor<?xf32>, tensor<2x?xf32>, index, index
  }
  return %r#1 : tensor<2x?xf32>
}

// CHECK-LABEL: func.func @switch(
// CHECK:         scf.yield %[[X:.+]], %[[Y:.+]] :
// CHECK:         %[[COPY:.+]] = bufferization.alloc_tensor() copy(%[[X]])
// CHECK:         scf.yield %[[X]], %[[COPY]]
func.func @switch(%x: tensor<4xf32>, %y: tensor<4xf32>, %k: index) -> (tensor<4xf32>, tensor<4xf32>) {
  %r:2 = scf.index_switch %k -> tensor<4xf32>, tensor<4xf32>
  case 0 {
    scf.yield %x, %y : tensor<4xf32>, tensor<4xf32>
  }
  default {
    scf.yield %x, %x : tensor<4xf32>, tensor<4xf32>
  }
  return %r#0, %r#1 : tensor<4xf32>, tensor<4xf32>
}
