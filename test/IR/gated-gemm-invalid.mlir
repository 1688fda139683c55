// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

func.func @gated_gemm_c1(%a: tensor<4x64xbf16>, %g: memref<8x64xbf16>, %u: tensor<8x64xbf16>, %c: tensor<4x8xbf16>) {
  // expected-error @below {{expected operands that are all tensors or all memrefs, but got 'memref<8x64xbf16>' and 'tensor<4x8xbf16>'}}
  %0 = diffattn.gated_gemm ins(%a, %g, %u : tensor<4x64xbf16>, memref<8x64xbf16>, tensor<8x64xbf16>) outs(%c : tensor<4x8xbf16>) {transpose_b} -> tensor<4x8xbf16>
  return
}

// -----

func.func @gated_gemm_c2(%a: tensor<4x64xbf16>, %g: tensor<8x64xbf16>, %u: tensor<1x8x64xbf16>, %c: tensor<4x8xbf16>) {
  // expected-error @below {{expected up of rank 2, but got 'tensor<1x8x64xbf16>'}}
  %0 = diffattn.gated_gemm ins(%a, %g, %u : tensor<4x64xbf16>, tensor<8x64xbf16>, tensor<1x8x64xbf16>) outs(%c : tensor<4x8xbf16>) {transpose_b} -> tensor<4x8xbf16>
  return
}

// -----

func.func @gated_gemm_c3(%a: tensor<4x64xbf16>, %g: tensor<8x64xbf16>, %u: tensor<8x64xf32>, %c: tensor<4x8xf32>) {
  // expected-error @below {{expected element type of up to be that of a, 'bf16', but got 'f32'}}
  %0 = diffattn.gated_gemm ins(%a, %g, %u : tensor<4x64xbf16>, tensor<8x64xbf16>, tensor<8x64xf32>) outs(%c : tensor<4x8xf32>) {transpose_b} -> tensor<4x8xf32>
  return
}

// -----

func.func @gated_gemm_c4_inner(%a: tensor<4x64xbf16>, %g: tensor<64x8xbf16>, %u: tensor<63x8xbf16>, %c: tensor<4x8xbf16>) {
  // expected-error @below {{expected the inner sizes}}
  %0 = diffattn.gated_gemm ins(%a, %g, %u : tensor<4x64xbf16>, tensor<64x8xbf16>, tensor<63x8xbf16>) outs(%c : tensor<4x8xbf16>) -> tensor<4x8xbf16>
  return
}

// -----

func.func @gated_gemm_c4_columns(%a: tensor<4x64xbf16>, %g: tensor<9x64xbf16>, %u: tensor<8x64xbf16>, %c: tensor<4x8xbf16>) {
  // expected-error @below {{expected the columns}}
  %0 = diffattn.gated_gemm ins(%a, %g, %u : tensor<4x64xbf16>, tensor<9x64xbf16>, tensor<8x64xbf16>) outs(%c : tensor<4x8xbf16>) {transpose_b} -> tensor<4x8xbf16>
  return
}

// -----

func.func @gated_gemm_c4_rows(%a: tensor<5x64xbf16>, %g: tensor<8x64xbf16>, %u: tensor<8x64xbf16>, %c: tensor<4x8xbf16>) {
  // expected-error @below {{expected the rows}}
  %0 = diffattn.gated_gemm ins(%a, %g, %u : tensor<5x64xbf16>, tensor<8x64xbf16>, tensor<8x64xbf16>) outs(%c : tensor<4x8xbf16>) {transpose_b} -> tensor<4x8xbf16>
  return
}

// -----

func.func @no_such_rounding(%a: tensor<4x64xbf16>, %g: tensor<8x64xbf16>, %u: tensor<8x64xbf16>, %c: tensor<4x8xbf16>) {
  // expected-error @below {{expected ::mlir::diffattn::GateRounding to be one of: none, sums, exponential, denominator, sigmoid, silu}}
  // expected-error @below {{failed to parse}}
  %0 = diffattn.gated_gemm ins(%a, %g, %u : tensor<4x64xbf16>, tensor<8x64xbf16>, tensor<8x64xbf16>) outs(%c : tensor<4x8xbf16>) {rounded = #diffattn.gate_rounding<gate>} -> tensor<4x8xbf16>
  return
}
