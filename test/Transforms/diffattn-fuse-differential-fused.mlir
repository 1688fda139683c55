// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" | FileCheck %s

// Bodies that were fused: no value is a softmax alone.

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
!r = tensor<6x20xf32>
#s = affine_map<(b, i, j) -> (b, i, j)>
#i = affine_map<(b, i, j) -> (b, i)>
#p = affine_map<(b, i, w, j) -> (b, i, j)>
#pi = affine_map<(b, i, w, j) -> (b, i)>
#pv = affine_map<(b, i, w, j) -> (b, j, w)>
#po = affine_map<(b, i, w, j) -> (b, i, w)>
#u = affine_map<(b, i, w, j, u) -> (b, i, j)>
#uv = affine_map<(b, i, w, j, u) -> (b, j, w, u)>
#uo = affine_map<(b, i, w, j, u) -> (b, i, w)>

// Powers, quotients and the difference in one body.

// CHECK-LABEL: func.func @difference(
// CHECK-NOT:     math.exp
// CHECK:         diffattn.attention
// CHECK-NOT:     math.exp
// CHECK:         return
func.func @difference(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %er = tensor.empty() : !r
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %nr = linalg.fill ins(%ninf : f32) outs(%er : !r) -> !r
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %m1 = linalg.generic {indexing_maps = [#s, #i], iterator_types = ["parallel", "parallel", "reduction"]} ins(%s1 : !s) outs(%nr : !r) {
  ^bb0(%x: f32, %acc: f32):
    %t = arith.maximumf %acc, %x : f32
    linalg.yield %t : f32
  } -> !r
  %t1 = linalg.generic {indexing_maps = [#s, #i, #i], iterator_types = ["parallel", "parallel", "reduction"]} ins(%s1, %m1 : !s, !r) outs(%zr : !r) {
  ^bb0(%x: f32, %m: f32, %acc: f32):
    %d = arith.subf %x, %m : f32
    %e = math.exp %d : f32
    %t = arith.addf %acc, %e : f32
    linalg.yield %t : f32
  } -> !r
  %m2 = linalg.generic {indexing_maps = [#s, #i], iterator_types = ["parallel", "parallel", "reduction"]} ins(%s2 : !s) outs(%nr : !r) {
  ^bb0(%x: f32, %acc: f32):
    %t = arith.maximumf %acc, %x : f32
    linalg.yield %t : f32
  } -> !r
  %t2 = linalg.generic {indexing_maps = [#s, #i, #i], iterator_types = ["parallel", "parallel", "reduction"]} ins(%s2, %m2 : !s, !r) outs(%zr : !r) {
  ^bb0(%x: f32, %m: f32, %acc: f32):
    %d = arith.subf %x, %m : f32
    %e = math.exp %d : f32
    %t = arith.addf %acc, %e : f32
    linalg.yield %t : f32
  } -> !r
  %d = linalg.generic {indexing_maps = [#s, #i, #i, #s, #i, #i, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1, %m1, %t1, %s2, %m2, %t2 : !s, !r, !r, !s, !r, !r) outs(%es : !s) {
  ^bb0(%x1: f32, %y1: f32, %z1: f32, %x2: f32, %y2: f32, %z2: f32, %o: f32):
    %d1 = arith.subf %x1, %y1 : f32
    %e1 = math.exp %d1 : f32
    %a1 = arith.divf %e1, %z1 : f32
    %d2 = arith.subf %x2, %y2 : f32
    %e2 = math.exp %d2 : f32
    %a2 = arith.divf %e2, %z2 : f32
    %w = arith.mulf %a2, %l : f32
    %r = arith.subf %a1, %w : f32
    linalg.yield %r : f32
  } -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %out : !v
}

// The same in the product with the values.

// CHECK-LABEL: func.func @product(
// CHECK-NOT:     math.exp
// CHECK:         diffattn.attention
// CHECK-NOT:     math.exp
// CHECK:         return
func.func @product(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %er = tensor.empty() : !r
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %nr = linalg.fill ins(%ninf : f32) outs(%er : !r) -> !r
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %m1 = linalg.generic {indexing_maps = [#s, #i], iterator_types = ["parallel", "parallel", "reduction"]} ins(%s1 : !s) outs(%nr : !r) {
  ^bb0(%x: f32, %acc: f32):
    %t = arith.maximumf %acc, %x : f32
    linalg.yield %t : f32
  } -> !r
  %t1 = linalg.generic {indexing_maps = [#s, #i, #i], iterator_types = ["parallel", "parallel", "reduction"]} ins(%s1, %m1 : !s, !r) outs(%zr : !r) {
  ^bb0(%x: f32, %m: f32, %acc: f32):
    %d = arith.subf %x, %m : f32
    %e = math.exp %d : f32
    %t = arith.addf %acc, %e : f32
    linalg.yield %t : f32
  } -> !r
  %m2 = linalg.generic {indexing_maps = [#s, #i], iterator_types = ["parallel", "parallel", "reduction"]} ins(%s2 : !s) outs(%nr : !r) {
  ^bb0(%x: f32, %acc: f32):
    %t = arith.maximumf %acc, %x : f32
    linalg.yield %t : f32
  } -> !r
  %t2 = linalg.generic {indexing_maps = [#s, #i, #i], iterator_types = ["parallel", "parallel", "reduction"]} ins(%s2, %m2 : !s, !r) outs(%zr : !r) {
  ^bb0(%x: f32, %m: f32, %acc: f32):
    %d = arith.subf %x, %m : f32
    %e = math.exp %d : f32
    %t = arith.addf %acc, %e : f32
    linalg.yield %t : f32
  } -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.generic {indexing_maps = [#p, #pi, #pi, #p, #pi, #pi, #pv, #po], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%s1, %m1, %t1, %s2, %m2, %t2, %v : !s, !r, !r, !s, !r, !r, !v) outs(%zv : !v) {
  ^bb0(%x1: f32, %y1: f32, %z1: f32, %x2: f32, %y2: f32, %z2: f32, %e: f32, %acc: f32):
    %d1 = arith.subf %x1, %y1 : f32
    %e1 = math.exp %d1 : f32
    %a1 = arith.divf %e1, %z1 : f32
    %d2 = arith.subf %x2, %y2 : f32
    %e2 = math.exp %d2 : f32
    %a2 = arith.divf %e2, %z2 : f32
    %w = arith.mulf %a2, %l : f32
    %r = arith.subf %a1, %w : f32
    %p = arith.mulf %r, %e : f32
    %t = arith.addf %acc, %p : f32
    linalg.yield %t : f32
  } -> !v
  return %out : !v
}

// A product with an axis of one element beside the keys.

// CHECK-LABEL: func.func @unit_axis(
// CHECK-NOT:     linalg.softmax
// CHECK:         diffattn.attention
// CHECK:         return
func.func @unit_axis(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: tensor<6x20x32x1xf32>, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %er = tensor.empty() : !r
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %nr = linalg.fill ins(%ninf : f32) outs(%er : !r) -> !r
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %w = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %w : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.generic {indexing_maps = [#u, #uv, #uo], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]} ins(%d, %v : !s, tensor<6x20x32x1xf32>) outs(%zv : !v) {
  ^bb0(%x: f32, %e: f32, %acc: f32):
    %p = arith.mulf %x, %e : f32
    %t = arith.addf %acc, %p : f32
    linalg.yield %t : f32
  } -> !v
  return %out : !v
}
