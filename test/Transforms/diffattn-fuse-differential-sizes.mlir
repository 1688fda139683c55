// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" | FileCheck %s

// The verifier lets a size be read that the tensor does not have.

// CHECK-LABEL: func.func @no_such_axis(
func.func @no_such_axis(%x: tensor<?x4xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
  // CHECK: tensor.dim %{{.+}}, %{{.+}} : tensor<?x4xf32>
  // CHECK: tensor.dim %{{.+}}, %{{.+}} : tensor<?x4xf32>
  %c7 = arith.constant 7 : index
  %c-100000 = arith.constant -100000 : index
  %n = tensor.dim %x, %c7 : tensor<?x4xf32>
  %m = tensor.dim %x, %c-100000 : tensor<?x4xf32>
  %a = tensor.empty(%n) : tensor<?xf32>
  %b = tensor.empty(%m) : tensor<?xf32>
  return %a, %b : tensor<?xf32>, tensor<?xf32>
}

// Written out, the sums have 2^40 terms and the products a term of 2^40 factors.

// CHECK-LABEL: func.func @doubled(
// CHECK:         %[[SUM:.+]] = arith.addi
// CHECK:         cf.assert
// CHECK:         return
func.func @doubled(%a0: index, %m0: index) -> tensor<?x?xf32> {
  %a1 = arith.addi %a0, %a0 : index
  %a2 = arith.addi %a1, %a1 : index
  %a3 = arith.addi %a2, %a2 : index
  %a4 = arith.addi %a3, %a3 : index
  %a5 = arith.addi %a4, %a4 : index
  %a6 = arith.addi %a5, %a5 : index
  %a7 = arith.addi %a6, %a6 : index
  %a8 = arith.addi %a7, %a7 : index
  %a9 = arith.addi %a8, %a8 : index
  %a10 = arith.addi %a9, %a9 : index
  %a11 = arith.addi %a10, %a10 : index
  %a12 = arith.addi %a11, %a11 : index
  %a13 = arith.addi %a12, %a12 : index
  %a14 = arith.addi %a13, %a13 : index
  %a15 = arith.addi %a14, %a14 : index
  %a16 = arith.addi %a15, %a15 : index
  %a17 = arith.addi %a16, %a16 : index
  %a18 = arith.addi %a17, %a17 : index
  %a19 = arith.addi %a18, %a18 : index
  %a20 = arith.addi %a19, %a19 : index
  %a21 = arith.addi %a20, %a20 : index
  %a22 = arith.addi %a21, %a21 : index
  %a23 = arith.addi %a22, %a22 : index
  %a24 = arith.addi %a23, %a23 : index
  %a25 = arith.addi %a24, %a24 : index
  %a26 = arith.addi %a25, %a25 : index
  %a27 = arith.addi %a26, %a26 : index
  %a28 = arith.addi %a27, %a27 : index
  %a29 = arith.addi %a28, %a28 : index
  %a30 = arith.addi %a29, %a29 : index
  %a31 = arith.addi %a30, %a30 : index
  %a32 = arith.addi %a31, %a31 : index
  %a33 = arith.addi %a32, %a32 : index
  %a34 = arith.addi %a33, %a33 : index
  %a35 = arith.addi %a34, %a34 : index
  %a36 = arith.addi %a35, %a35 : index
  %a37 = arith.addi %a36, %a36 : index
  %a38 = arith.addi %a37, %a37 : index
  %a39 = arith.addi %a38, %a38 : index
  %a40 = arith.addi %a39, %a39 : index
  %m1 = arith.muli %m0, %m0 : index
  %m2 = arith.muli %m1, %m1 : index
  %m3 = arith.muli %m2, %m2 : index
  %m4 = arith.muli %m3, %m3 : index
  %m5 = arith.muli %m4, %m4 : index
  %m6 = arith.muli %m5, %m5 : index
  %m7 = arith.muli %m6, %m6 : index
  %m8 = arith.muli %m7, %m7 : index
  %m9 = arith.muli %m8, %m8 : index
  %m10 = arith.muli %m9, %m9 : index
  %m11 = arith.muli %m10, %m10 : index
  %m12 = arith.muli %m11, %m11 : index
  %m13 = arith.muli %m12, %m12 : index
  %m14 = arith.muli %m13, %m13 : index
  %m15 = arith.muli %m14, %m14 : index
  %m16 = arith.muli %m15, %m15 : index
  %m17 = arith.muli %m16, %m16 : index
  %m18 = arith.muli %m17, %m17 : index
  %m19 = arith.muli %m18, %m18 : index
  %m20 = arith.muli %m19, %m19 : index
  %m21 = arith.muli %m20, %m20 : index
  %m22 = arith.muli %m21, %m21 : index
  %m23 = arith.muli %m22, %m22 : index
  %m24 = arith.muli %m23, %m23 : index
  %m25 = arith.muli %m24, %m24 : index
  %m26 = arith.muli %m25, %m25 : index
  %m27 = arith.muli %m26, %m26 : index
  %m28 = arith.muli %m27, %m27 : index
  %m29 = arith.muli %m28, %m28 : index
  %m30 = arith.muli %m29, %m29 : index
  %m31 = arith.muli %m30, %m30 : index
  %m32 = arith.muli %m31, %m31 : index
  %m33 = arith.muli %m32, %m32 : index
  %m34 = arith.muli %m33, %m33 : index
  %m35 = arith.muli %m34, %m34 : index
  %m36 = arith.muli %m35, %m35 : index
  %m37 = arith.muli %m36, %m36 : index
  %m38 = arith.muli %m37, %m37 : index
  %m39 = arith.muli %m38, %m38 : index
  %m40 = arith.muli %m39, %m39 : index
  %same = arith.cmpi eq, %a40, %m40 : index
  cf.assert %same, "expected equal sizes"
  %e = tensor.empty(%a40, %m40) : tensor<?x?xf32>
  return %e : tensor<?x?xf32>
}

