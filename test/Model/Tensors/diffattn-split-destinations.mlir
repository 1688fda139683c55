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

// A loop that carries two tensors which begin as one gets two, also where the
// size is hidden from the type.
// CHECK-LABEL: func.func @carried(
// CHECK-DAG:     %[[A:.+]] = tensor.empty
// CHECK-DAG:     %[[B:.+]] = tensor.empty
// CHECK-DAG:     %[[P:.+]] = tensor.cast %[[A]]
// CHECK-DAG:     %[[Q:.+]] = tensor.cast %[[B]]
// CHECK:         scf.for {{.*}} iter_args(%{{.+}} = %[[P]], %{{.+}} = %[[Q]])
func.func @carried(%n: index, %x: f32, %y: f32) -> (tensor<?xf32>, tensor<?xf32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %e = tensor.empty() : tensor<8xf32>
  %c = tensor.cast %e : tensor<8xf32> to tensor<?xf32>
  %r:2 = scf.for %i = %zero to %n step %one iter_args(%p = %c, %q = %c) -> (tensor<?xf32>, tensor<?xf32>) {
    %s = tensor.insert %x into %p[%i] : tensor<?xf32>
    %t = tensor.insert %y into %q[%i] : tensor<?xf32>
    scf.yield %s, %t : tensor<?xf32>, tensor<?xf32>
  }
  return %r#0, %r#1 : tensor<?xf32>, tensor<?xf32>
}
