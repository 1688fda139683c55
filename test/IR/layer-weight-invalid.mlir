// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

// One case for each constraint of docs/spec.md, under its label.

func.func @layer_weight_c1(%layer: index) {
  // expected-error @below {{'diffattn.layer_weight' op expected @"layers.{}.w" to name an ml_program.global, but found none}}
  %w = diffattn.layer_weight @"layers.{}.w"[%layer] : tensor<4x4xf32>
  return
}

// -----

ml_program.global private @w(#ml_program.extern<tensor<4x4xf32>>) : tensor<4x4xf32>
func.func @layer_weight_c2(%layer: index) {
  // expected-error @below {{'diffattn.layer_weight' op expected the name of the weight to hold {} for the layer, but got @w}}
  %w = diffattn.layer_weight @w[%layer] : tensor<4x4xf32>
  return
}

// -----

ml_program.global private @"layers.{}.w"(#ml_program.extern<tensor<4x4xf32>>) : tensor<4x4xf32>
func.func @layer_weight_c3(%layer: index) {
  // expected-error @below {{'diffattn.layer_weight' op expected the type of the global, 'tensor<4x4xf32>', but got 'tensor<4x8xf32>'}}
  %w = diffattn.layer_weight @"layers.{}.w"[%layer] : tensor<4x8xf32>
  return
}
