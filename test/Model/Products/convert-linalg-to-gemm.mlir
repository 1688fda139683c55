// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(convert-linalg-to-gemm))" | FileCheck %s

// A zero fill becomes the form that overwrites.
// CHECK-LABEL: func.func @linear(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<?x64xf32>, %[[W:[^:]+]]: tensor<96x64xf32>, %[[I:[^:]+]]: tensor<?x96xf32>
func.func @linear(%x: tensor<?x64xf32>, %w: tensor<96x64xf32>, %init: tensor<?x96xf32>) -> tensor<?x96xf32> {
  // CHECK: diffattn.gemm ins(%[[X]], %[[W]] : {{.*}}) outs(%[[I]] : {{.*}}) {transpose_b}
  %zero = arith.constant 0.0 : f32
  %f = linalg.fill ins(%zero : f32) outs(%init : tensor<?x96xf32>) -> tensor<?x96xf32>
  %y = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
    ins(%x, %w : tensor<?x64xf32>, tensor<96x64xf32>) outs(%f : tensor<?x96xf32>) -> tensor<?x96xf32>
  return %y : tensor<?x96xf32>
}

// A residual is added.
// CHECK-LABEL: func.func @residual(
// CHECK:       diffattn.gemm {{.*}} {accumulate}
func.func @residual(%x: tensor<4x8xbf16>, %w: tensor<8x4xbf16>, %r: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %y = linalg.matmul ins(%x, %w : tensor<4x8xbf16>, tensor<8x4xbf16>) outs(%r : tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}

// A transposed result is the product of the operands the other way round.
// CHECK-LABEL: func.func @transposed_result(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<4x8xf32>, %[[Y:[^:]+]]: tensor<6x8xf32>
// CHECK:       diffattn.gemm ins(%[[Y]], %[[X]] : {{.*}} {accumulate, transpose_b}
func.func @transposed_result(%x: tensor<4x8xf32>, %y: tensor<6x8xf32>, %r: tensor<6x4xf32>) -> tensor<6x4xf32> {
  %z = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, m)>],
                       iterator_types = ["parallel", "parallel", "reduction"]}
    ins(%x, %y : tensor<4x8xf32>, tensor<6x8xf32>) outs(%r : tensor<6x4xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %p = arith.mulf %b, %a : f32
    %s = arith.addf %p, %c : f32
    linalg.yield %s : f32
  } -> tensor<6x4xf32>
  return %z : tensor<6x4xf32>
}

// CHECK-LABEL: func.func @batches(
// CHECK:       diffattn.gemm {{.*}} {accumulate} -> tensor<2x3x4x6xf64>
func.func @batches(%x: tensor<2x3x4x8xf64>, %y: tensor<2x3x8x6xf64>, %r: tensor<2x3x4x6xf64>) -> tensor<2x3x4x6xf64> {
  %z = linalg.generic {indexing_maps = [affine_map<(b, h, m, n, k) -> (b, h, m, k)>, affine_map<(b, h, m, n, k) -> (b, h, k, n)>, affine_map<(b, h, m, n, k) -> (b, h, m, n)>],
                       iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]}
    ins(%x, %y : tensor<2x3x4x8xf64>, tensor<2x3x8x6xf64>) outs(%r : tensor<2x3x4x6xf64>) {
  ^bb0(%a: f64, %b: f64, %c: f64):
    %p = arith.mulf %a, %b : f64
    %s = arith.addf %c, %p : f64
    linalg.yield %s : f64
  } -> tensor<2x3x4x6xf64>
  return %z : tensor<2x3x4x6xf64>
}

// The columns of A would have to be rows; integers are not ours.
// CHECK-LABEL: func.func @keep(
// CHECK-NOT:   diffattn.gemm
func.func @keep(%x: tensor<8x4xf32>, %y: tensor<8x6xf32>, %r: tensor<4x6xf32>, %i: tensor<4x4xi32>) -> (tensor<4x6xf32>, tensor<4x4xi32>) {
  %z = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (k, m)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>]
    ins(%x, %y : tensor<8x4xf32>, tensor<8x6xf32>) outs(%r : tensor<4x6xf32>) -> tensor<4x6xf32>
  %j = linalg.matmul ins(%i, %i : tensor<4x4xi32>, tensor<4x4xi32>) outs(%i : tensor<4x4xi32>) -> tensor<4x4xi32>
  return %z, %j : tensor<4x6xf32>, tensor<4x4xi32>
}

// Sums in f32 that are only rounded to the operands' type are stored so.
// CHECK-LABEL: func.func @rounded(
// CHECK-SAME:    %{{[^:]+}}: tensor<4x8xbf16>, %{{[^:]+}}: tensor<8x6xbf16>, %[[NARROW:[^:]+]]: tensor<4x6xbf16>
// CHECK:       %[[Z:.+]] = diffattn.gemm {{.*}} outs(%[[NARROW]] : tensor<4x6xbf16>)
// CHECK-NOT:   arith.truncf
// CHECK:       return %[[Z]]
func.func @rounded(%x: tensor<4x8xbf16>, %y: tensor<8x6xbf16>, %narrow: tensor<4x6xbf16>) -> tensor<4x6xbf16> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x6xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  %z = linalg.matmul ins(%x, %y : tensor<4x8xbf16>, tensor<8x6xbf16>) outs(%f : tensor<4x6xf32>) -> tensor<4x6xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
    ins(%z : tensor<4x6xf32>) outs(%narrow : tensor<4x6xbf16>) {
  ^bb0(%a: f32, %b: bf16):
    %t = arith.truncf %a : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<4x6xbf16>
  return %r : tensor<4x6xbf16>
}

// The sums are needed as well.
// CHECK-LABEL: func.func @rounded_and_kept(
// CHECK:       diffattn.gemm {{.*}} -> tensor<4x6xf32>
// CHECK:       arith.truncf
func.func @rounded_and_kept(%x: tensor<4x8xbf16>, %y: tensor<8x6xbf16>, %narrow: tensor<4x6xbf16>) -> (tensor<4x6xbf16>, tensor<4x6xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x6xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  %z = linalg.matmul ins(%x, %y : tensor<4x8xbf16>, tensor<8x6xbf16>) outs(%f : tensor<4x6xf32>) -> tensor<4x6xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
    ins(%z : tensor<4x6xf32>) outs(%narrow : tensor<4x6xbf16>) {
  ^bb0(%a: f32, %b: bf16):
    %t = arith.truncf %a : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<4x6xbf16>
  return %r, %z : tensor<4x6xbf16>, tensor<4x6xf32>
}

// A row times a column for each of a batch is a sum over the rows of both, which
// needs no call; one alone is a product, whose operands may be weights.
// CHECK-LABEL: func.func @dots(
// CHECK:         linalg.batch_matmul
// CHECK:         diffattn.gemm
func.func @dots(%a: tensor<8x1x64xf32>, %b: tensor<8x64x1xf32>, %c: tensor<8x1x1xf32>, %p: tensor<1x64xf32>, %q: tensor<64x1xf32>, %r: tensor<1x1xf32>)
    -> (tensor<8x1x1xf32>, tensor<1x1xf32>) {
  %x = linalg.batch_matmul ins(%a, %b : tensor<8x1x64xf32>, tensor<8x64x1xf32>) outs(%c : tensor<8x1x1xf32>) -> tensor<8x1x1xf32>
  %y = linalg.matmul ins(%p, %q : tensor<1x64xf32>, tensor<64x1xf32>) outs(%r : tensor<1x1xf32>) -> tensor<1x1xf32>
  return %x, %y : tensor<8x1x1xf32>, tensor<1x1xf32>
}
