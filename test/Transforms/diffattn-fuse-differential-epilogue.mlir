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
#r = affine_map<(b, i, e) -> (b, i)>
#rr = affine_map<(b, i) -> (b, i)>
#e = affine_map<(b, i, e) -> (e)>
!r = tensor<6x20xf32>

// Mean of squares, reciprocal root, weight, factor.

// CHECK-LABEL: func.func @rms_inside(
// CHECK-SAME:      %[[W:[^:]+]]: tensor<32xf32>)
// CHECK:         diffattn.attention
// CHECK-SAME:      norm_weight(%[[W]] : tensor<32xf32>)
// CHECK-SAME:      norm = #diffattn.norm<rms>
// CHECK-SAME:      out_scale = 8.000000e-01
// CHECK-NOT:     math.rsqrt
// CHECK:         return
func.func @rms_inside(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %w: tensor<32xf32>) -> !v {
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
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  %er = tensor.empty() : !r
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %sq = linalg.generic {indexing_maps = [#s, #r], iterator_types = ["parallel", "parallel", "reduction"]} ins(%o : !v) outs(%zr : !r) {
  ^bb0(%x: f32, %acc: f32):
    %p = arith.mulf %x, %x : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> !r
  %root = linalg.generic {indexing_maps = [#rr, #rr], iterator_types = ["parallel", "parallel"]} ins(%sq : !r) outs(%er : !r) {
  ^bb0(%x: f32, %out: f32):
    %width = arith.constant 32.0 : f32
    %mean = arith.divf %x, %width : f32
    %eps = arith.constant 1.0e-05 : f32
    %m = arith.addf %mean, %eps : f32
    %n = math.rsqrt %m : f32
    linalg.yield %n : f32
  } -> !r
  %y = linalg.generic {indexing_maps = [#s, #r, #e, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%o, %root, %w : !v, !r, tensor<32xf32>) outs(%ev : !v) {
  ^bb0(%x: f32, %n: f32, %we: f32, %out: f32):
    %f = arith.constant 0.8 : f32
    %y0 = arith.mulf %x, %n : f32
    %y1 = arith.mulf %y0, %we : f32
    %y2 = arith.mulf %f, %y1 : f32
    linalg.yield %y2 : f32
  } -> !v
  return %y : !v
}

// The eps outside of the root.

// CHECK-LABEL: func.func @rms_outside(
// CHECK:         diffattn.attention
// CHECK-SAME:      norm = #diffattn.norm<rms>
// CHECK-SAME:      norm_eps = 9.99999997E-7
// CHECK-SAME:      norm_eps_mode = #diffattn.eps_mode<outside>
// CHECK-NOT:     math.sqrt
// CHECK:         return
func.func @rms_outside(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %w: tensor<32xf32>) -> !v {
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
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  %er = tensor.empty() : !r
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %sq = linalg.generic {indexing_maps = [#s, #r], iterator_types = ["parallel", "parallel", "reduction"]} ins(%o : !v) outs(%zr : !r) {
  ^bb0(%x: f32, %acc: f32):
    %p = arith.mulf %x, %x : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> !r
  %root = linalg.generic {indexing_maps = [#rr, #rr], iterator_types = ["parallel", "parallel"]} ins(%sq : !r) outs(%er : !r) {
  ^bb0(%x: f32, %out: f32):
    %width = arith.constant 32.0 : f32
    %mean = arith.divf %x, %width : f32
    %eps = arith.constant 1.0e-06 : f32
    %m = math.sqrt %mean : f32
    %n = arith.addf %m, %eps : f32
    linalg.yield %n : f32
  } -> !r
  %y = linalg.generic {indexing_maps = [#s, #r, #e, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%o, %root, %w : !v, !r, tensor<32xf32>) outs(%ev : !v) {
  ^bb0(%x: f32, %n: f32, %we: f32, %out: f32):
    %y0 = arith.divf %x, %n : f32
    %y1 = arith.mulf %y0, %we : f32
    linalg.yield %y1 : f32
  } -> !v
  return %y : !v
}

// A gate by its logits.

// CHECK-LABEL: func.func @gate(
// CHECK-SAME:      %[[G:[^:]+]]: tensor<6x20x32xf32>)
// CHECK:         %[[G4:.+]] = tensor.expand_shape %[[G]]
// CHECK:         diffattn.attention
// CHECK-SAME:      gate(%[[G4]] : tensor<6x1x20x32xf32>)
// CHECK-NOT:     math.exp
// CHECK:         return
func.func @gate(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %g: !v) -> !v {
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
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  %y = linalg.generic {indexing_maps = [#s, #s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%o, %g : !v, !v) outs(%ev : !v) {
  ^bb0(%x: f32, %z: f32, %out: f32):
    %one = arith.constant 1.0 : f32
    %n = arith.negf %z : f32
    %e = math.exp %n : f32
    %d1 = arith.addf %e, %one : f32
    %sg = arith.divf %one, %d1 : f32
    %r = arith.mulf %x, %sg : f32
    linalg.yield %r : f32
  } -> !v
  return %y : !v
}

// The difference is wanted without its norm too: the norm stays outside.

// CHECK-LABEL: func.func @both_wanted(
// CHECK:         %[[O:.+]] = diffattn.attention
// CHECK-NOT:     norm<rms>
// CHECK:         math.rsqrt
// CHECK:         return
func.func @both_wanted(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %w: tensor<32xf32>) -> (!v, !v) {
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
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  %er = tensor.empty() : !r
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %sq = linalg.generic {indexing_maps = [#s, #r], iterator_types = ["parallel", "parallel", "reduction"]} ins(%o : !v) outs(%zr : !r) {
  ^bb0(%x: f32, %acc: f32):
    %p = arith.mulf %x, %x : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> !r
  %root = linalg.generic {indexing_maps = [#rr, #rr], iterator_types = ["parallel", "parallel"]} ins(%sq : !r) outs(%er : !r) {
  ^bb0(%x: f32, %out: f32):
    %width = arith.constant 32.0 : f32
    %mean = arith.divf %x, %width : f32
    %eps = arith.constant 1.0e-05 : f32
    %m = arith.addf %mean, %eps : f32
    %n = math.rsqrt %m : f32
    linalg.yield %n : f32
  } -> !r
  %y = linalg.generic {indexing_maps = [#s, #r, #e, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%o, %root, %w : !v, !r, tensor<32xf32>) outs(%ev : !v) {
  ^bb0(%x: f32, %n: f32, %we: f32, %out: f32):
    %f = arith.constant 0.8 : f32
    %y0 = arith.mulf %x, %n : f32
    %y1 = arith.mulf %y0, %we : f32
    %y2 = arith.mulf %f, %y1 : f32
    linalg.yield %y2 : f32
  } -> !v
  return %o, %y : !v, !v
}
