// RUN: diffattn-opt %s --split-input-file --verify-diagnostics \
// RUN:   --pass-pipeline="builtin.module(diffattn-bind-weights,convert-diffattn-gemm-to-runtime,func.func(convert-diffattn-linalg-to-loops),convert-diffattn-alloc-to-runtime,convert-diffattn-assert-to-runtime)"

func.func @product_of_tensors(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>, %c: tensor<4x6xf32>) -> tensor<4x6xf32> {
  // expected-error @below {{expected operands that are buffers, but got tensors}}
  %0 = diffattn.gemm ins(%a, %b : tensor<4x8xf32>, tensor<8x6xf32>) outs(%c : tensor<4x6xf32>) -> tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}

// -----

func.func @loop_over_tensors(%x: f32, %c: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{expected operands that are buffers, but got tensors}}
  %0 = linalg.fill ins(%x : f32) outs(%c : tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @alignment() -> memref<4xf32> {
  // expected-error @+2 {{expected an alignment of at most 64 bytes, but got 128}}
  // expected-error @+1 {{failed to legalize operation 'memref.alloc'}}
  %0 = memref.alloc() {alignment = 128 : i64} : memref<4xf32>
  return %0 : memref<4xf32>
}

// -----

func.func @assert_in_a_region(%p: i1, %q: i1) {
  scf.if %p {
    // expected-error @below {{expected to stand in the body of a function, but it is inside scf.if}}
    cf.assert %q, "no"
  }
  return
}

// -----

ml_program.global private @w(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32>
func.func @load() -> tensor<2xf32> {
  // expected-error @below {{expected weights to be read by ml_program.global_load_const only}}
  %0 = ml_program.global_load @w : tensor<2xf32>
  return %0 : tensor<2xf32>
}
