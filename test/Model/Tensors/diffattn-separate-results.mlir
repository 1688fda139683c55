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

// Of a switch bufferization does not know whose buffers its results are; of branches it does.
// CHECK-LABEL: func.func @switch(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<4xf32>, %[[Y:[^:]+]]: tensor<4xf32>, %[[K:[^:]+]]: index
// CHECK:         %[[THREE:.+]] = arith.constant 3 : index
// CHECK:         %[[IS_THREE:.+]] = arith.cmpi eq, %[[K]], %[[THREE]]
// CHECK:         %[[R:.+]]:2 = scf.if %[[IS_THREE]] -> (tensor<4xf32>, tensor<4xf32>) {
// CHECK:           scf.yield %[[X]], %[[Y]]
// CHECK:         } else {
// CHECK:           %[[IS_FIVE:.+]] = arith.cmpi eq, %[[K]], %{{.+}}
// CHECK:           %[[S:.+]]:2 = scf.if %[[IS_FIVE]]
// CHECK:             scf.yield %[[Y]], %[[X]]
// CHECK:           } else {
// CHECK:             scf.yield %[[X]], %[[X]]
// CHECK:           }
// CHECK:           scf.yield %[[S]]#0, %[[S]]#1
// CHECK:         }
// CHECK:         return %[[R]]#0, %[[R]]#1
func.func @switch(%x: tensor<4xf32>, %y: tensor<4xf32>, %k: index) -> (tensor<4xf32>, tensor<4xf32>) {
  %r:2 = scf.index_switch %k -> tensor<4xf32>, tensor<4xf32>
  case 3 {
    scf.yield %x, %y : tensor<4xf32>, tensor<4xf32>
  }
  case 5 {
    scf.yield %y, %x : tensor<4xf32>, tensor<4xf32>
  }
  default {
    scf.yield %x, %x : tensor<4xf32>, tensor<4xf32>
  }
  return %r#0, %r#1 : tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @default_alone(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<4xf32>
// CHECK-NEXT:    %[[Y:.+]] = math.exp %[[X]]
// CHECK-NEXT:    return %[[Y]]
func.func @default_alone(%x: tensor<4xf32>, %k: index) -> tensor<4xf32> {
  %r = scf.index_switch %k -> tensor<4xf32>
  default {
    %y = math.exp %x : tensor<4xf32>
    scf.yield %y : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}

// A switch of numbers stays.
// CHECK-LABEL: func.func @numbers(
// CHECK:         scf.index_switch
func.func @numbers(%a: f32, %b: f32, %k: index) -> f32 {
  %r = scf.index_switch %k -> f32
  case 0 {
    scf.yield %a : f32
  }
  default {
    scf.yield %b : f32
  }
  return %r : f32
}

// What may be the same value, by a choice, a loop or a call.
// CHECK-LABEL: func.func private @may_be(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<4xf32>
// CHECK:         %[[CHOICE:.+]] = arith.select
// CHECK:         %[[BRANCH:.+]] = scf.if
// CHECK:         %[[OTHER:.+]] = scf.if
// CHECK:         %[[COPY1:.+]] = bufferization.alloc_tensor() copy(%[[CHOICE]])
// CHECK:         %[[COPY2:.+]] = bufferization.alloc_tensor() copy(%[[BRANCH]])
// CHECK:         return %[[X]], %[[COPY1]], %[[COPY2]], %[[OTHER]]
func.func private @may_be(%x: tensor<4xf32>, %y: tensor<4xf32>, %b: i1) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %choice = arith.select %b, %x, %y : tensor<4xf32>
  %branch = scf.if %b -> tensor<4xf32> {
    scf.yield %y : tensor<4xf32>
  } else {
    scf.yield %x : tensor<4xf32>
  }
  %other = scf.if %b -> tensor<4xf32> {
    %z = math.exp %x : tensor<4xf32>
    scf.yield %z : tensor<4xf32>
  } else {
    %z = math.sqrt %x : tensor<4xf32>
    scf.yield %z : tensor<4xf32>
  }
  return %x, %choice, %branch, %other : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
func.func @calls(%x: tensor<4xf32>, %y: tensor<4xf32>, %b: i1) -> tensor<4xf32> {
  %r:4 = call @may_be(%x, %y, %b) : (tensor<4xf32>, tensor<4xf32>, i1) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  return %r#0 : tensor<4xf32>
}
