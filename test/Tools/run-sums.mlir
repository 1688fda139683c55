// Sinks and logarithms of sums: the kernels of CPUs and the loops that take their place against the oracle.
// RUN: diffattn-run %s --no-cache --quiet --check=oracle --remarks=none --input=random:2x4x9x8xf32 --input=random:2x2x9x8xf32 --input=random:2x2x20x8xf32 --input=f32=0.4 --input=random:4xf32 --input=random:2xf32 | FileCheck %s
// RUN: diffattn-run %s --no-cache --quiet --check=unfused --remarks=none --input=random:2x4x9x8xf32 --input=random:2x2x9x8xf32 --input=random:2x2x20x8xf32 --input=f32=0.4 --input=random:4xf32 --input=random:2xf32 | FileCheck %s

// CHECK:      result 0 and the {{oracle|reference}}: matches
// CHECK-NEXT: result 1 and the {{oracle|reference}}: matches
// CHECK-NEXT: result 2 and the {{oracle|reference}}: matches
func.func @main(%q1: tensor<2x4x?x8xf32>, %q2: tensor<2x2x?x8xf32>, %k: tensor<2x2x?x8xf32>, %l: tensor<f32>, %s: tensor<4xf32>, %s2: tensor<2xf32>)
    -> (tensor<2x4x?x8xf32>, tensor<2x4x?xf32>, tensor<2x2x?xf32>) {
  %c2 = arith.constant 2 : index
  %n = tensor.dim %q1, %c2 : tensor<2x4x?x8xf32>
  %o = tensor.empty(%n) : tensor<2x4x?x8xf32>
  %m = tensor.empty(%n) : tensor<2x4x?xf32>
  %m2 = tensor.empty(%n) : tensor<2x2x?xf32>
  %r:3 = diffattn.attention ins(%q1, %k, %q2, %k, %k : tensor<2x4x?x8xf32>, tensor<2x2x?x8xf32>, tensor<2x2x?x8xf32>, tensor<2x2x?x8xf32>, tensor<2x2x?x8xf32>)
           lambda(%l : tensor<f32>) sink(%s : tensor<4xf32>) sink2(%s2 : tensor<2xf32>) outs(%o : tensor<2x4x?x8xf32>)
           lse1(%m : tensor<2x4x?xf32>) lse2(%m2 : tensor<2x2x?xf32>) {scale = 0.3 : f32, is_causal}
           -> tensor<2x4x?x8xf32>, tensor<2x4x?xf32>, tensor<2x2x?xf32>
  return %r#0, %r#1, %r#2 : tensor<2x4x?x8xf32>, tensor<2x4x?xf32>, tensor<2x2x?xf32>
}
