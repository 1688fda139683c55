// RUN: diffattn-run %s --no-cache --input=1x1x2x2xf32=200,0,0,200 --input=1x1x2x2xf32=0,200,200,0 \
// RUN:   --input=1x1x2x2xf32=1,0,0,1 --input=1x1x2x2xf32=2,4,6,7 --input=f32=0.5 --check=unfused | FileCheck %s
// RUN: diffattn-run %s --no-cache --quiet --input=random:1x1x2x2xf32 --input=random:1x1x2x2xf32 \
// RUN:   --input=random:1x1x2x2xf32 --input=random:1x1x2x2xf32 --input=f32=0.5 --check=reference 2>&1 | FileCheck %s --check-prefix=OLD
// OLD: warning: --check=reference is called --check=unfused
// OLD: result 0 and the reference: matches

// Logits of 200 and 0 saturate both maps to exactly 1 and 0: each row is one row of v minus half of another.
// CHECK: result 0: 1x1x2x2xf32, -1 to 5, mean 2.375: [-1, 0.5, 5, 5]
// CHECK: result 0 and the reference: matches, largest difference
func.func @attention(%q1: tensor<1x1x2x2xf32>, %q2: tensor<1x1x2x2xf32>, %k: tensor<1x1x2x2xf32>,
                     %v: tensor<1x1x2x2xf32>, %l: tensor<f32>) -> tensor<1x1x2x2xf32> {
  %e = tensor.empty() : tensor<1x1x2x2xf32>
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : tensor<1x1x2x2xf32>, tensor<1x1x2x2xf32>, tensor<1x1x2x2xf32>,
         tensor<1x1x2x2xf32>, tensor<1x1x2x2xf32>) lambda(%l : tensor<f32>)
         outs(%e : tensor<1x1x2x2xf32>) {scale = 1.0 : f32} -> tensor<1x1x2x2xf32>
  return %o : tensor<1x1x2x2xf32>
}
