// RUN: diffattn-opt %s --diffattn-import-weights | FileCheck %s

// Weights are globals in the order of the arguments; one name is one global. Any name will do.

// CHECK:       ml_program.global private @"layer.0/w \C3\A9"(#extern) : tensor<2x3xf32>
// CHECK-NEXT:  ml_program.global private @b(#extern1) : tensor<3xf32>
// CHECK-NOT:   ml_program.global
// CHECK-LABEL: func.func @main(
// CHECK-SAME:      %[[X:[^:]+]]: tensor<?x2xf32>,
// CHECK-SAME:      %[[CACHE:[^:]+]]: tensor<3xf32> {bufferization.writable = true},
// CHECK-SAME:      %[[N:[^:]+]]: i64)
// CHECK:         %[[W:.+]] = ml_program.global_load_const @"layer.0/w \C3\A9" : tensor<2x3xf32>
// CHECK:         %[[B:.+]] = ml_program.global_load_const @b : tensor<3xf32>
// CHECK:         %[[AGAIN:.+]] = ml_program.global_load_const @b : tensor<3xf32>
// CHECK:         return %[[X]], %[[W]], %[[B]], %[[AGAIN]], %[[CACHE]], %[[N]]
func.func @main(%x: tensor<?x2xf32>, %w: tensor<2x3xf32> {diffattn.weight = "layer.0/w é"}, %b: tensor<3xf32> {diffattn.weight = "b"},
    %cache: tensor<3xf32> {diffattn.writable}, %again: tensor<3xf32> {diffattn.weight = "b"}, %n: i64)
    -> (tensor<?x2xf32>, tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, i64) {
  return %x, %w, %b, %again, %cache, %n
    : tensor<?x2xf32>, tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, i64
}

// Another function shares a weight.

// CHECK-LABEL: func.func @other()
// CHECK:         ml_program.global_load_const @b
func.func @other(%b: tensor<3xf32> {diffattn.weight = "b"}) -> tensor<3xf32> {
  return %b : tensor<3xf32>
}

// What an importer does not state stays.

// CHECK-LABEL: func.func @plain(%{{[^:]+}}: tensor<3xf32> {x.y}) -> tensor<3xf32>
// CHECK-NEXT:    return
func.func @plain(%x: tensor<3xf32> {x.y}) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}
