// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

func.func @gemm_c1(%a: tensor<4x8xf32>, %b: memref<8x6xf32>, %c: tensor<4x6xf32>) {
  // expected-error @below {{expected operands that are all tensors with one result or all memrefs with none}}
  %0 = diffattn.gemm ins(%a, %b : tensor<4x8xf32>, memref<8x6xf32>) outs(%c : tensor<4x6xf32>) -> tensor<4x6xf32>
  return
}

// -----

func.func @gemm_c2(%a: tensor<4x8xf32>, %b: tensor<2x2x8x6xf32>, %c: tensor<3x4x6xf32>) {
  // expected-error @below {{expected b of rank 2 or 3, but got 4}}
  %0 = diffattn.gemm ins(%a, %b : tensor<4x8xf32>, tensor<2x2x8x6xf32>) outs(%c : tensor<3x4x6xf32>) -> tensor<3x4x6xf32>
  return
}

// -----

func.func @gemm_c2_result(%a: tensor<4x8xf32>, %c: tensor<4xf32>) {
  // expected-error @below {{expected c of rank 2 or more, but got 1}}
  %0 = diffattn.gemm ins(%a, %a : tensor<4x8xf32>, tensor<4x8xf32>) outs(%c : tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @gemm_c3(%a: tensor<4x8xf64>, %b: tensor<8x6xf64>, %c: tensor<4x6xf32>) {
  // expected-error @below {{expected f64 in all operands or in none}}
  %0 = diffattn.gemm ins(%a, %b : tensor<4x8xf64>, tensor<8x6xf64>) outs(%c : tensor<4x6xf32>) -> tensor<4x6xf32>
  return
}

// -----

func.func @gemm_c4(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>, %c: tensor<4x6xf32>) {
  // expected-error @below {{expected the inner sizes of a and b to match, but got 8 and 6}}
  %0 = diffattn.gemm ins(%a, %b : tensor<4x8xf32>, tensor<8x6xf32>) outs(%c : tensor<4x6xf32>) {transpose_b} -> tensor<4x6xf32>
  return
}

// -----

func.func @gemm_c4_batches(%a: tensor<2x4x8xf32>, %b: tensor<8x6xf32>, %c: tensor<3x4x6xf32>) {
  // expected-error @below {{expected the batches of a and c to match, but got 2 and 3}}
  %0 = diffattn.gemm ins(%a, %b : tensor<2x4x8xf32>, tensor<8x6xf32>) outs(%c : tensor<3x4x6xf32>) -> tensor<3x4x6xf32>
  return
}

// -----

func.func @gemm_c5(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>, %c: tensor<4x6xf32>) {
  // expected-error @below {{expected a result of the type of c, 'tensor<4x6xf32>', but got 'tensor<?x6xf32>'}}
  %0 = diffattn.gemm ins(%a, %b : tensor<4x8xf32>, tensor<8x6xf32>) outs(%c : tensor<4x6xf32>) -> tensor<?x6xf32>
  return
}
