// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" | FileCheck %s

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
#s = affine_map<(b, i, j) -> (b, i, j)>
#ij = affine_map<(b, i, j) -> (i, j)>
#j = affine_map<(b, i, j) -> (j)>
#i = affine_map<(b, i, j) -> (i)>
#b = affine_map<(b, i, j) -> (b)>

// A lambda for each query is broadcast over the heads.

// CHECK-LABEL: func.func @per_token(
// CHECK-SAME:      %[[LAMBDA:[^:]+]]: tensor<20xf32>)
// CHECK:         diffattn.attention
// CHECK-SAME:      lambda(%{{.+}} : tensor<6x20x1xf32>)
func.func @per_token(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %lam: tensor<20xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %scale2 = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %s2 = arith.mulf %p2, %scale2 : !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %d = linalg.generic {indexing_maps = [#s, #s, #i, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a1, %a2, %lam : !s, !s, tensor<20xf32>) outs(%es : !s) {
  ^bb0(%x: f32, %y: f32, %z: f32, %out: f32):
    %p = arith.mulf %z, %y : f32
    %n = arith.subf %x, %p : f32
    linalg.yield %n : f32
  } -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// A lambda for each batch and head.

// CHECK-LABEL: func.func @per_batch(
// CHECK:         diffattn.attention
// CHECK-SAME:      lambda(%{{.+}} : tensor<6x20x1xf32>)
func.func @per_batch(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %lam: tensor<6xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %scale2 = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %s2 = arith.mulf %p2, %scale2 : !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %d = linalg.generic {indexing_maps = [#s, #s, #b, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a1, %a2, %lam : !s, !s, tensor<6xf32>) outs(%es : !s) {
  ^bb0(%x: f32, %y: f32, %z: f32, %out: f32):
    %p = arith.mulf %z, %y : f32
    %n = arith.subf %x, %p : f32
    linalg.yield %n : f32
  } -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Added with a negated lambda, the first map second.

// CHECK-LABEL: func.func @negated(
// CHECK-SAME:      %[[L:[^:]+]]: f32)
// CHECK-NOT:     linalg.softmax
// CHECK:         diffattn.attention
func.func @negated(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %scale2 = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %s2 = arith.mulf %p2, %scale2 : !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %n2 = arith.negf %a2 : !s
  %m2 = arith.mulf %n2, %ls : !s
  %d = arith.addf %m2, %a1 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Both maps scaled by a number: the factor is the result's.

// CHECK-LABEL: func.func @scaled(
// CHECK-DAG:     %[[L:.+]] = arith.constant dense<2.500000e-01> : tensor<f32>
// CHECK:         diffattn.attention
// CHECK-SAME:      lambda(%[[L]] : tensor<f32>)
// CHECK-SAME:      out_scale = 2.000000e+00
func.func @scaled(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %scale2 = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %s2 = arith.mulf %p2, %scale2 : !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %two = arith.constant dense<2.0> : !s
  %half = arith.constant dense<0.5> : !s
  %m1 = arith.mulf %a1, %two : !s
  %m2 = arith.mulf %a2, %half : !s
  %d = arith.subf %m1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}