// A size that an op states is known where the types do not tell it.

// CHECK-LABEL: func.func @stated_size(
// CHECK:         %[[CAST:.+]] = tensor.cast %{{.+}} : tensor<?x4x8xf32> to tensor<2x4x8xf32>
// CHECK:         tensor.expand_shape %[[CAST]] {{.+}} output_shape [2, 1, 4, 8]
// CHECK:         diffattn.attention
// CHECK:         tensor.cast %{{.+}} : tensor<2x4x8xf32> to tensor<?x4x8xf32>
func.func @stated_size(%q1: tensor<?x4x8xf32>, %k1: tensor<?x8x4xf32>, %q2: tensor<?x4x8xf32>, %k2: tensor<?x8x4xf32>, %v: tensor<?x4x8xf32>) -> tensor<?x4x8xf32> {
  %b = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty(%b) : tensor<?x4x4xf32>
  %zs = linalg.fill ins(%zero : f32) outs(%es : tensor<?x4x4xf32>) -> tensor<?x4x4xf32>
  %s1 = linalg.batch_matmul ins(%q1, %k1 : tensor<?x4x8xf32>, tensor<?x8x4xf32>) outs(%zs : tensor<?x4x4xf32>) -> tensor<?x4x4xf32>
  %s2 = linalg.batch_matmul ins(%q2, %k2 : tensor<?x4x8xf32>, tensor<?x8x4xf32>) outs(%zs : tensor<?x4x4xf32>) -> tensor<?x4x4xf32>
  %a1 = linalg.softmax dimension(2) ins(%s1 : tensor<?x4x4xf32>) outs(%es : tensor<?x4x4xf32>) -> tensor<?x4x4xf32>
  %a2 = linalg.softmax dimension(2) ins(%s2 : tensor<?x4x4xf32>) outs(%es : tensor<?x4x4xf32>) -> tensor<?x4x4xf32>
  %d = arith.subf %a1, %a2 : tensor<?x4x4xf32>
  %ev = tensor.empty(%b) : tensor<?x4x8xf32>
  %zv = linalg.fill ins(%zero : f32) outs(%ev : tensor<?x4x8xf32>) -> tensor<?x4x8xf32>
  %o = linalg.batch_matmul ins(%d, %v : tensor<?x4x4xf32>, tensor<?x4x8xf32>) outs(%zv : tensor<?x4x8xf32>) -> tensor<?x4x8xf32>
  return %o : tensor<?x4x8xf32>
}

// No tensor has such sizes: the program fails when it runs, and nothing follows from them.

