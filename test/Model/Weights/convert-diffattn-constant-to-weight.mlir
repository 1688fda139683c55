// RUN: diffattn-opt %s --convert-diffattn-constant-to-weight --split-input-file --verify-diagnostics | FileCheck %s

// Behind the three slots of the weights; a constant that is used twice has one slot.
// CHECK: diffattn.constants = [dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>, dense<true> : tensor<3xi1>]
module attributes {diffattn.weights = [#diffattn.weight<name = "w.{}", type = tensor<2xf32>, layers = 3>]} {
  // CHECK-NOT: memref.global
  memref.global "private" constant @a : memref<2xf32> = dense<[1.0, 2.0]>
  memref.global "private" constant @b : memref<3xi1> = dense<true>
  // CHECK-LABEL: func.func @use
  func.func @use() -> (memref<2xf32>, memref<3xi1>, memref<2xf32>) {
    // CHECK: %[[A:.*]] = arith.constant 3 : index
    // CHECK: diffattn.weight %[[A]] : memref<2xf32>
    %a = memref.get_global @a : memref<2xf32>
    // CHECK: %[[B:.*]] = arith.constant 4 : index
    // CHECK: diffattn.weight %[[B]] : memref<3xi1>
    %b = memref.get_global @b : memref<3xi1>
    // CHECK: %[[C:.*]] = arith.constant 3 : index
    // CHECK: diffattn.weight %[[C]] : memref<2xf32>
    %c = memref.get_global @a : memref<2xf32>
    return %a, %b, %c : memref<2xf32>, memref<3xi1>, memref<2xf32>
  }
}

// -----

memref.global "private" @state : memref<2xf32> = dense<0.0>
func.func @mutable() -> memref<2xf32> {
  // expected-error @below {{expected a constant with a value, because what a kernel reads must lie on the device}}
  %a = memref.get_global @state : memref<2xf32>
  return %a : memref<2xf32>
}
