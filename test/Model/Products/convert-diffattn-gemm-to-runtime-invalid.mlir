// RUN: diffattn-opt %s --split-input-file --verify-diagnostics --pass-pipeline="builtin.module(convert-diffattn-gemm-to-runtime)"
// RUN: not diffattn-opt %s --split-input-file --pass-pipeline="builtin.module(convert-diffattn-gemm-to-runtime{threads=-1})" 2>&1 | FileCheck %s --check-prefix=LESS
// RUN: not diffattn-opt %s --split-input-file --pass-pipeline="builtin.module(convert-diffattn-to-vector{threads=5000})" 2>&1 | FileCheck %s --check-prefix=MORE

// LESS: error: expected threads from 0 to 4096, but got -1
// MORE: error: expected threads from 0 to 4096, but got 5000

func.func @product_of_tensors(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>, %c: tensor<4x6xf32>) -> tensor<4x6xf32> {
  // expected-error @below {{expected operands that are buffers, but got tensors}}
  %0 = diffattn.gemm ins(%a, %b : tensor<4x8xf32>, tensor<8x6xf32>) outs(%c : tensor<4x6xf32>) -> tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}
