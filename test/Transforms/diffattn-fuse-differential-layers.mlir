// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" --remarks-filter="diffattn.*" --remark-format=emitRemark 2>&1 | FileCheck %s

// Attentions behind each other: all are raised, and told in program order. One that depends on what another one changes waits for
// the next look.

!q = tensor<6x20x32xf32>
!kt = tensor<6x32x20xf32>
!s = tensor<6x20x20xf32>
!w = tensor<6x32x32xf32>

// CHECK:       loc("first"): [Passed] Raised |
// CHECK:       loc("second"): [Passed] Raised |
// CHECK:       loc("third"): [Passed] Raised |
// CHECK:       loc("inner"): [Passed] Raised |
// CHECK:       loc("outer"): [Passed] Raised |
// CHECK:       loc("behind"): [Passed] Raised |
// CHECK:       loc("before"): [Passed] Raised |

// What one computes the values of the next from is read from the op that took its place.

// CHECK-LABEL: func.func @layers(
// CHECK-NOT:     linalg.softmax
// CHECK:         %[[O1:.+]] = diffattn.attention
// CHECK:         %[[X1:.+]] = tensor.collapse_shape %[[O1]]
// CHECK:         %[[V2:.+]] = linalg.batch_matmul ins(%[[X1]],
// CHECK:         %[[E2:.+]] = tensor.expand_shape %[[V2]]
// CHECK:         %[[O2:.+]] = diffattn.attention ins({{.*}}, %[[E2]] :
// CHECK:         %[[X2:.+]] = tensor.collapse_shape %[[O2]]
// CHECK:         %[[V3:.+]] = linalg.batch_matmul ins(%[[X2]],
// CHECK:         %[[E3:.+]] = tensor.expand_shape %[[V3]]
// CHECK:         %[[O3:.+]] = diffattn.attention ins({{.*}}, %[[E3]] :
// CHECK:         %[[X3:.+]] = tensor.collapse_shape %[[O3]]
// CHECK-NOT:     linalg
// CHECK:         return %[[X3]]
func.func @layers(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %x: !q, %w: !w, %l: f32) -> !q {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %ex = tensor.empty() : !q
  %zx = linalg.fill ins(%zero : f32) outs(%ex : !q) -> !q

  %ls = tensor.splat %l : !s
  %s11 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s12 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a11 = linalg.softmax dimension(2) ins(%s11 : !s) outs(%es : !s) -> !s
  %a12 = linalg.softmax dimension(2) ins(%s12 : !s) outs(%es : !s) -> !s
  %m1 = arith.mulf %a12, %ls : !s
  %d1 = arith.subf %a11, %m1 : !s
  %o1 = linalg.batch_matmul ins(%d1, %x : !s, !q) outs(%zx : !q) -> !q loc("first")
  %x1 = linalg.batch_matmul ins(%o1, %w : !q, !w) outs(%zx : !q) -> !q

  %s21 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s22 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a21 = linalg.softmax dimension(2) ins(%s21 : !s) outs(%es : !s) -> !s
  %a22 = linalg.softmax dimension(2) ins(%s22 : !s) outs(%es : !s) -> !s
  %m2 = arith.mulf %a22, %ls : !s
  %d2 = arith.subf %a21, %m2 : !s
  %o2 = linalg.batch_matmul ins(%d2, %x1 : !s, !q) outs(%zx : !q) -> !q loc("second")
  %x2 = linalg.batch_matmul ins(%o2, %w : !q, !w) outs(%zx : !q) -> !q

  %s31 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s32 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a31 = linalg.softmax dimension(2) ins(%s31 : !s) outs(%es : !s) -> !s
  %a32 = linalg.softmax dimension(2) ins(%s32 : !s) outs(%es : !s) -> !s
  %m3 = arith.mulf %a32, %ls : !s
  %d3 = arith.subf %a31, %m3 : !s
  %o3 = linalg.batch_matmul ins(%d3, %x2 : !s, !q) outs(%zx : !q) -> !q loc("third")
  return %o3 : !q
}

// Values that are an attention themselves: it has to be an op before the second one is seen.

