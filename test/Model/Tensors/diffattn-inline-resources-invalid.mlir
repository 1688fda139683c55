// RUN: diffattn-opt %s --split-input-file --verify-diagnostics --diffattn-inline-resources

func.func @too_small() -> tensor<f32> {
  // expected-error @below {{expected 4 bytes in the resource 'one' of 'tensor<f32>', but got 2}}
  %one = arith.constant dense_resource<one> : tensor<f32>
  return %one : tensor<f32>
}
{-# dialect_resources: { builtin: { one: "0x02000000C03F" } } #-}

// -----

// expected-error @below {{expected 2 bytes in the resource 'bits' of 'tensor<2xi1>', but got 3}}
ml_program.global private @too_large(dense_resource<bits> : tensor<2xi1>) : tensor<2xi1>
{-# dialect_resources: { builtin: { bits: "0x01000000010001" } } #-}

// -----

func.func @missing() -> tensor<2xf32> {
  // expected-error @below {{expected the resource 'nowhere' in the module, but there is none}}
  %pair = arith.constant dense_resource<nowhere> : tensor<2xf32>
  return %pair : tensor<2xf32>
}
