// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

func.func @quantized_gemm_c1(%a: tensor<4x64xf32>, %b: memref<8x64xi8>, %s: tensor<8x2xf32>, %c: tensor<4x8xf32>) {
  // expected-error @below {{expected operands that are all tensors or all memrefs, but got 'memref<8x64xi8>' and 'tensor<4x8xf32>'}}
  %0 = diffattn.quantized_gemm ins(%a, %b, %s : tensor<4x64xf32>, memref<8x64xi8>, tensor<8x2xf32>) outs(%c : tensor<4x8xf32>) {bits = 8 : i64} -> tensor<4x8xf32>
  return
}

// -----

func.func @quantized_gemm_c2(%a: tensor<2x4x64xf32>, %b: tensor<8x64xi8>, %s: tensor<8x2xf32>, %c: tensor<4x8xf32>) {
  // expected-error @below {{expected a of rank 2, but got 'tensor<2x4x64xf32>'}}
  %0 = diffattn.quantized_gemm ins(%a, %b, %s : tensor<2x4x64xf32>, tensor<8x64xi8>, tensor<8x2xf32>) outs(%c : tensor<4x8xf32>) {bits = 8 : i64} -> tensor<4x8xf32>
  return
}

// -----

func.func @quantized_gemm_c3(%a: tensor<4x64xf32>, %b: tensor<8x64xi8>, %s: tensor<8x2xf32>, %c: tensor<4x8xf32>) {
  // expected-error @below {{expected bits to be 4 or 8, but got 2}}
  %0 = diffattn.quantized_gemm ins(%a, %b, %s : tensor<4x64xf32>, tensor<8x64xi8>, tensor<8x2xf32>) outs(%c : tensor<4x8xf32>) {bits = 2 : i64} -> tensor<4x8xf32>
  return
}

// -----

func.func @quantized_gemm_c4(%a: tensor<4x64xf32>, %b: tensor<?x64xi8>, %s: tensor<8x2xf32>, %c: tensor<4x8xf32>) {
  // expected-error @below {{expected a static, positive number of rows of b, but got ?}}
  %0 = diffattn.quantized_gemm ins(%a, %b, %s : tensor<4x64xf32>, tensor<?x64xi8>, tensor<8x2xf32>) outs(%c : tensor<4x8xf32>) {bits = 8 : i64} -> tensor<4x8xf32>
  return
}

// -----

func.func @quantized_gemm_c5(%a: tensor<4x64xf32>, %b: tensor<8x64xi8>, %s: tensor<8x2xf32>, %c: tensor<4x8xf32>) {
  // expected-error @below {{expected a to have a column for each of the 128 numbers in a row of b, but got 64}}
  %0 = diffattn.quantized_gemm ins(%a, %b, %s : tensor<4x64xf32>, tensor<8x64xi8>, tensor<8x2xf32>) outs(%c : tensor<4x8xf32>) {bits = 4 : i64} -> tensor<4x8xf32>
  return
}

// -----

func.func @quantized_gemm_c6(%a: tensor<4x64xf32>, %b: tensor<8x64xi8>, %s: tensor<6x2xf32>, %c: tensor<4x8xf32>) {
  // expected-error @below {{expected the rows of b and scales to match, but got 8 and 6}}
  %0 = diffattn.quantized_gemm ins(%a, %b, %s : tensor<4x64xf32>, tensor<8x64xi8>, tensor<6x2xf32>) outs(%c : tensor<4x8xf32>) {bits = 8 : i64} -> tensor<4x8xf32>
  return
}

// -----

func.func @quantized_gemm_c7(%a: tensor<4x64xf32>, %b: tensor<8x64xi8>, %s: tensor<8x16xf32>, %c: tensor<4x8xf32>) {
  // expected-error @below {{expected groups of a multiple of 8 that divide a row of 64, but got 16 scales a row}}
  %0 = diffattn.quantized_gemm ins(%a, %b, %s : tensor<4x64xf32>, tensor<8x64xi8>, tensor<8x16xf32>) outs(%c : tensor<4x8xf32>) {bits = 8 : i64} -> tensor<4x8xf32>
  return
}

// -----

// weight_c8
// expected-error @below {{expected floats for finite, but got 'tensor<4xi8>'}}
module attributes {diffattn.weights = [#diffattn.weight<name = "w", type = tensor<4xi8>, finite = true>]} {}
