// RUN: diffattn-opt %s --split-input-file --verify-diagnostics --pass-pipeline="builtin.module(diffattn-bind-weights)"

ml_program.global private @w(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32>
func.func @load() -> tensor<2xf32> {
  // expected-error @below {{expected weights to be read by ml_program.global_load_const only}}
  %0 = ml_program.global_load @w : tensor<2xf32>
  return %0 : tensor<2xf32>
}
