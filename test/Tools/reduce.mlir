// The reducer keeps the op that matters and drops the function beside it.
// RUN: diffattn-reduce %s --reduction-tree="traversal-mode=0 test=%S/Inputs/has-attention.sh" | FileCheck %s
// CHECK-NOT: @beside
// CHECK:     diffattn.attention
// CHECK-NOT: @beside
func.func @beside(%a: tensor<4xf32>) -> tensor<4xf32> {
  %b = math.exp %a : tensor<4xf32>
  return %b : tensor<4xf32>
}
func.func @keep(%q: tensor<1x2x3x4xf32>, %l: tensor<f32>) -> tensor<1x2x3x4xf32> {
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>,
         tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>) lambda(%l : tensor<f32>)
         outs(%q : tensor<1x2x3x4xf32>) {scale = 1.0 : f32} -> tensor<1x2x3x4xf32>
  return %o : tensor<1x2x3x4xf32>
}
