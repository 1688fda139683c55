// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" | FileCheck %s

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>

// The formula itself: linalg.softmax, element-wise arith on tensors, three axes.

// CHECK-LABEL: func.func @named_ops(
// CHECK-SAME:    %[[V:[^:]+]]: tensor<6x20x32xf32>, %[[L:[^:]+]]: f32)
// CHECK-NOT:     linalg.softmax
// CHECK-DAG:     %[[L0:.+]] = tensor.from_elements %[[L]] : tensor<f32>
// CHECK-DAG:     %[[V4:.+]] = tensor.expand_shape %[[V]]
// CHECK:         %[[O:.+]] = diffattn.attention ins(%{{.+}}, %{{.+}}, %{{.+}}, %{{.+}}, %[[V4]] :
// CHECK-SAME:      lambda(%[[L0]] : tensor<f32>)
// CHECK-SAME:      scale = 2.500000e-01
// CHECK-NEXT:    %[[C:.+]] = tensor.collapse_shape %[[O]]
// CHECK-NEXT:    return %[[C]]
func.func @named_ops(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %quarter = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %et = tensor.empty() : !kt
  %k1t = linalg.transpose ins(%k1 : !q) outs(%et : !kt) permutation = [0, 2, 1]
  %k2t = linalg.transpose ins(%k2 : !q) outs(%et : !kt) permutation = [0, 2, 1]
  %s1 = linalg.batch_matmul ins(%q1, %k1t : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2t : !q, !kt) outs(%zs : !s) -> !s
  %c1 = arith.mulf %s1, %quarter : !s
  %c2 = arith.mulf %quarter, %s2 : !s
  %a1 = linalg.softmax dimension(2) ins(%c1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%c2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// A product of four axes, a softmax spelled out without a maximum, a division
// by a root, all lengths dynamic, batch too.

#qk_q = affine_map<(b, h, i, j, d) -> (b, h, i, d)>
#qk_k = affine_map<(b, h, i, j, d) -> (b, h, j, d)>
#qk_s = affine_map<(b, h, i, j, d) -> (b, h, i, j)>
#pv_v = affine_map<(b, h, i, e, j) -> (b, h, j, e)>
#pv_s = affine_map<(b, h, i, e, j) -> (b, h, i, j)>
#pv_o = affine_map<(b, h, i, e, j) -> (b, h, i, e)>
#id = affine_map<(b, h, i, j) -> (b, h, i, j)>
#row = affine_map<(b, h, i, j) -> (b, h, i)>
#none = affine_map<(b, h, i, j) -> ()>
!dq = tensor<?x4x?x16xf32>
!ds = tensor<?x4x?x?xf32>
!dr = tensor<?x4x?xf32>

// CHECK-LABEL: func.func @generic_dynamic(
// CHECK-SAME:    %[[Q1:[^:]+]]: tensor<?x4x?x16xf32>, %[[K1:[^:]+]]: tensor<?x4x?x16xf32>, %[[Q2:[^:]+]]: tensor<?x4x?x16xf32>, %[[K2:[^:]+]]: tensor<?x4x?x16xf32>, %[[V:[^:]+]]: tensor<?x4x?x16xf32>, %[[L:[^:]+]]: tensor<f32>)
// CHECK-NOT:     math.exp
// CHECK:         diffattn.attention ins(%[[Q1]], %[[K1]], %[[Q2]], %[[K2]], %[[V]] :
// CHECK-SAME:      lambda(%[[L]] : tensor<f32>)
// CHECK-SAME:      scale = 2.500000e-01
func.func @generic_dynamic(%q1: !dq, %k1: !dq, %q2: !dq, %k2: !dq, %v: !dq, %l: tensor<f32>) -> !dq {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  %four = arith.constant 4.0 : f32
  %b = tensor.dim %q1, %c0 : !dq
  %tq = tensor.dim %q1, %c2 : !dq
  %tk = tensor.dim %k1, %c2 : !dq
  %es = tensor.empty(%b, %tq, %tk) : !ds
  %zs = linalg.fill ins(%zero : f32) outs(%es : !ds) -> !ds
  %er = tensor.empty(%b, %tq) : !dr
  %zr = linalg.fill ins(%zero : f32) outs(%er : !dr) -> !dr
  %s1 = linalg.generic {indexing_maps = [#qk_q, #qk_k, #qk_s], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%q1, %k1 : !dq, !dq) outs(%zs : !ds) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %x, %y : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> !ds
  %e1 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%s1 : !ds) outs(%es : !ds) {
  ^bb0(%x: f32, %out: f32):
    %p = arith.divf %x, %four : f32
    %n = math.exp %p : f32
    linalg.yield %n : f32
  } -> !ds
  %r1 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%e1 : !ds) outs(%zr : !dr) {
  ^bb0(%x: f32, %acc: f32):
    %n = arith.addf %x, %acc : f32
    linalg.yield %n : f32
  } -> !dr
  %s2 = linalg.generic {indexing_maps = [#qk_q, #qk_k, #qk_s], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%q2, %k2 : !dq, !dq) outs(%zs : !ds) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %y, %x : f32
    %n = arith.addf %p, %acc : f32
    linalg.yield %n : f32
  } -> !ds
  %e2 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%s2 : !ds) outs(%es : !ds) {
  ^bb0(%x: f32, %out: f32):
    %p = arith.divf %x, %four : f32
    %n = math.exp %p : f32
    linalg.yield %n : f32
  } -> !ds
  %r2 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%e2 : !ds) outs(%zr : !dr) {
  ^bb0(%x: f32, %acc: f32):
    %n = arith.addf %x, %acc : f32
    linalg.yield %n : f32
  } -> !dr
  %a1 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%e1, %r1 : !ds, !dr) outs(%es : !ds) {
  ^bb0(%x: f32, %r: f32, %out: f32):
    %n = arith.divf %x, %r : f32
    linalg.yield %n : f32
  } -> !ds
  %a2 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%e2, %r2 : !ds, !dr) outs(%es : !ds) {
  ^bb0(%x: f32, %r: f32, %out: f32):
    %n = arith.divf %x, %r : f32
    linalg.yield %n : f32
  } -> !ds
  %d = linalg.generic {indexing_maps = [#id, #id, #none, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%a1, %a2, %l : !ds, !ds, tensor<f32>) outs(%es : !ds) {
  ^bb0(%x: f32, %y: f32, %lam: f32, %out: f32):
    %p = arith.mulf %y, %lam : f32
    %n = arith.subf %x, %p : f32
    linalg.yield %n : f32
  } -> !ds
  %eo = tensor.empty(%b, %tq) : !dq
  %zo = linalg.fill ins(%zero : f32) outs(%eo : !dq) -> !dq
  %o = linalg.generic {indexing_maps = [#pv_s, #pv_v, #pv_o], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%d, %v : !ds, !dq) outs(%zo : !dq) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %x, %y : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> !dq
  return %o : !dq
}

// Two products with the values, lambda behind them, one number for lambda.

// CHECK-LABEL: func.func @after_values(
// CHECK-DAG:     %[[L:.+]] = arith.constant dense<5.000000e-01> : tensor<f32>
// CHECK:         diffattn.attention
// CHECK-SAME:      lambda(%[[L]] : tensor<f32>)
// CHECK-SAME:      scale = 1.000000e+00
func.func @after_values(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : !v
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o1 = linalg.batch_matmul ins(%a1, %v : !s, !v) outs(%zv : !v) -> !v
  %o2 = linalg.batch_matmul ins(%a2, %v : !s, !v) outs(%zv : !v) -> !v
  %m2 = arith.mulf %o2, %half : !v
  %o = arith.subf %o1, %m2 : !v
  return %o : !v
}

// The maps share a product, a softmax and a value in two halves; heads 0 and 1
// are the first map of heads 2 and 3.

!sl = tensor<4x20x20xf32>
!vh = tensor<4x20x8xf32>
!vl = tensor<4x20x16xf32>
!r = tensor<2x20x16xf32>

// CHECK-LABEL: func.func @halves(
// CHECK-SAME:    %[[Q:[^:]+]]: tensor<4x20x16xf32>, %[[K:[^:]+]]: tensor<4x16x20xf32>
// CHECK-NOT:     linalg.softmax
// CHECK:         tensor.extract_slice %[[Q]][0, 0, 0] [2, 20, 16] [1, 1, 1]
// CHECK:         tensor.extract_slice %[[Q]][2, 0, 0] [2, 20, 16] [1, 1, 1]
// CHECK:         diffattn.attention
// CHECK-NOT:     tensor.concat
// CHECK:         return
func.func @halves(%q: tensor<4x20x16xf32>, %k: tensor<4x16x20xf32>, %v1: tensor<20x8xf32>, %v2: tensor<20x8xf32>, %l: f32) -> !r {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !sl
  %zs = linalg.fill ins(%zero : f32) outs(%es : !sl) -> !sl
  %s = linalg.batch_matmul ins(%q, %k : tensor<4x20x16xf32>, tensor<4x16x20xf32>) outs(%zs : !sl) -> !sl
  %a = linalg.softmax dimension(2) ins(%s : !sl) outs(%es : !sl) -> !sl
  %ev = tensor.empty() : !vh
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !vh) -> !vh
  %b1 = linalg.broadcast ins(%v1 : tensor<20x8xf32>) outs(%ev : !vh) dimensions = [0]
  %b2 = linalg.broadcast ins(%v2 : tensor<20x8xf32>) outs(%ev : !vh) dimensions = [0]
  %o1 = linalg.batch_matmul ins(%a, %b1 : !sl, !vh) outs(%zv : !vh) -> !vh
  %o2 = linalg.batch_matmul ins(%a, %b2 : !sl, !vh) outs(%zv : !vh) -> !vh
  %o = tensor.concat dim(2) %o1, %o2 : (!vh, !vh) -> !vl
  %x1 = tensor.extract_slice %o[0, 0, 0] [2, 20, 16] [1, 1, 1] : !vl to !r
  %x2 = tensor.extract_slice %o[2, 0, 0] [2, 20, 16] [1, 1, 1] : !vl to !r
  %ls = tensor.splat %l : !r
  %m2 = arith.mulf %ls, %x2 : !r
  %d = arith.subf %x1, %m2 : !r
  return %d : !r
}
