// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" --remarks-filter="diffattn.*" --remark-format=emitRemark --verify-diagnostics | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential{rescale-queries=true}))" | FileCheck %s --check-prefix=RESCALE

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
#s = affine_map<(b, i, j) -> (b, i, j)>
#ij = affine_map<(b, i, j) -> (i, j)>
#j = affine_map<(b, i, j) -> (j)>
#i = affine_map<(b, i, j) -> (i)>
#b = affine_map<(b, i, j) -> (b)>

// Lambda belongs to the query, not to the key.

// CHECK-LABEL: func.func @lambda_per_key(
// CHECK-NOT:     diffattn.attention
// CHECK:         linalg.softmax
// CHECK:         return
func.func @lambda_per_key(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %lam: tensor<20xf32>) -> !v {
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
  %d = linalg.generic {indexing_maps = [#s, #s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a1, %a2, %lam : !s, !s, tensor<20xf32>) outs(%es : !s) {
  ^bb0(%x: f32, %y: f32, %z: f32, %out: f32):
    %p = arith.mulf %z, %y : f32
    %n = arith.subf %x, %p : f32
    linalg.yield %n : f32
  } -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="lambda depends on the key", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// A map that is a result has to be computed all the same.

// CHECK-LABEL: func.func @map_returned(
// CHECK-NOT:     diffattn.attention
// CHECK:         linalg.softmax
// CHECK:         return
func.func @map_returned(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> (!v, !s) {
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
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a map or its scores are also used by func.return", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o, %a1 : !v, !s
}

// Two masks.

// CHECK-LABEL: func.func @two_masks(
// CHECK-NOT:     diffattn.attention
// CHECK:         linalg.softmax
// CHECK:         return
func.func @two_masks(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %scale2 = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %s2 = arith.mulf %p2, %scale2 : !s
  %x1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : !s) outs(%es : !s) {
  ^bb0(%in: f32, %out: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %fill = arith.constant 0xFF800000 : f32
    %c = arith.cmpi sge, %i, %j : index
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="the two maps have different masks", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Another function of the difference.

// CHECK-LABEL: func.func @clipped(
// CHECK-NOT:     diffattn.attention
// CHECK:         linalg.softmax
// CHECK:         return
func.func @clipped(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
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
  %m2 = arith.mulf %a2, %ls : !s
  %d0 = arith.subf %a1, %m2 : !s
  %d = arith.maximumf %d0, %zs : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark@below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="the result is not a sum of products of one map with the values", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Maps of different scale: by request, the second query is scaled by 2.

// RESCALE-LABEL: func.func @two_scales(
// RESCALE-DAG:     %[[TWO:.+]] = arith.constant 2.000000e+00 : f32
// RESCALE:         arith.mulf %{{.+}}, %[[TWO]]
// RESCALE:         diffattn.attention
// RESCALE-SAME:      scale = 2.500000e-01

// CHECK-LABEL: func.func @two_scales(
// CHECK-NOT:     diffattn.attention
// CHECK:         linalg.softmax
// CHECK:         return
func.func @two_scales(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %scale2 = arith.constant dense<0.5> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %s2 = arith.mulf %p2, %scale2 : !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="the scores of the two maps are scaled differently (the option rescale-queries raises them by scaling the second query)", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}
