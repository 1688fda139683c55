// RUN: rm -rf %t && mkdir -p %t
// RUN: diffattn-run %s --no-cache --input=2x3xi64=1,2,3,4,5,6 --input=random:4xf32 --seed=3 --output=%t/a.npy --output=%t/b.npy | FileCheck %s
// RUN: diffattn-run %s --no-cache --input=%t/a.npy --input=%t/b.npy --expected=%t/a.npy --quiet | FileCheck %s --check-prefix=SAME
// RUN: not diffattn-run %s --no-cache --input=2x3xi64=1,2,3,4,5,7 --input=%t/b.npy --expected=%t/a.npy --expected=%t/b.npy --quiet \
// RUN:   | FileCheck %s --check-prefix=DIFFERENT
// RUN: diffattn-run %s --no-cache --bench=5 --quiet --input=2x3xi64=0 --input=4xf32=1 | FileCheck %s --check-prefix=BENCH
// RUN: diffattn-run %s --no-cache --info | FileCheck %s --check-prefix=INFO
// RUN: diffattn-run %s --no-cache --seed=1 | FileCheck %s --check-prefix=DEFAULT

// CHECK: result 0: 2x3xi64, 1 to 6, mean 3.5: [1, 2, 3, 4, 5, 6]
// CHECK: result 1: 4xf32
// SAME: result 0: matches, largest difference 0
// DIFFERENT: result 0: 1 of 6 elements differ; at [1, 2] expected 6, but got 7 (rtol 0, atol 0)
// DIFFERENT: result 1: matches
// BENCH: time: median {{[0-9.]+}} ms, p10 {{[0-9.]+}}, p90 {{[0-9.]+}}, least {{[0-9.]+}}, 5 calls
// BENCH: a call: 0 matrix products
// INFO: function pass
// INFO-NEXT: argument 0: tensor<2x3xi64>
// INFO-NEXT: argument 1: tensor<4xf32> (updated in place)
// INFO-NEXT: result   0: tensor<2x3xi64>
// INFO-NEXT: result   1: tensor<4xf32>
// Arguments of static shape are made where none are given.
// DEFAULT: result 0: 2x3xi64
func.func @pass(%x: tensor<2x3xi64>, %y: tensor<4xf32> {bufferization.writable = true}) -> (tensor<2x3xi64>, tensor<4xf32>) {
  return %x, %y : tensor<2x3xi64>, tensor<4xf32>
}
