// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(convert-linalg-to-gemm))" --split-input-file | FileCheck %s --implicit-check-not=linalg.transpose --implicit-check-not=linalg.broadcast --implicit-check-not=linalg.generic

// A linear layer as importers write it: the weight is transposed and repeated for each of the batch by ops of their own.
// It is one product of all rows with the weight as it lies.
// CHECK-LABEL: func.func @transposed_and_repeated(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<2x7x64xf32>, %[[W:[^:]+]]: tensor<96x64xf32>
// CHECK:       %[[ROWS:.+]] = tensor.collapse_shape %[[X]] {{\[\[}}0, 1], [2]] : tensor<2x7x64xf32> into tensor<14x64xf32>
// CHECK:       %[[Y:.+]] = diffattn.gemm ins(%[[ROWS]], %[[W]] : tensor<14x64xf32>, tensor<96x64xf32>) outs({{.*}}) {transpose_b} -> tensor<14x96xf32>
// CHECK:       tensor.expand_shape %[[Y]] {{\[\[}}0, 1], [2]] output_shape [2, 7, 96]
func.func @transposed_and_repeated(%x: tensor<2x7x64xf32>, %w: tensor<96x64xf32>) -> tensor<2x7x96xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x96xf32>
  %t = linalg.transpose ins(%w : tensor<96x64xf32>) outs(%e : tensor<64x96xf32>) permutation = [1, 0]
  %r = tensor.empty() : tensor<2x64x96xf32>
  %b = linalg.generic {indexing_maps = [affine_map<(b, k, n) -> (k, n)>, affine_map<(b, k, n) -> (b, k, n)>], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%t : tensor<64x96xf32>) outs(%r : tensor<2x64x96xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<2x64x96xf32>
  %i = tensor.empty() : tensor<2x7x96xf32>
  %f = linalg.fill ins(%zero : f32) outs(%i : tensor<2x7x96xf32>) -> tensor<2x7x96xf32>
  %y = linalg.batch_matmul ins(%x, %b : tensor<2x7x64xf32>, tensor<2x64x96xf32>) outs(%f : tensor<2x7x96xf32>) -> tensor<2x7x96xf32>
  return %y : tensor<2x7x96xf32>
}

// -----

// Free sizes, named ops, a cast in between, and a residual that is added.
// CHECK-LABEL: func.func @dynamic(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<?x?x64xf32>, %[[W:[^:]+]]: tensor<96x64xf32>, %[[R:[^:]+]]: tensor<?x?x96xf32>
// CHECK-DAG:   %[[ROWS:.+]] = tensor.collapse_shape %[[X]] {{\[\[}}0, 1], [2]]
// CHECK-DAG:   %[[SUM:.+]] = tensor.collapse_shape %[[R]] {{\[\[}}0, 1], [2]]
// CHECK:       diffattn.gemm ins(%[[ROWS]], %[[W]] : tensor<?x64xf32>, tensor<96x64xf32>) outs(%[[SUM]] : tensor<?x96xf32>) {accumulate, transpose_b}
func.func @dynamic(%x: tensor<?x?x64xf32>, %w: tensor<96x64xf32>, %r: tensor<?x?x96xf32>) -> tensor<?x?x96xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x?x64xf32>
  %e = tensor.empty(%n) : tensor<?x96x64xf32>
  %b = linalg.broadcast ins(%w : tensor<96x64xf32>) outs(%e : tensor<?x96x64xf32>) dimensions = [0]
  %et = tensor.empty(%n) : tensor<?x64x96xf32>
  %t = linalg.transpose ins(%b : tensor<?x96x64xf32>) outs(%et : tensor<?x64x96xf32>) permutation = [0, 2, 1]
  %c = tensor.cast %t : tensor<?x64x96xf32> to tensor<?x64x?xf32>
  %s = tensor.cast %c : tensor<?x64x?xf32> to tensor<?x64x96xf32>
  %y = linalg.batch_matmul ins(%x, %s : tensor<?x?x64xf32>, tensor<?x64x96xf32>) outs(%r : tensor<?x?x96xf32>) -> tensor<?x?x96xf32>
  return %y : tensor<?x?x96xf32>
}

// -----

