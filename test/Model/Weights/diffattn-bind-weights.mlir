// RUN: diffattn-opt %s --diffattn-bind-weights --split-input-file --verify-diagnostics | FileCheck %s

// CHECK: module attributes {diffattn.weights = [
// CHECK-SAME: #diffattn.weight<name = "embed", type = tensor<10x4xf32>>
// CHECK-SAME: #diffattn.weight<name = "l.{}.w", type = tensor<4x4xbf16>, layers = 3, first_layer = 1, layer_step = 2, row_block_size = 2, row_blocks = [1, 0]>
// CHECK-SAME: #diffattn.weight<name = "head", type = tensor<10x4xf32>, source = "embed", transpose = true>
// CHECK-NOT: ml_program
ml_program.global private @embed(#ml_program.extern<tensor<10x4xf32>>) : tensor<10x4xf32>
ml_program.global private @"l.{}.w"(#ml_program.extern<tensor<4x4xbf16>>) : tensor<4x4xbf16> {
  diffattn.layers = 3 : i64, diffattn.first_layer = 1 : i64, diffattn.layer_step = 2 : i64, diffattn.row_block_size = 2 : i64, diffattn.row_blocks = array<i64: 1, 0>}
ml_program.global private @head(#ml_program.extern<tensor<10x4xf32>>) : tensor<10x4xf32> {diffattn.source = "embed", diffattn.transpose}
ml_program.global private @table(dense<[1.0, 2.0]> : tensor<2xf32>) : tensor<2xf32>

// CHECK-LABEL: func.func @use(%arg0: index)
func.func @use(%layer: index) -> (tensor<10x4xf32>, tensor<4x4xbf16>, tensor<10x4xf32>, tensor<2xf32>) {
  // CHECK: %[[C0:.+]] = arith.constant 0 : index
  // CHECK: %[[B:.+]] = diffattn.weight %[[C0]] : memref<10x4xf32>
  // CHECK: bufferization.to_tensor %[[B]] restrict
  %e = ml_program.global_load_const @embed : tensor<10x4xf32>
  // CHECK: %[[C1:.+]] = arith.constant 1 : index
  // CHECK: %[[S:.+]] = arith.addi %arg0, %[[C1]]
  // CHECK: diffattn.weight %[[S]] : memref<4x4xbf16>
  %w = diffattn.layer_weight @"l.{}.w"[%layer] : tensor<4x4xbf16>
  // CHECK: %[[C4:.+]] = arith.constant 4 : index
  // CHECK: diffattn.weight %[[C4]]
  %h = ml_program.global_load_const @head : tensor<10x4xf32>
  // CHECK: arith.constant dense<[1.000000e+00, 2.000000e+00]>
  %t = ml_program.global_load_const @table : tensor<2xf32>
  return %e, %w, %h, %t : tensor<10x4xf32>, tensor<4x4xbf16>, tensor<10x4xf32>, tensor<2xf32>
}

// -----

// expected-error @below {{expected a weight of static shape, but got 'tensor<?xf32>'}}
ml_program.global private @w(#ml_program.extern<tensor<?xf32>>) : tensor<?xf32>

// -----

// expected-error @below {{expected an extern value or a constant, but got a mutable global}}
ml_program.global private mutable @state(dense<0.0> : tensor<2xf32>) : tensor<2xf32>

// -----

// expected-error @below {{expected diffattn.layers to be an i64 from 1 to 65536, but got -2 : i64}}
ml_program.global private @"l.{}.w"(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32> {diffattn.layers = -2 : i64}

// -----

// expected-error @below {{expected diffattn.layers to be an i64 from 1 to 65536, but got 2 : ui8}}
ml_program.global private @"l.{}.w"(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32> {diffattn.layers = 2 : ui8}

// -----

// expected-error @below {{expected layers on a name with {}, and only there, but got 2 of 'w'}}
ml_program.global private @w(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32> {diffattn.layers = 2 : i64}

// -----

// expected-error @below {{expected diffattn.source to be a string, but got 2 : i64}}
ml_program.global private @w(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32> {diffattn.source = 2 : i64}
