// The reducer keeps the op that matters and drops the function beside it.
// RUN: diffattn-reduce %s --reduction-tree="traversal-mode=0 test=%S/Inputs/has-attention.sh" | FileCheck %s
// What the test does not find interesting, and where the result cannot go, is said.
// RUN: not diffattn-reduce %s --reduction-tree="traversal-mode=0 test=/bin/true" 2>&1 | FileCheck %s --check-prefix=BORING
// RUN: not diffattn-reduce %s --reduction-tree="traversal-mode=0 test=%S/Inputs/has-attention.sh" -o %S 2>&1 | FileCheck %s --check-prefix=FOLDER
// RUN: not diffattn-reduce %s --reduction-tree="traversal-mode=0 test=%S/Inputs/has-attention.sh" -o %t.no/where 2>&1 | FileCheck %s --check-prefix=NOWHERE
// BORING: reduce.mlir{{.*}}: warning: {{.*}} will not be reduced
// FOLDER: diffattn-reduce: error: {{.*}}Tools: expected to write the file, but got: Is a directory
// NOWHERE: diffattn-reduce: error: {{.*}}.no/where: expected to write the file, but got: No such file or directory
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
