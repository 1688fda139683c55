// RUN: diffattn-opt %s --split-input-file --verify-diagnostics --pass-pipeline="builtin.module(func.func(convert-diffattn-linalg-to-loops))"

func.func @loop_over_tensors(%x: f32, %c: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{expected operands that are buffers, but got tensors}}
  %0 = linalg.fill ins(%x : f32) outs(%c : tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
