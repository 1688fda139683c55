// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-check-sizes))" --split-input-file --verify-diagnostics

#csr = #sparse_tensor.encoding<{map = (i, j) -> (i : dense, j : compressed)}>
// expected-error @+1 {{expected tensors without an encoding, but got 'tensor<4x4xf32, #sparse_tensor.encoding<}}
func.func @sparse(%x: tensor<4x4xf32, #csr>) {
  return
}

// -----

func.func @own(%x: tensor<4xf32>) {
  // expected-error @+1 {{expected tensors without an encoding, but got 'tensor<4xf32, "mine">'}}
  %0 = tensor.cast %x : tensor<4xf32> to tensor<4xf32, "mine">
  return
}
