// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-scalar-counters,canonicalize))" --split-input-file | FileCheck %s

// What follows from constants and scalar arguments is a scalar, and so are the condition and the place.

// CHECK-LABEL: func.func @counter(
// CHECK:         scf.while (%[[I:.+]] = %c0_i32, %{{.+}} = %{{.+}}) : (i32, tensor<8xf32>)
// CHECK-NEXT:      %[[MORE:.+]] = arith.cmpi slt, %[[I]], %arg1 : i32
// CHECK-NEXT:      scf.condition(%[[MORE]]) %[[I]], %{{.+}} : i32, tensor<8xf32>
// CHECK:         ^bb0(%[[J:.+]]: i32, %{{.+}}: tensor<8xf32>):
// CHECK:           arith.index_cast %[[J]] : i32 to index
// CHECK:           %[[NEXT:.+]] = arith.addi %[[J]], %c1_i32 : i32
// CHECK:           scf.yield %[[NEXT]], %{{.+}} : i32, tensor<8xf32>
// CHECK:         tensor.from_elements %{{.+}}#0 : tensor<i32>
#none = affine_map<() -> ()>
func.func @counter(%x: tensor<8xf32>, %n: i32) -> (tensor<i32>, tensor<8xf32>) {
  %zero = arith.constant dense<0> : tensor<i32>
  %one = arith.constant 1 : i32
  %f = arith.constant 2.0 : f32
  %r:2 = scf.while (%i = %zero, %t = %x) : (tensor<i32>, tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>) {
    %e = tensor.empty() : tensor<i1>
    %c = linalg.generic {indexing_maps = [#none, #none], iterator_types = []} ins(%i : tensor<i32>) outs(%e : tensor<i1>) {
      ^bb0(%a: i32, %o: i1):
        %less = arith.cmpi slt, %a, %n : i32
        linalg.yield %less : i1
    } -> tensor<i1>
    %more = tensor.extract %c[] : tensor<i1>
    scf.condition(%more) %i, %t : tensor<i32>, tensor<8xf32>
  } do {
  ^bb0(%i: tensor<i32>, %t: tensor<8xf32>):
    %p = tensor.extract %i[] : tensor<i32>
    %at = arith.index_cast %p : i32 to index
    %new = tensor.insert %f into %t[%at] : tensor<8xf32>
    %e = tensor.empty() : tensor<i32>
    %next = linalg.generic {indexing_maps = [#none, #none], iterator_types = []} ins(%i : tensor<i32>) outs(%e : tensor<i32>) {
      ^bb0(%a: i32, %o: i32):
        %b = arith.addi %a, %one : i32
        linalg.yield %b : i32
    } -> tensor<i32>
    scf.yield %next, %new : tensor<i32>, tensor<8xf32>
  }
  return %r#0, %r#1 : tensor<i32>, tensor<8xf32>
}

// -----

// A number that comes from data stays in memory, beside a counter that does not.

// CHECK-LABEL: func.func @data(
// CHECK:         scf.while (%{{.+}} = %c0_i64, %{{.+}} = %arg0) : (i64, tensor<i64>) -> (i64, tensor<i64>)
#none = affine_map<() -> ()>
func.func @data(%seed: tensor<i64>) -> tensor<i64> {
  %zero = arith.constant dense<0> : tensor<i64>
  %c1 = arith.constant 1 : i64
  %c5 = arith.constant 5 : i64
  %r:2 = scf.while (%i = %zero, %s = %seed) : (tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>) {
    %p = tensor.extract %i[] : tensor<i64>
    %more = arith.cmpi slt, %p, %c5 : i64
    scf.condition(%more) %i, %s : tensor<i64>, tensor<i64>
  } do {
  ^bb0(%i: tensor<i64>, %s: tensor<i64>):
    %e = tensor.empty() : tensor<i64>
    %next = linalg.generic {indexing_maps = [#none, #none], iterator_types = []} ins(%i : tensor<i64>) outs(%e : tensor<i64>) {
      ^bb0(%a: i64, %o: i64):
        %b = arith.addi %a, %c1 : i64
        linalg.yield %b : i64
    } -> tensor<i64>
    %sum = linalg.generic {indexing_maps = [#none, #none, #none], iterator_types = []} ins(%i, %s : tensor<i64>, tensor<i64>) outs(%e : tensor<i64>) {
      ^bb0(%a: i64, %d: i64, %o: i64):
        %b = arith.addi %a, %d : i64
        linalg.yield %b : i64
    } -> tensor<i64>
    scf.yield %next, %sum : tensor<i64>, tensor<i64>
  }
  return %r#1 : tensor<i64>
}
