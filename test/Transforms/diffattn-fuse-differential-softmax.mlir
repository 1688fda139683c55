// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" --remarks-filter="diffattn.*" --remark-format=emitRemark --verify-diagnostics | FileCheck %s

// Spellings of the softmax that keep its sum from zero or leave keys out: raised where the result is provably the same.

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
!r = tensor<6x20xf32>
#s = affine_map<(b, i, j) -> (b, i, j)>
#two = affine_map<(i, j) -> (i, j)>

// Behind the shift by the maximum a sum is 1 or more: 1e-9 is less than half of its last bit.

// CHECK-LABEL: func.func @eps_of_no_weight(
// CHECK:         diffattn.attention
func.func @eps_of_no_weight(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %half = arith.constant dense<0.5> : !s
  %eps = arith.constant dense<1.0e-9> : !r
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %m1 = linalg.reduce { arith.maximumf } ins(%s1 : !s) outs(%lr : !r) dimensions = [2]
  %mb1 = linalg.broadcast ins(%m1 : !r) outs(%es : !s) dimensions = [2]
  %d1 = arith.subf %s1, %mb1 : !s
  %e1 = math.exp %d1 : !s
  %t1 = linalg.reduce { arith.addf } ins(%e1 : !s) outs(%zr : !r) dimensions = [2]
  %g1 = arith.addf %t1, %eps : !r
  %tb1 = linalg.broadcast ins(%g1 : !r) outs(%es : !s) dimensions = [2]
  %a1 = arith.divf %e1, %tb1 : !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %m2 = linalg.reduce { arith.maximumf } ins(%s2 : !s) outs(%lr : !r) dimensions = [2]
  %mb2 = linalg.broadcast ins(%m2 : !r) outs(%es : !s) dimensions = [2]
  %d2 = arith.subf %s2, %mb2 : !s
  %e2 = math.exp %d2 : !s
  %t2 = linalg.reduce { arith.addf } ins(%e2 : !s) outs(%zr : !r) dimensions = [2]
  %g2 = arith.addf %t2, %eps : !r
  %tb2 = linalg.broadcast ins(%g2 : !r) outs(%es : !s) dimensions = [2]
  %a2 = arith.divf %e2, %tb2 : !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Half of the last bit of 1 or more: sums change.

// CHECK-LABEL: func.func @eps_that_counts(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @eps_that_counts(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %half = arith.constant dense<0.5> : !s
  %eps = arith.constant dense<1.0e-6> : !r
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %m1 = linalg.reduce { arith.maximumf } ins(%s1 : !s) outs(%lr : !r) dimensions = [2]
  %mb1 = linalg.broadcast ins(%m1 : !r) outs(%es : !s) dimensions = [2]
  %d1 = arith.subf %s1, %mb1 : !s
  %e1 = math.exp %d1 : !s
  %t1 = linalg.reduce { arith.addf } ins(%e1 : !s) outs(%zr : !r) dimensions = [2]
  %g1 = arith.addf %t1, %eps : !r
  %tb1 = linalg.broadcast ins(%g1 : !r) outs(%es : !s) dimensions = [2]
  %a1 = arith.divf %e1, %tb1 : !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %m2 = linalg.reduce { arith.maximumf } ins(%s2 : !s) outs(%lr : !r) dimensions = [2]
  %mb2 = linalg.broadcast ins(%m2 : !r) outs(%es : !s) dimensions = [2]
  %d2 = arith.subf %s2, %mb2 : !s
  %e2 = math.exp %d2 : !s
  %t2 = linalg.reduce { arith.addf } ins(%e2 : !s) outs(%zr : !r) dimensions = [2]
  %g2 = arith.addf %t2, %eps : !r
  %tb2 = linalg.broadcast ins(%g2 : !r) outs(%es : !s) dimensions = [2]
  %a2 = arith.divf %e2, %tb2 : !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a softmax adds a number to its sum that may count", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Without the shift a sum may be of any size.

// CHECK-LABEL: func.func @eps_without_shift(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @eps_without_shift(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %half = arith.constant dense<0.5> : !s
  %eps = arith.constant dense<1.0e-9> : !r
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %e1 = math.exp %s1 : !s
  %t1 = linalg.reduce { arith.addf } ins(%e1 : !s) outs(%zr : !r) dimensions = [2]
  %g1 = arith.addf %t1, %eps : !r
  %tb1 = linalg.broadcast ins(%g1 : !r) outs(%es : !s) dimensions = [2]
  %a1 = arith.divf %e1, %tb1 : !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %e2 = math.exp %s2 : !s
  %t2 = linalg.reduce { arith.addf } ins(%e2 : !s) outs(%zr : !r) dimensions = [2]
  %g2 = arith.addf %t2, %eps : !r
  %tb2 = linalg.broadcast ins(%g2 : !r) outs(%es : !s) dimensions = [2]
  %a2 = arith.divf %e2, %tb2 : !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a softmax adds a number to its sum that may count", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// A sum of 1 or more is above any smaller number.

// CHECK-LABEL: func.func @sum_kept_from_zero(
// CHECK:         diffattn.attention
func.func @sum_kept_from_zero(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %half = arith.constant dense<0.5> : !s
  %eps = arith.constant dense<1.0e-9> : !r
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %m1 = linalg.reduce { arith.maximumf } ins(%s1 : !s) outs(%lr : !r) dimensions = [2]
  %mb1 = linalg.broadcast ins(%m1 : !r) outs(%es : !s) dimensions = [2]
  %d1 = arith.subf %s1, %mb1 : !s
  %e1 = math.exp %d1 : !s
  %t1 = linalg.reduce { arith.addf } ins(%e1 : !s) outs(%zr : !r) dimensions = [2]
  %g1 = arith.maximumf %t1, %eps : !r
  %tb1 = linalg.broadcast ins(%g1 : !r) outs(%es : !s) dimensions = [2]
  %a1 = arith.divf %e1, %tb1 : !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %m2 = linalg.reduce { arith.maximumf } ins(%s2 : !s) outs(%lr : !r) dimensions = [2]
  %mb2 = linalg.broadcast ins(%m2 : !r) outs(%es : !s) dimensions = [2]
  %d2 = arith.subf %s2, %mb2 : !s
  %e2 = math.exp %d2 : !s
  %t2 = linalg.reduce { arith.addf } ins(%e2 : !s) outs(%zr : !r) dimensions = [2]
  %g2 = arith.maximumf %t2, %eps : !r
  %tb2 = linalg.broadcast ins(%g2 : !r) outs(%es : !s) dimensions = [2]
  %a2 = arith.divf %e2, %tb2 : !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Not above 2.

// CHECK-LABEL: func.func @sum_kept_above_two(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @sum_kept_above_two(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %half = arith.constant dense<0.5> : !s
  %eps = arith.constant dense<2.0> : !r
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %m1 = linalg.reduce { arith.maximumf } ins(%s1 : !s) outs(%lr : !r) dimensions = [2]
  %mb1 = linalg.broadcast ins(%m1 : !r) outs(%es : !s) dimensions = [2]
  %d1 = arith.subf %s1, %mb1 : !s
  %e1 = math.exp %d1 : !s
  %t1 = linalg.reduce { arith.addf } ins(%e1 : !s) outs(%zr : !r) dimensions = [2]
  %g1 = arith.maximumf %t1, %eps : !r
  %tb1 = linalg.broadcast ins(%g1 : !r) outs(%es : !s) dimensions = [2]
  %a1 = arith.divf %e1, %tb1 : !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %m2 = linalg.reduce { arith.maximumf } ins(%s2 : !s) outs(%lr : !r) dimensions = [2]
  %mb2 = linalg.broadcast ins(%m2 : !r) outs(%es : !s) dimensions = [2]
  %d2 = arith.subf %s2, %mb2 : !s
  %e2 = math.exp %d2 : !s
  %t2 = linalg.reduce { arith.addf } ins(%e2 : !s) outs(%zr : !r) dimensions = [2]
  %g2 = arith.maximumf %t2, %eps : !r
  %tb2 = linalg.broadcast ins(%g2 : !r) outs(%es : !s) dimensions = [2]
  %a2 = arith.divf %e2, %tb2 : !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a softmax keeps its sum above a number that may count", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Powers that are multiplied by 0 or 1 are those of masked scores.

// CHECK-LABEL: func.func @masked_powers(
// CHECK:         diffattn.attention
// CHECK-SAME:      is_causal
func.func @masked_powers(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %half = arith.constant dense<0.5> : !s
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %e1 = math.exp %s1 : !s
  %w1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%e1 : !s) outs(%es : !s) {
  ^bb0(%x: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %keep = arith.cmpi sge, %i, %j : index
    %bit = arith.uitofp %keep : i1 to f32
    %y = arith.mulf %x, %bit : f32
    linalg.yield %y : f32
  } -> !s
  %t1 = linalg.reduce { arith.addf } ins(%w1 : !s) outs(%zr : !r) dimensions = [2]
  %tb1 = linalg.broadcast ins(%t1 : !r) outs(%es : !s) dimensions = [2]
  %a1 = arith.divf %w1, %tb1 : !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %e2 = math.exp %s2 : !s
  %w2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%e2 : !s) outs(%es : !s) {
  ^bb0(%x: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %keep = arith.cmpi sge, %i, %j : index
    %bit = arith.uitofp %keep : i1 to f32
    %y = arith.mulf %x, %bit : f32
    linalg.yield %y : f32
  } -> !s
  %t2 = linalg.reduce { arith.addf } ins(%w2 : !s) outs(%zr : !r) dimensions = [2]
  %tb2 = linalg.broadcast ins(%t2 : !r) outs(%es : !s) dimensions = [2]
  %a2 = arith.divf %w2, %tb2 : !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// No attribute says a limit that is hard.

// CHECK-LABEL: func.func @clamped(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @clamped(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %half = arith.constant dense<0.5> : !s
  %fifty = arith.constant dense<50.0> : !s
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %h1 = arith.minimumf %s1, %fifty : !s
  %a1 = linalg.softmax dimension(2) ins(%h1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %h2 = arith.minimumf %s2, %fifty : !s
  %a2 = linalg.softmax dimension(2) ins(%h2 : !s) outs(%es : !s) -> !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="the scores are clamped", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Powers divided by their norm of order 1.

// CHECK-LABEL: func.func @sum_of_magnitudes(
// CHECK:         diffattn.attention
func.func @sum_of_magnitudes(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %half = arith.constant dense<0.5> : !s
  %eps = arith.constant dense<1.0e-9> : !r
  %one = arith.constant dense<1.0> : !s
  %oner = arith.constant dense<1.0> : !r
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %m1 = linalg.reduce { arith.maximumf } ins(%s1 : !s) outs(%lr : !r) dimensions = [2]
  %mb1 = linalg.broadcast ins(%m1 : !r) outs(%es : !s) dimensions = [2]
  %d1 = arith.subf %s1, %mb1 : !s
  %e1 = math.exp %d1 : !s
  %ab1 = math.absf %e1 : !s
  %pw1 = math.powf %ab1, %one : !s
  %t1 = linalg.reduce { arith.addf } ins(%pw1 : !s) outs(%zr : !r) dimensions = [2]
  %rt1 = math.powf %t1, %oner : !r
  %g1 = arith.maximumf %rt1, %eps : !r
  %tb1 = linalg.broadcast ins(%g1 : !r) outs(%es : !s) dimensions = [2]
  %a1 = arith.divf %e1, %tb1 : !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %m2 = linalg.reduce { arith.maximumf } ins(%s2 : !s) outs(%lr : !r) dimensions = [2]
  %mb2 = linalg.broadcast ins(%m2 : !r) outs(%es : !s) dimensions = [2]
  %d2 = arith.subf %s2, %mb2 : !s
  %e2 = math.exp %d2 : !s
  %ab2 = math.absf %e2 : !s
  %pw2 = math.powf %ab2, %one : !s
  %t2 = linalg.reduce { arith.addf } ins(%pw2 : !s) outs(%zr : !r) dimensions = [2]
  %rt2 = math.powf %t2, %oner : !r
  %g2 = arith.maximumf %rt2, %eps : !r
  %tb2 = linalg.broadcast ins(%g2 : !r) outs(%es : !s) dimensions = [2]
  %a2 = arith.divf %e2, %tb2 : !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Zeros where a score is -inf already, in the sum and in the map.

// CHECK-LABEL: func.func @masked_again(
// CHECK:         diffattn.attention
// CHECK-SAME:      is_causal
func.func @masked_again(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %half = arith.constant dense<0.5> : !s
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %ls = linalg.fill ins(%low : f32) outs(%es : !s) -> !s
  %ek = tensor.empty() : tensor<20x20xi1>
  %eb = tensor.empty() : tensor<6x20x20xi1>
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %keep = linalg.generic {indexing_maps = [#two], iterator_types = ["parallel", "parallel"]} outs(%ek : tensor<20x20xi1>) {
  ^bb0(%o: i1):
    %i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %c = arith.cmpi sge, %i, %j : index
    linalg.yield %c : i1
  } -> tensor<20x20xi1>
  %kb = linalg.broadcast ins(%keep : tensor<20x20xi1>) outs(%eb : tensor<6x20x20xi1>) dimensions = [0]
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %x1 = arith.select %kb, %s1, %ls : tensor<6x20x20xi1>, !s
  %m1 = linalg.reduce { arith.maximumf } ins(%x1 : !s) outs(%lr : !r) dimensions = [2]
  %mb1 = linalg.broadcast ins(%m1 : !r) outs(%es : !s) dimensions = [2]
  %d1 = arith.subf %x1, %mb1 : !s
  %e1 = math.exp %d1 : !s
  %w1 = arith.select %kb, %e1, %zs : tensor<6x20x20xi1>, !s
  %t1 = linalg.reduce { arith.addf } ins(%w1 : !s) outs(%zr : !r) dimensions = [2]
  %tb1 = linalg.broadcast ins(%t1 : !r) outs(%es : !s) dimensions = [2]
  %y1 = arith.divf %e1, %tb1 : !s
  %a1 = arith.select %kb, %y1, %zs : tensor<6x20x20xi1>, !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %x2 = arith.select %kb, %s2, %ls : tensor<6x20x20xi1>, !s
  %m2 = linalg.reduce { arith.maximumf } ins(%x2 : !s) outs(%lr : !r) dimensions = [2]
  %mb2 = linalg.broadcast ins(%m2 : !r) outs(%es : !s) dimensions = [2]
  %d2 = arith.subf %x2, %mb2 : !s
  %e2 = math.exp %d2 : !s
  %w2 = arith.select %kb, %e2, %zs : tensor<6x20x20xi1>, !s
  %t2 = linalg.reduce { arith.addf } ins(%w2 : !s) outs(%zr : !r) dimensions = [2]
  %tb2 = linalg.broadcast ins(%t2 : !r) outs(%es : !s) dimensions = [2]
  %y2 = arith.divf %e2, %tb2 : !s
  %a2 = arith.select %kb, %y2, %zs : tensor<6x20x20xi1>, !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// What a product starts from is the same for all keys, and is left out of the scores. Then no value holds these.

// CHECK-LABEL: func.func @product_from_a_number(
// CHECK:         diffattn.attention
// CHECK-NOT:     bias
// CHECK:         return
func.func @product_from_a_number(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %n = arith.constant -5.0 : f32
  %ef = tensor.empty() : !s
  %five = linalg.fill ins(%n : f32) outs(%ef : !s) -> !s
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%five : !s) -> !s
  %low = arith.constant 0xFF800000 : f32
  %er = tensor.empty() : !r
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %m = linalg.reduce { arith.maximumf } ins(%s2 : !s) outs(%lr : !r) dimensions = [2]
  %mb = linalg.broadcast ins(%m : !r) outs(%es : !s) dimensions = [2]
  %sh = arith.subf %s2, %mb : !s
  %e = math.exp %sh : !s
  %t = linalg.reduce { arith.addf } ins(%e : !s) outs(%zr : !r) dimensions = [2]
  %tb = linalg.broadcast ins(%t : !r) outs(%es : !s) dimensions = [2]
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = arith.divf %e, %tb : !s
  %d = arith.subf %a1, %a2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}