// CHECK-LABEL: func.func @size_below_zero(
// CHECK:         %[[SIZE:.+]] = tensor.dim
// CHECK:         tensor.expand_shape %{{.+}} output_shape [%{{.+}}, 1, 4, 8]
// CHECK:         diffattn.attention
func.func @size_below_zero(%q1: tensor<?x4x8xf32>, %k1: tensor<?x8x4xf32>, %q2: tensor<?x4x8xf32>, %k2: tensor<?x8x4xf32>, %v: tensor<?x4x8xf32>) -> tensor<?x4x8xf32> {
  %b = arith.constant -9223372036854775808 : index
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty(%b) : tensor<?x4x4xf32>
  %zs = linalg.fill ins(%zero : f32) outs(%es : tensor<?x4x4xf32>) -> tensor<?x4x4xf32>
  %s1 = linalg.batch_matmul ins(%q1, %k1 : tensor<?x4x8xf32>, tensor<?x8x4xf32>) outs(%zs : tensor<?x4x4xf32>) -> tensor<?x4x4xf32>
  %s2 = linalg.batch_matmul ins(%q2, %k2 : tensor<?x4x8xf32>, tensor<?x8x4xf32>) outs(%zs : tensor<?x4x4xf32>) -> tensor<?x4x4xf32>
  %a1 = linalg.softmax dimension(2) ins(%s1 : tensor<?x4x4xf32>) outs(%es : tensor<?x4x4xf32>) -> tensor<?x4x4xf32>
  %a2 = linalg.softmax dimension(2) ins(%s2 : tensor<?x4x4xf32>) outs(%es : tensor<?x4x4xf32>) -> tensor<?x4x4xf32>
  %d = arith.subf %a1, %a2 : tensor<?x4x4xf32>
  %ev = tensor.empty(%b) : tensor<?x4x8xf32>
  %zv = linalg.fill ins(%zero : f32) outs(%ev : tensor<?x4x8xf32>) -> tensor<?x4x8xf32>
  %o = linalg.batch_matmul ins(%d, %v : tensor<?x4x4xf32>, tensor<?x4x8xf32>) outs(%zv : tensor<?x4x8xf32>) -> tensor<?x4x8xf32>
  return %o : tensor<?x4x8xf32>
}

// One of four rows that are said to be there, every second of them three times, is not: no view of the operand is valid.

// CHECK-LABEL: func.func @sizes_that_contradict(
// CHECK:         diffattn.attention
func.func @sizes_that_contradict(%q1: tensor<2x?x8xf32>, %k1: tensor<2x8x5xf32>, %q2: tensor<2x3x8xf32>, %k2: tensor<2x8x5xf32>, %v: tensor<2x5x8xf32>) -> tensor<2x3x8xf32> {
  %c4 = arith.constant 4 : index
  %same = tensor.empty(%c4) : tensor<2x?x8xf32>
  %all = arith.addf %q1, %same : tensor<2x?x8xf32>
  %part = tensor.extract_slice %all[0, 1, 0] [2, 3, 8] [1, 2, 1] : tensor<2x?x8xf32> to tensor<2x3x8xf32>
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : tensor<2x3x5xf32>
  %zs = linalg.fill ins(%zero : f32) outs(%es : tensor<2x3x5xf32>) -> tensor<2x3x5xf32>
  %s1 = linalg.batch_matmul ins(%part, %k1 : tensor<2x3x8xf32>, tensor<2x8x5xf32>) outs(%zs : tensor<2x3x5xf32>) -> tensor<2x3x5xf32>
  %s2 = linalg.batch_matmul ins(%q2, %k2 : tensor<2x3x8xf32>, tensor<2x8x5xf32>) outs(%zs : tensor<2x3x5xf32>) -> tensor<2x3x5xf32>
  %a1 = linalg.softmax dimension(2) ins(%s1 : tensor<2x3x5xf32>) outs(%es : tensor<2x3x5xf32>) -> tensor<2x3x5xf32>
  %a2 = linalg.softmax dimension(2) ins(%s2 : tensor<2x3x5xf32>) outs(%es : tensor<2x3x5xf32>) -> tensor<2x3x5xf32>
  %d = arith.subf %a1, %a2 : tensor<2x3x5xf32>
  %ev = tensor.empty() : tensor<2x3x8xf32>
  %zv = linalg.fill ins(%zero : f32) outs(%ev : tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
  %o = linalg.batch_matmul ins(%d, %v : tensor<2x3x5xf32>, tensor<2x5x8xf32>) outs(%zv : tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
  return %o : tensor<2x3x8xf32>
}