// Unit axes that come and go, and a weight that is repeated for two axes that then become one.
// CHECK-LABEL: func.func @unit_axes(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<6x7x8xf32>, %[[W:[^:]+]]: tensor<5x8xf32>
// CHECK:       diffattn.gemm ins(%{{.+}}, %[[W]] : tensor<42x8xf32>, tensor<5x8xf32>) {{.*}}transpose_b
func.func @unit_axes(%x: tensor<6x7x8xf32>, %w: tensor<5x8xf32>, %r: tensor<6x7x5xf32>) -> tensor<6x7x5xf32> {
  %u = tensor.expand_shape %w [[0, 1], [2]] output_shape [1, 5, 8] : tensor<5x8xf32> into tensor<1x5x8xf32>
  %et = tensor.empty() : tensor<1x8x5xf32>
  %t = linalg.transpose ins(%u : tensor<1x5x8xf32>) outs(%et : tensor<1x8x5xf32>) permutation = [0, 2, 1]
  %eb = tensor.empty() : tensor<2x3x8x5xf32>
  %b = linalg.generic {indexing_maps = [affine_map<(a, b, k, n) -> (0, k, n)>, affine_map<(a, b, k, n) -> (a, b, k, n)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
    ins(%t : tensor<1x8x5xf32>) outs(%eb : tensor<2x3x8x5xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<2x3x8x5xf32>
  %c = tensor.collapse_shape %b [[0, 1], [2], [3]] : tensor<2x3x8x5xf32> into tensor<6x8x5xf32>
  %y = linalg.batch_matmul ins(%x, %c : tensor<6x7x8xf32>, tensor<6x8x5xf32>) outs(%r : tensor<6x7x5xf32>) -> tensor<6x7x5xf32>
  return %y : tensor<6x7x5xf32>
}

// -----

// A vector is one row, on either side.
// CHECK-LABEL: func.func @vectors(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<8xf32>, %[[W:[^:]+]]: tensor<5x8xf32>, %[[V:[^:]+]]: tensor<8x5xf32>
// CHECK:       diffattn.gemm ins(%{{.+}}, %[[W]] : tensor<1x8xf32>, tensor<5x8xf32>) {{.*}}transpose_b
// CHECK:       diffattn.gemm ins(%{{.+}}, %[[V]] : tensor<1x8xf32>, tensor<8x5xf32>) {{.*}}{accumulate}
func.func @vectors(%x: tensor<8xf32>, %w: tensor<5x8xf32>, %v: tensor<8x5xf32>, %r: tensor<5xf32>) -> (tensor<5xf32>, tensor<5xf32>) {
  %y = linalg.matvec ins(%w, %x : tensor<5x8xf32>, tensor<8xf32>) outs(%r : tensor<5xf32>) -> tensor<5xf32>
  %z = linalg.vecmat ins(%x, %v : tensor<8xf32>, tensor<8x5xf32>) outs(%r : tensor<5xf32>) -> tensor<5xf32>
  return %y, %z : tensor<5xf32>, tensor<5xf32>
}

// -----

// Rows, columns and the inner dimension may each be of several axes, as heads and their width are.
// CHECK-LABEL: func.func @heads(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<2x7x4x16xf32>, %[[W:[^:]+]]: tensor<4x16x64xf32>
// CHECK-DAG:   %[[ROWS:.+]] = tensor.collapse_shape %[[X]] {{\[\[}}0, 1], [2, 3]]
// CHECK-DAG:   %[[B:.+]] = tensor.collapse_shape %[[W]] {{\[\[}}0, 1], [2]]
// CHECK:       diffattn.gemm ins(%[[ROWS]], %[[B]] : tensor<14x64xf32>, tensor<64x64xf32>)
func.func @heads(%x: tensor<2x7x4x16xf32>, %w: tensor<4x16x64xf32>, %r: tensor<2x7x64xf32>) -> tensor<2x7x64xf32> {
  %y = linalg.generic {indexing_maps = [affine_map<(b, t, n, h, k) -> (b, t, h, k)>, affine_map<(b, t, n, h, k) -> (h, k, n)>, affine_map<(b, t, n, h, k) -> (b, t, n)>],
                       iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
    ins(%x, %w : tensor<2x7x4x16xf32>, tensor<4x16x64xf32>) outs(%r : tensor<2x7x64xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %p = arith.mulf %a, %b : f32
    %s = arith.addf %c, %p : f32
    linalg.yield %s : f32
  } -> tensor<2x7x64xf32>
  return %y : tensor<2x7x64xf32>
}

// -----

// A weight in half precision that is widened first, and sums that are only rounded.
// CHECK-LABEL: func.func @widened(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<2x7x64xbf16>, %[[W:[^:]+]]: tensor<96x64xbf16>
// CHECK:       %[[Y:.+]] = diffattn.gemm ins(%{{.+}}, %[[W]] : tensor<14x64xbf16>, tensor<96x64xbf16>) outs({{.*}} : tensor<14x96xbf16>) {transpose_b}
// CHECK-NOT:   arith.truncf
// CHECK:       tensor.expand_shape %[[Y]]
func.func @widened(%x: tensor<2x7x64xbf16>, %w: tensor<96x64xbf16>) -> tensor<2x7x96xbf16> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x64x96xf32>
  %b = linalg.generic {indexing_maps = [affine_map<(b, k, n) -> (n, k)>, affine_map<(b, k, n) -> (b, k, n)>], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%w : tensor<96x64xbf16>) outs(%e : tensor<2x64x96xf32>) {
  ^bb0(%in: bf16, %out: f32):
    %0 = arith.extf %in : bf16 to f32
    linalg.yield %0 : f32
  } -> tensor<2x64x96xf32>
  %i = tensor.empty() : tensor<2x7x96xf32>
  %f = linalg.fill ins(%zero : f32) outs(%i : tensor<2x7x96xf32>) -> tensor<2x7x96xf32>
  %y = linalg.batch_matmul ins(%x, %b : tensor<2x7x64xbf16>, tensor<2x64x96xf32>) outs(%f : tensor<2x7x96xf32>) -> tensor<2x7x96xf32>
  %n = tensor.empty() : tensor<2x7x96xbf16>
  %h = linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, j, k)>, affine_map<(i, j, k) -> (i, j, k)>], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%y : tensor<2x7x96xf32>) outs(%n : tensor<2x7x96xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %t = arith.truncf %a : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<2x7x96xbf16>
  return %h : tensor<2x7x96xbf16>
}
