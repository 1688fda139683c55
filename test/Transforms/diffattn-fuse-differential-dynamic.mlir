// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" | FileCheck %s

// Queries and keys of two dynamic lengths, each read before the first tensor of that length is made.

// CHECK-LABEL: func.func @cross(
// CHECK:         diffattn.attention
// CHECK-NOT:     math.exp
#m = affine_map<(d0, d1, d2) -> (d1, d2)>
#m1 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#m2 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#m3 = affine_map<(d0, d1, d2, d3) -> ()>
#m4 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#m5 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, 0)>
func.func @cross(%arg0: tensor<2x?x32xf32>, %arg1: tensor<2x?x32xf32>, %w0: tensor<32x32xf32>, %w1: tensor<32x32xf32>, %w2: tensor<32x32xf32>, %w3: tensor<32x32xf32>) -> tensor<2x?x32xf32> {
  %c0_i64 = arith.constant 0 : i64
  %c1 = arith.constant 1 : index
  %cst = arith.constant 0.000000e+00 : f32
  %cst_0 = arith.constant 0xFF800000 : f32
  %cst_1 = arith.constant dense<4.000000e-01> : tensor<f32>
  %cst_6 = arith.constant dense<0.353553385> : tensor<f32>
  %dim = tensor.dim %arg0, %c1 : tensor<2x?x32xf32>
  %0 = tensor.empty() : tensor<2x32x32xf32>
  %1 = linalg.generic {indexing_maps = [#m, #m1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%w0 : tensor<32x32xf32>) outs(%0 : tensor<2x32x32xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<2x32x32xf32>
  %2 = tensor.empty(%dim) : tensor<2x?x32xf32>
  %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<2x?x32xf32>) -> tensor<2x?x32xf32>
  %4 = linalg.batch_matmul ins(%arg0, %1 : tensor<2x?x32xf32>, tensor<2x32x32xf32>) outs(%3 : tensor<2x?x32xf32>) -> tensor<2x?x32xf32>
  %expanded = tensor.expand_shape %4 [[0], [1], [2, 3]] output_shape [2, %dim, 4, 8] : tensor<2x?x32xf32> into tensor<2x?x4x8xf32>
  %5 = tensor.empty(%dim) : tensor<2x4x?x8xf32>
  %transposed = linalg.transpose ins(%expanded : tensor<2x?x4x8xf32>) outs(%5 : tensor<2x4x?x8xf32>) permutation = [0, 2, 1, 3] 
  %dim_7 = tensor.dim %arg1, %c1 : tensor<2x?x32xf32>
  %6 = linalg.generic {indexing_maps = [#m, #m1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%w1 : tensor<32x32xf32>) outs(%0 : tensor<2x32x32xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<2x32x32xf32>
  %7 = tensor.empty(%dim_7) : tensor<2x?x32xf32>
  %8 = linalg.fill ins(%cst : f32) outs(%7 : tensor<2x?x32xf32>) -> tensor<2x?x32xf32>
  %9 = linalg.batch_matmul ins(%arg1, %6 : tensor<2x?x32xf32>, tensor<2x32x32xf32>) outs(%8 : tensor<2x?x32xf32>) -> tensor<2x?x32xf32>
  %expanded_8 = tensor.expand_shape %9 [[0], [1], [2, 3]] output_shape [2, %dim_7, 4, 8] : tensor<2x?x32xf32> into tensor<2x?x4x8xf32>
  %10 = linalg.generic {indexing_maps = [#m, #m1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%w2 : tensor<32x32xf32>) outs(%0 : tensor<2x32x32xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<2x32x32xf32>
  %11 = linalg.batch_matmul ins(%arg1, %10 : tensor<2x?x32xf32>, tensor<2x32x32xf32>) outs(%8 : tensor<2x?x32xf32>) -> tensor<2x?x32xf32>
  %expanded_9 = tensor.expand_shape %11 [[0], [1], [2, 3]] output_shape [2, %dim_7, 2, 16] : tensor<2x?x32xf32> into tensor<2x?x2x16xf32>
  %12 = tensor.empty(%dim_7) : tensor<2x2x?x16xf32>
  %transposed_10 = linalg.transpose ins(%expanded_9 : tensor<2x?x2x16xf32>) outs(%12 : tensor<2x2x?x16xf32>) permutation = [0, 2, 1, 3] 
  %13 = tensor.empty(%dim_7) : tensor<2x4x8x?xf32>
  %transposed_11 = linalg.transpose ins(%expanded_8 : tensor<2x?x4x8xf32>) outs(%13 : tensor<2x4x8x?xf32>) permutation = [0, 2, 3, 1] 
  %collapsed = tensor.collapse_shape %transposed [[0, 1], [2], [3]] : tensor<2x4x?x8xf32> into tensor<8x?x8xf32>
  %collapsed_12 = tensor.collapse_shape %transposed_11 [[0, 1], [2], [3]] : tensor<2x4x8x?xf32> into tensor<8x8x?xf32>
  %14 = tensor.empty(%dim, %dim_7) : tensor<8x?x?xf32>
  %15 = linalg.fill ins(%cst : f32) outs(%14 : tensor<8x?x?xf32>) -> tensor<8x?x?xf32>
  %16 = linalg.batch_matmul ins(%collapsed, %collapsed_12 : tensor<8x?x8xf32>, tensor<8x8x?xf32>) outs(%15 : tensor<8x?x?xf32>) -> tensor<8x?x?xf32>
  %expanded_13 = tensor.expand_shape %16 [[0, 1], [2], [3]] output_shape [2, 4, %dim, %dim_7] : tensor<8x?x?xf32> into tensor<2x4x?x?xf32>
  %17 = tensor.empty(%dim, %dim_7) : tensor<2x4x?x?xf32>
  %18 = linalg.generic {indexing_maps = [#m2, #m3, #m2], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded_13, %cst_6 : tensor<2x4x?x?xf32>, tensor<f32>) outs(%17 : tensor<2x4x?x?xf32>) {
  ^bb0(%in: f32, %in_21: f32, %out: f32):
    %39 = arith.mulf %in, %in_21 : f32
    linalg.yield %39 : f32
  } -> tensor<2x4x?x?xf32>
  %19 = tensor.empty(%dim) : tensor<2x4x?xi64>
  %20 = linalg.fill ins(%c0_i64 : i64) outs(%19 : tensor<2x4x?xi64>) -> tensor<2x4x?xi64>
  %21 = tensor.empty(%dim) : tensor<2x4x?xf32>
  %22 = linalg.fill ins(%cst_0 : f32) outs(%21 : tensor<2x4x?xf32>) -> tensor<2x4x?xf32>
  %23:2 = linalg.generic {indexing_maps = [#m2, #m4, #m4], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%18 : tensor<2x4x?x?xf32>) outs(%22, %20 : tensor<2x4x?xf32>, tensor<2x4x?xi64>) {
  ^bb0(%in: f32, %out: f32, %out_21: i64):
    %39 = linalg.index 3 : index
    %40 = arith.index_cast %39 : index to i64
    %41 = arith.maximumf %in, %out : f32
    %42 = arith.cmpf ogt, %in, %out : f32
    %43 = arith.select %42, %40, %out_21 : i64
    linalg.yield %41, %43 : f32, i64
  } -> (tensor<2x4x?xf32>, tensor<2x4x?xi64>)
  %expanded_14 = tensor.expand_shape %23#0 [[0], [1], [2, 3]] output_shape [2, 4, %dim, 1] : tensor<2x4x?xf32> into tensor<2x4x?x1xf32>
  %24 = linalg.generic {indexing_maps = [#m2, #m5, #m2], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%18, %expanded_14 : tensor<2x4x?x?xf32>, tensor<2x4x?x1xf32>) outs(%17 : tensor<2x4x?x?xf32>) {
  ^bb0(%in: f32, %in_21: f32, %out: f32):
    %39 = arith.subf %in, %in_21 : f32
    linalg.yield %39 : f32
  } -> tensor<2x4x?x?xf32>
  %25 = linalg.generic {indexing_maps = [#m2, #m2], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%24 : tensor<2x4x?x?xf32>) outs(%17 : tensor<2x4x?x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %39 = math.exp %in : f32
    linalg.yield %39 : f32
  } -> tensor<2x4x?x?xf32>
  %26 = tensor.empty(%dim) : tensor<2x4x?x1xf32>
  %27 = linalg.fill ins(%cst : f32) outs(%26 : tensor<2x4x?x1xf32>) -> tensor<2x4x?x1xf32>
  %28 = linalg.generic {indexing_maps = [#m2, #m5], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%25 : tensor<2x4x?x?xf32>) outs(%27 : tensor<2x4x?x1xf32>) {
  ^bb0(%in: f32, %out: f32):
    %39 = arith.addf %in, %out : f32
    linalg.yield %39 : f32
  } -> tensor<2x4x?x1xf32>
  %29 = linalg.generic {indexing_maps = [#m2, #m5, #m2], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%25, %28 : tensor<2x4x?x?xf32>, tensor<2x4x?x1xf32>) outs(%17 : tensor<2x4x?x?xf32>) {
  ^bb0(%in: f32, %in_21: f32, %out: f32):
    %39 = arith.divf %in, %in_21 : f32
    linalg.yield %39 : f32
  } -> tensor<2x4x?x?xf32>
  %extracted_slice = tensor.extract_slice %29[0, 0, 0, 0] [2, 2, %dim, %dim_7] [1, 2, 1, 1] : tensor<2x4x?x?xf32> to tensor<2x2x?x?xf32>
  %extracted_slice_15 = tensor.extract_slice %29[0, 1, 0, 0] [2, 2, %dim, %dim_7] [1, 2, 1, 1] : tensor<2x4x?x?xf32> to tensor<2x2x?x?xf32>
  %30 = tensor.empty(%dim, %dim_7) : tensor<2x2x?x?xf32>
  %31 = linalg.generic {indexing_maps = [#m3, #m2, #m2], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%cst_1, %extracted_slice_15 : tensor<f32>, tensor<2x2x?x?xf32>) outs(%30 : tensor<2x2x?x?xf32>) {
  ^bb0(%in: f32, %in_21: f32, %out: f32):
    %39 = arith.mulf %in, %in_21 : f32
    linalg.yield %39 : f32
  } -> tensor<2x2x?x?xf32>
  %32 = linalg.generic {indexing_maps = [#m2, #m2, #m2], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%extracted_slice, %31 : tensor<2x2x?x?xf32>, tensor<2x2x?x?xf32>) outs(%30 : tensor<2x2x?x?xf32>) {
  ^bb0(%in: f32, %in_21: f32, %out: f32):
    %39 = arith.subf %in, %in_21 : f32
    linalg.yield %39 : f32
  } -> tensor<2x2x?x?xf32>
  %collapsed_16 = tensor.collapse_shape %32 [[0, 1], [2], [3]] : tensor<2x2x?x?xf32> into tensor<4x?x?xf32>
  %collapsed_17 = tensor.collapse_shape %transposed_10 [[0, 1], [2], [3]] : tensor<2x2x?x16xf32> into tensor<4x?x16xf32>
  %33 = tensor.empty(%dim) : tensor<4x?x16xf32>
  %34 = linalg.fill ins(%cst : f32) outs(%33 : tensor<4x?x16xf32>) -> tensor<4x?x16xf32>
  %35 = linalg.batch_matmul ins(%collapsed_16, %collapsed_17 : tensor<4x?x?xf32>, tensor<4x?x16xf32>) outs(%34 : tensor<4x?x16xf32>) -> tensor<4x?x16xf32>
  %expanded_18 = tensor.expand_shape %35 [[0, 1], [2], [3]] output_shape [2, 2, %dim, 16] : tensor<4x?x16xf32> into tensor<2x2x?x16xf32>
  %36 = tensor.empty(%dim) : tensor<2x?x2x16xf32>
  %transposed_19 = linalg.transpose ins(%expanded_18 : tensor<2x2x?x16xf32>) outs(%36 : tensor<2x?x2x16xf32>) permutation = [0, 2, 1, 3] 
  %collapsed_20 = tensor.collapse_shape %transposed_19 [[0], [1], [2, 3]] : tensor<2x?x2x16xf32> into tensor<2x?x32xf32>
  %37 = linalg.generic {indexing_maps = [#m, #m1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%w3 : tensor<32x32xf32>) outs(%0 : tensor<2x32x32xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<2x32x32xf32>
  %38 = linalg.batch_matmul ins(%collapsed_20, %37 : tensor<2x?x32xf32>, tensor<2x32x32xf32>) outs(%3 : tensor<2x?x32xf32>) -> tensor<2x?x32xf32>
  return %38 : tensor<2x?x32xf32>
}

// The constant that names an axis is used by what is replaced, and by sizes of what is replaced.

// CHECK-LABEL: func.func @axis_constant(
// CHECK-SAME:      %[[Q:[a-z0-9]+]]: tensor<2x?x4xf32>
// CHECK:         %[[ONE:.+]] = arith.constant 1 : index
// CHECK:         %[[LENGTH:.+]] = tensor.dim %[[Q]], %[[ONE]]
// CHECK-NOT:     linalg.softmax
// CHECK:         diffattn.attention
// CHECK-SAME:      is_causal
// CHECK-NOT:     linalg.softmax
// CHECK:         return
#ij = affine_map<(b, i, j) -> (b, i, j)>
func.func @axis_constant(%q1: tensor<2x?x4xf32>, %k1: tensor<2x4x?xf32>, %q2: tensor<2x?x4xf32>, %k2: tensor<2x4x?xf32>, %v: tensor<2x?x4xf32>, %l: f32) -> (tensor<2x?x4xf32>, index, index) {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %rows = tensor.dim %q1, %c1 : tensor<2x?x4xf32>
  %keys = tensor.dim %k1, %c2 : tensor<2x4x?xf32>
  %es = tensor.empty(%rows, %keys) : tensor<2x?x?xf32>
  %zs = linalg.fill ins(%zero : f32) outs(%es : tensor<2x?x?xf32>) -> tensor<2x?x?xf32>
  %s1 = linalg.batch_matmul ins(%q1, %k1 : tensor<2x?x4xf32>, tensor<2x4x?xf32>) outs(%zs : tensor<2x?x?xf32>) -> tensor<2x?x?xf32>
  %s2 = linalg.batch_matmul ins(%q2, %k2 : tensor<2x?x4xf32>, tensor<2x4x?xf32>) outs(%zs : tensor<2x?x?xf32>) -> tensor<2x?x?xf32>
  %m1 = linalg.generic {indexing_maps = [#ij, #ij], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : tensor<2x?x?xf32>) outs(%es : tensor<2x?x?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %next = arith.addi %i, %c1 : index
    %vis = arith.cmpi slt, %j, %next : index
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> tensor<2x?x?xf32>
  %a1 = linalg.softmax dimension(2) ins(%m1 : tensor<2x?x?xf32>) outs(%es : tensor<2x?x?xf32>) -> tensor<2x?x?xf32>
  %dim1 = tensor.dim %a1, %c1 : tensor<2x?x?xf32>
  %m2 = linalg.generic {indexing_maps = [#ij, #ij], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : tensor<2x?x?xf32>) outs(%es : tensor<2x?x?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %next = arith.addi %i, %c1 : index
    %vis = arith.cmpi slt, %j, %next : index
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> tensor<2x?x?xf32>
  %a2 = linalg.softmax dimension(2) ins(%m2 : tensor<2x?x?xf32>) outs(%es : tensor<2x?x?xf32>) -> tensor<2x?x?xf32>
  %dim2 = tensor.dim %a2, %c1 : tensor<2x?x?xf32>
  %ls = tensor.splat %l[%dim1, %keys] : tensor<2x?x?xf32>
  %w = arith.mulf %a2, %ls : tensor<2x?x?xf32>
  %d = arith.subf %a1, %w : tensor<2x?x?xf32>
  %ev = tensor.empty(%dim2) : tensor<2x?x4xf32>
  %zv = linalg.fill ins(%zero : f32) outs(%ev : tensor<2x?x4xf32>) -> tensor<2x?x4xf32>
  %out = linalg.batch_matmul ins(%d, %v : tensor<2x?x?xf32>, tensor<2x?x4xf32>) outs(%zv : tensor<2x?x4xf32>) -> tensor<2x?x4xf32>
  return %out, %dim1, %dim2 : tensor<2x?x4xf32>, index, index
}

// A step with a cache: the length of keys and values is a sum, by which heads that share them are split from positions.

// CHECK-LABEL: func.func @cache(
// CHECK-NOT:     linalg.softmax
// CHECK:         diffattn.attention
// CHECK-NOT:     linalg.softmax
// CHECK:         return
#b4 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d3, d4)>
#b5 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3, d4)>
func.func @cache(%q: tensor<?x4x1x8xf32>, %pastk: tensor<?x2x?x8xf32>, %newk: tensor<?x2x1x8xf32>, %pastv: tensor<?x2x?x8xf32>, %newv: tensor<?x2x1x8xf32>, %l: f32) -> tensor<?x2x1x8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %zero = arith.constant 0.0 : f32
  %B = tensor.dim %q, %c0 : tensor<?x4x1x8xf32>
  %P = tensor.dim %pastk, %c2 : tensor<?x2x?x8xf32>
  %PV = tensor.dim %pastv, %c2 : tensor<?x2x?x8xf32>
  %BV = tensor.dim %pastv, %c0 : tensor<?x2x?x8xf32>
  %same = arith.cmpi eq, %P, %PV : index
  cf.assert %same, "expected keys and values of one length"
  %one = arith.cmpi eq, %B, %BV : index
  cf.assert %one, "expected one batch"
  %N = arith.addi %P, %c1 : index
  %k = tensor.concat dim(2) %pastk, %newk : (tensor<?x2x?x8xf32>, tensor<?x2x1x8xf32>) -> tensor<?x2x?x8xf32>
  %v = tensor.concat dim(2) %pastv, %newv : (tensor<?x2x?x8xf32>, tensor<?x2x1x8xf32>) -> tensor<?x2x?x8xf32>
  %e = tensor.empty(%B, %N) : tensor<?x2x2x?x8xf32>
  %k5 = linalg.generic {indexing_maps = [#b4, #b5], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]} ins(%k : tensor<?x2x?x8xf32>) outs(%e : tensor<?x2x2x?x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<?x2x2x?x8xf32>
  %v5 = linalg.generic {indexing_maps = [#b4, #b5], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]} ins(%v : tensor<?x2x?x8xf32>) outs(%e : tensor<?x2x2x?x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<?x2x2x?x8xf32>
  %shape = tensor.from_elements %B, %c4, %N, %c8 : tensor<4xindex>
  %k4 = tensor.reshape %k5(%shape) : (tensor<?x2x2x?x8xf32>, tensor<4xindex>) -> tensor<?x4x?x8xf32>
  %v4 = tensor.reshape %v5(%shape) : (tensor<?x2x2x?x8xf32>, tensor<4xindex>) -> tensor<?x4x?x8xf32>
  %kt0 = tensor.empty(%B, %N) : tensor<?x4x8x?xf32>
  %kt = linalg.transpose ins(%k4 : tensor<?x4x?x8xf32>) outs(%kt0 : tensor<?x4x8x?xf32>) permutation = [0, 1, 3, 2]
  %q3 = tensor.collapse_shape %q [[0, 1], [2], [3]] : tensor<?x4x1x8xf32> into tensor<?x1x8xf32>
  %k3 = tensor.collapse_shape %kt [[0, 1], [2], [3]] : tensor<?x4x8x?xf32> into tensor<?x8x?xf32>
  %v3 = tensor.collapse_shape %v4 [[0, 1], [2], [3]] : tensor<?x4x?x8xf32> into tensor<?x?x8xf32>
  %BH = arith.muli %B, %c4 : index
  %se = tensor.empty(%BH, %N) : tensor<?x1x?xf32>
  %s0 = linalg.fill ins(%zero : f32) outs(%se : tensor<?x1x?xf32>) -> tensor<?x1x?xf32>
  %s = linalg.batch_matmul ins(%q3, %k3 : tensor<?x1x8xf32>, tensor<?x8x?xf32>) outs(%s0 : tensor<?x1x?xf32>) -> tensor<?x1x?xf32>
  %a = linalg.softmax dimension(2) ins(%s : tensor<?x1x?xf32>) outs(%se : tensor<?x1x?xf32>) -> tensor<?x1x?xf32>
  %oe = tensor.empty(%BH) : tensor<?x1x8xf32>
  %o0 = linalg.fill ins(%zero : f32) outs(%oe : tensor<?x1x8xf32>) -> tensor<?x1x8xf32>
  %o = linalg.batch_matmul ins(%a, %v3 : tensor<?x1x?xf32>, tensor<?x?x8xf32>) outs(%o0 : tensor<?x1x8xf32>) -> tensor<?x1x8xf32>
  %o4 = tensor.expand_shape %o [[0, 1], [2], [3]] output_shape [%B, 4, 1, 8] : tensor<?x1x8xf32> into tensor<?x4x1x8xf32>
  %first = tensor.extract_slice %o4[0, 0, 0, 0] [%B, 2, 1, 8] [1, 2, 1, 1] : tensor<?x4x1x8xf32> to tensor<?x2x1x8xf32>
  %second = tensor.extract_slice %o4[0, 1, 0, 0] [%B, 2, 1, 8] [1, 2, 1, 1] : tensor<?x4x1x8xf32> to tensor<?x2x1x8xf32>
  %le = tensor.splat %l[%B] : tensor<?x2x1x8xf32>
  %m = arith.mulf %second, %le : tensor<?x2x1x8xf32>
  %r = arith.subf %first, %m : tensor<?x2x1x8xf32>
  return %r : tensor<?x2x1x8xf32>
}