// CHECK-LABEL: func.func @straight(
// CHECK-NOT:     linalg.softmax
// CHECK:         %[[O1:.+]] = diffattn.attention
// CHECK:         %[[S1:.+]] = tensor.extract_slice %[[O1]]
// CHECK:         %[[E1:.+]] = tensor.expand_shape %[[S1]]
// CHECK:         %[[O2:.+]] = diffattn.attention ins({{.*}}, %[[E1]] :
// CHECK:         %[[X2:.+]] = tensor.collapse_shape %[[O2]]
// CHECK:         return %[[X2]]
func.func @straight(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %x: !q, %l: f32) -> !q {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %ex = tensor.empty() : !q
  %zx = linalg.fill ins(%zero : f32) outs(%ex : !q) -> !q

  %ls = tensor.splat %l : !s
  %s11 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s12 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a11 = linalg.softmax dimension(2) ins(%s11 : !s) outs(%es : !s) -> !s
  %a12 = linalg.softmax dimension(2) ins(%s12 : !s) outs(%es : !s) -> !s
  %m1 = arith.mulf %a12, %ls : !s
  %d1 = arith.subf %a11, %m1 : !s
  %o1 = linalg.batch_matmul ins(%d1, %x : !s, !q) outs(%zx : !q) -> !q loc("inner")

  %s21 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s22 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a21 = linalg.softmax dimension(2) ins(%s21 : !s) outs(%es : !s) -> !s
  %a22 = linalg.softmax dimension(2) ins(%s22 : !s) outs(%es : !s) -> !s
  %m2 = arith.mulf %a22, %ls : !s
  %d2 = arith.subf %a21, %m2 : !s
  %o2 = linalg.batch_matmul ins(%d2, %o1 : !s, !q) outs(%zx : !q) -> !q loc("outer")
  return %o2 : !q
}

// Sizes of the first are read from scores of the second, which are gone once that is raised: its own are known anew then.

// CHECK-LABEL: func.func @sizes_of_the_next(
// CHECK-NOT:     linalg.softmax
// CHECK:         diffattn.attention
// CHECK:         diffattn.attention
// CHECK:         return
func.func @sizes_of_the_next(%q1: tensor<6x20x32xf32>, %k1: tensor<6x32x?xf32>, %q2: tensor<6x20x32xf32>, %k2: tensor<6x32x?xf32>, %x: tensor<6x?x32xf32>, %l: f32,
                             %y: tensor<6x?x32xf32>) -> (!q, !q) {
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  %keys = tensor.dim %k1, %c2 : tensor<6x32x?xf32>
  %ee = tensor.empty(%keys) : tensor<6x20x?xf32>
  %ze = linalg.fill ins(%zero : f32) outs(%ee : tensor<6x20x?xf32>) -> tensor<6x20x?xf32>
  %s22 = linalg.batch_matmul ins(%q2, %k2 : tensor<6x20x32xf32>, tensor<6x32x?xf32>) outs(%ze : tensor<6x20x?xf32>) -> tensor<6x20x?xf32>
  %size = tensor.dim %s22, %c2 : tensor<6x20x?xf32>
  %es = tensor.empty(%size) : tensor<6x20x?xf32>
  %zs = linalg.fill ins(%zero : f32) outs(%es : tensor<6x20x?xf32>) -> tensor<6x20x?xf32>
  %ls = tensor.splat %l[%size] : tensor<6x20x?xf32>
  %ex = tensor.empty() : !q
  %zx = linalg.fill ins(%zero : f32) outs(%ex : !q) -> !q

  %s11 = linalg.batch_matmul ins(%q1, %k1 : tensor<6x20x32xf32>, tensor<6x32x?xf32>) outs(%zs : tensor<6x20x?xf32>) -> tensor<6x20x?xf32>
  %s12 = linalg.batch_matmul ins(%q2, %k2 : tensor<6x20x32xf32>, tensor<6x32x?xf32>) outs(%zs : tensor<6x20x?xf32>) -> tensor<6x20x?xf32>
  %a11 = linalg.softmax dimension(2) ins(%s11 : tensor<6x20x?xf32>) outs(%es : tensor<6x20x?xf32>) -> tensor<6x20x?xf32>
  %a12 = linalg.softmax dimension(2) ins(%s12 : tensor<6x20x?xf32>) outs(%es : tensor<6x20x?xf32>) -> tensor<6x20x?xf32>
  %m1 = arith.mulf %a12, %ls : tensor<6x20x?xf32>
  %d1 = arith.subf %a11, %m1 : tensor<6x20x?xf32>
  %o1 = linalg.batch_matmul ins(%d1, %x : tensor<6x20x?xf32>, tensor<6x?x32xf32>) outs(%zx : !q) -> !q loc("before")

  %s21 = linalg.batch_matmul ins(%q1, %k1 : tensor<6x20x32xf32>, tensor<6x32x?xf32>) outs(%ze : tensor<6x20x?xf32>) -> tensor<6x20x?xf32>
  %a21 = linalg.softmax dimension(2) ins(%s21 : tensor<6x20x?xf32>) outs(%ee : tensor<6x20x?xf32>) -> tensor<6x20x?xf32>
  %a22 = linalg.softmax dimension(2) ins(%s22 : tensor<6x20x?xf32>) outs(%ee : tensor<6x20x?xf32>) -> tensor<6x20x?xf32>
  %m2 = arith.mulf %a22, %ls : tensor<6x20x?xf32>
  %d2 = arith.subf %a21, %m2 : tensor<6x20x?xf32>
  %o2 = linalg.batch_matmul ins(%d2, %y : tensor<6x20x?xf32>, tensor<6x?x32xf32>) outs(%zx : !q) -> !q loc("behind")
  return %o1, %o2 : !q, !q
}
