// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" --remarks-filter="diffattn.*" --remark-format=emitRemark --verify-diagnostics | FileCheck %s

// What runs over part of an axis: sums over all of it are other ones.

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
!r = tensor<6x20xf32>
#s = affine_map<(b, i, j) -> (b, i, j)>
#r = affine_map<(b, i, j) -> (b, i)>

// The weights of the last key are dropped, as those of an attention sink: the
// others sum to less than 1.

// CHECK-LABEL: func.func @part_of_the_weights(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @part_of_the_weights(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: tensor<6x19x32xf32>, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %part1 = tensor.extract_slice %a1[0, 0, 0] [6, 20, 19] [1, 1, 1] : !s to tensor<6x20x19xf32>
  %part2 = tensor.extract_slice %a2[0, 0, 0] [6, 20, 19] [1, 1, 1] : !s to tensor<6x20x19xf32>
  %ls = tensor.splat %l : tensor<6x20x19xf32>
  %m2 = arith.mulf %part2, %ls : tensor<6x20x19xf32>
  %d = arith.subf %part1, %m2 : tensor<6x20x19xf32>
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a softmax is over more keys than have values", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%d, %v : tensor<6x20x19xf32>, tensor<6x19x32xf32>) outs(%zv : !v) -> !v
  return %o : !v
}

// The mean square of the first 8 of 32 elements of a head: a norm of its own.

// CHECK-LABEL: func.func @norm_by_part(
// CHECK:         diffattn.attention
// CHECK-NOT:       norm
// CHECK:         math.rsqrt
// CHECK:         return
func.func @norm_by_part(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Passed] Raised | Category:diffattn-fuse | Remark="two maps became one diffattn.attention"}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  %part = tensor.extract_slice %o[0, 0, 0] [6, 20, 8] [1, 1, 1] : !v to tensor<6x20x8xf32>
  %er = tensor.empty() : !r
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %sq = linalg.generic {indexing_maps = [#s, #r], iterator_types = ["parallel", "parallel", "reduction"]} ins(%part : tensor<6x20x8xf32>) outs(%zr : !r) {
  ^bb0(%x: f32, %acc: f32):
    %p = arith.mulf %x, %x : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> !r
  %y = linalg.generic {indexing_maps = [#s, #r, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%o, %sq : !v, !r) outs(%ev : !v) {
  ^bb0(%x: f32, %n: f32, %out: f32):
    %width = arith.constant 8.0 : f32
    %eps = arith.constant 1.0e-05 : f32
    %mean = arith.divf %n, %width : f32
    %m = arith.addf %mean, %eps : f32
    %root = math.rsqrt %m : f32
    %y0 = arith.mulf %x, %root : f32
    linalg.yield %y0 : f32
  } -> !v
  return %y : !v
}

// Scores that are all 0: no ratio of scales is a number.

// CHECK-LABEL: func.func @scale_of_zero(
// CHECK-NOT:     0x7FC
// CHECK-NOT:     0xFFC
// CHECK:         diffattn.attention
// CHECK-SAME:      scale = 1.000000e+00
// CHECK:         return
func.func @scale_of_zero(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %none = arith.constant dense<0.0> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %none : !s
  %s2 = arith.mulf %p2, %none : !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Passed] Raised | Category:diffattn-fuse | Remark="two maps became one diffattn.attention"}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}
