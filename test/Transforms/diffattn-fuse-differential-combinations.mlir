// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" --remarks-filter="diffattn.*" --remark-format=emitRemark --verify-diagnostics | FileCheck %s

// Maps that are combined in other ways than by a difference, and factors in other places: raised where the result is provably
// the same.

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
!r = tensor<6x20xf32>

// Lambda itself comes out of a softmax.

// CHECK-LABEL: func.func @lambda_of_softmax(
// CHECK:         linalg.softmax
// CHECK:         diffattn.attention
func.func @lambda_of_softmax(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %w: tensor<2xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ew = tensor.empty() : tensor<2xf32>
  %sw = linalg.softmax dimension(0) ins(%w : tensor<2xf32>) outs(%ew : tensor<2xf32>) -> tensor<2xf32>
  %one = tensor.extract_slice %sw[1] [1] [1] : tensor<2xf32> to tensor<1xf32>
  %lam = tensor.collapse_shape %one [] : tensor<1xf32> into tensor<f32>
  %lb = linalg.broadcast ins(%lam : tensor<f32>) outs(%es : !s) dimensions = [0, 1, 2]
  %l2 = arith.mulf %a2, %lb : !s
  %c = arith.subf %a1, %l2 : !s
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// a1 + (a2 - a1) w = (1 - w) a1 + w a2

// CHECK-LABEL: func.func @lerp(
// CHECK-DAG:     %[[LAMBDA:.+]] = arith.constant dense<-1.000000e+00> : tensor<f32>
// CHECK:         diffattn.attention
// CHECK-SAME:      lambda(%[[LAMBDA]] : tensor<f32>)
// CHECK-SAME:      out_scale = 5.000000e-01
func.func @lerp(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
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
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %b = arith.subf %a2, %a1 : !s
  %l2 = arith.mulf %b, %half : !s
  %c = arith.addf %a1, %l2 : !s
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Maps that are stacked and added up.

// CHECK-LABEL: func.func @stacked(
// CHECK:         diffattn.attention
func.func @stacked(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
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
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %l2 = arith.mulf %a2, %half : !s
  %n2 = arith.negf %l2 : !s
  %x1 = tensor.expand_shape %a1 [[0, 1], [2], [3]] output_shape [1, 6, 20, 20] : !s into tensor<1x6x20x20xf32>
  %x2 = tensor.expand_shape %n2 [[0, 1], [2], [3]] output_shape [1, 6, 20, 20] : !s into tensor<1x6x20x20xf32>
  %x = tensor.concat dim(0) %x1, %x2 : (tensor<1x6x20x20xf32>, tensor<1x6x20x20xf32>) -> tensor<2x6x20x20xf32>
  %c = linalg.reduce { arith.addf } ins(%x : tensor<2x6x20x20xf32>) outs(%zs : !s) dimensions = [0]
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Products with the values that are stacked and summed by factors.

// CHECK-LABEL: func.func @stacked_products(
// CHECK-SAME:      %[[LAMBDA:[^:]+]]: tensor<f32>)
// CHECK:         diffattn.attention
// CHECK-NOT:     linalg.softmax
func.func @stacked_products(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %lam: tensor<f32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %one = arith.constant dense<1.0> : tensor<1xf32>
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %o1 = linalg.batch_matmul ins(%a1, %v : !s, !v) outs(%zv : !v) -> !v
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %o2 = linalg.batch_matmul ins(%a2, %v : !s, !v) outs(%zv : !v) -> !v
  %minus = arith.negf %lam : tensor<f32>
  %second = tensor.expand_shape %minus [] output_shape [1] : tensor<f32> into tensor<1xf32>
  %factors = tensor.concat dim(0) %one, %second : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
  %x1 = tensor.expand_shape %o1 [[0, 1], [2], [3]] output_shape [1, 6, 20, 32] : !v into tensor<1x6x20x32xf32>
  %x2 = tensor.expand_shape %o2 [[0, 1], [2], [3]] output_shape [1, 6, 20, 32] : !v into tensor<1x6x20x32xf32>
  %x = tensor.concat dim(0) %x1, %x2 : (tensor<1x6x20x32xf32>, tensor<1x6x20x32xf32>) -> tensor<2x6x20x32xf32>
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.generic {indexing_maps = [affine_map<(b, q, d, m) -> (m)>, affine_map<(b, q, d, m) -> (m, b, q, d)>, affine_map<(b, q, d, m) -> (b, q, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%factors, %x : tensor<2xf32>, tensor<2x6x20x32xf32>) outs(%zv : !v) {
  ^bb0(%f: f32, %e: f32, %sum: f32):
    %t = arith.mulf %f, %e : f32
    %n = arith.addf %sum, %t : f32
    linalg.yield %n : f32
  } -> !v
  return %o : !v
}

// Lambda is on the values.

// CHECK-LABEL: func.func @scaled_values(
// CHECK-SAME:      %[[LAMBDA:[^:]+]]: tensor<f32>)
// CHECK:         diffattn.attention
// CHECK-SAME:      lambda(%[[LAMBDA]] : tensor<f32>)
func.func @scaled_values(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %lam: tensor<f32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %lb = linalg.broadcast ins(%lam : tensor<f32>) outs(%ev : !v) dimensions = [0, 1, 2]
  %v2 = arith.mulf %v, %lb : !v
  %o1 = linalg.batch_matmul ins(%a1, %v : !s, !v) outs(%zv : !v) -> !v
  %o2 = linalg.batch_matmul ins(%a2, %v2 : !s, !v) outs(%zv : !v) -> !v
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = arith.subf %o1, %o2 : !v
  return %o : !v
}

// A gate of each query is on both maps: the result is multiplied.

// CHECK-LABEL: func.func @scaled_both(
// CHECK:         %[[OUT:.+]] = diffattn.attention
// CHECK:         linalg.generic
// CHECK-SAME:      ins(%[[OUT]],
// CHECK:           arith.mulf
func.func @scaled_both(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %gate: !r) -> !v {
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
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  %gb = linalg.broadcast ins(%gate : !r) outs(%es : !s) dimensions = [2]
  %g = arith.mulf %c, %gb : !s
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%g, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// The softmax of lambda is no map, also where maps are stacked.

// CHECK-LABEL: func.func @stacked_with_softmax(
// CHECK:         linalg.softmax
// CHECK:         diffattn.attention
func.func @stacked_with_softmax(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %w: !r) -> !v {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %er = tensor.empty() : !r
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %lr = linalg.fill ins(%low : f32) outs(%er : !r) -> !r
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %sw = linalg.softmax dimension(1) ins(%w : !r) outs(%er : !r) -> !r
  %lb = linalg.broadcast ins(%sw : !r) outs(%es : !s) dimensions = [2]
  %l2 = arith.mulf %a2, %lb : !s
  %n2 = arith.negf %l2 : !s
  %x1 = tensor.expand_shape %a1 [[0, 1], [2], [3]] output_shape [1, 6, 20, 20] : !s into tensor<1x6x20x20xf32>
  %x2 = tensor.expand_shape %n2 [[0, 1], [2], [3]] output_shape [1, 6, 20, 20] : !s into tensor<1x6x20x20xf32>
  %x = tensor.concat dim(0) %x1, %x2 : (tensor<1x6x20x20xf32>, tensor<1x6x20x20xf32>) -> tensor<2x6x20x20xf32>
  %c = linalg.reduce { arith.addf } ins(%x : tensor<2x6x20x20xf32>) outs(%zs : !s) dimensions = [0]
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Values with a number on them in another type.

// CHECK-LABEL: func.func @narrow_values(
// CHECK:         diffattn.attention
func.func @narrow_values(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %vn: tensor<6x20x32xbf16>) -> !v {
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
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %sb = arith.constant dense<0.5> : tensor<6x20x32xbf16>
  %vs = arith.mulf %vn, %sb : tensor<6x20x32xbf16>
  %v1 = arith.extf %vn : tensor<6x20x32xbf16> to !v
  %v2 = arith.extf %vs : tensor<6x20x32xbf16> to !v
  %o1 = linalg.batch_matmul ins(%a1, %v1 : !s, !v) outs(%zv : !v) -> !v
  %o2 = linalg.batch_matmul ins(%a2, %v2 : !s, !v) outs(%zv : !v) -> !v
  // expected-remark @+2 {{Reason="q1 is no exact widening of bf16"}}
  // expected-remark @+1 {{two maps became one diffattn.attention}}
  %o = arith.subf %o1, %o2 : !v
  return %o : !v
}

// Rows that are divided by their own sums need the maps.

// CHECK-LABEL: func.func @sums_of_difference(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @sums_of_difference(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
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
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  %t = linalg.reduce { arith.addf } ins(%c : !s) outs(%zr : !r) dimensions = [2]
  %tb = linalg.broadcast ins(%t : !r) outs(%es : !s) dimensions = [2]
  %g = arith.divf %c, %tb : !s
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="what the maps are multiplied by is computed from a map or from its scores", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%g, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// One softmax holds both maps; their difference goes through a function.

// CHECK-LABEL: func.func @one_softmax(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @one_softmax(%q1: !q, %k1: !kt, %v: !v) -> tensor<3x20x32xf32> {
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
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %f = tensor.extract_slice %a1[0, 0, 0] [3, 20, 20] [1, 1, 1] : !s to tensor<3x20x20xf32>
  %g = tensor.extract_slice %a1[3, 0, 0] [3, 20, 20] [1, 1, 1] : !s to tensor<3x20x20xf32>
  %d = arith.subf %f, %g : tensor<3x20x20xf32>
  %c = math.absf %d : tensor<3x20x20xf32>
  %e3 = tensor.empty() : tensor<3x20x32xf32>
  %z3 = linalg.fill ins(%zero : f32) outs(%e3 : tensor<3x20x32xf32>) -> tensor<3x20x32xf32>
  %v3 = tensor.extract_slice %v[0, 0, 0] [3, 20, 32] [1, 1, 1] : !v to tensor<3x20x32xf32>
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="the result is not a sum of products of one map with the values", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%c, %v3 : tensor<3x20x20xf32>, tensor<3x20x32xf32>) outs(%z3 : tensor<3x20x32xf32>) -> tensor<3x20x32xf32>
  return %o : tensor<3x20x32xf32>
}

// One bias, held twice.

// CHECK-LABEL: func.func @same_numbers(
// CHECK:         diffattn.attention
// CHECK-SAME:      bias(
func.func @same_numbers(%q1: tensor<2x4x8xf32>, %k1: tensor<2x8x4xf32>, %q2: tensor<2x4x8xf32>, %k2: tensor<2x8x4xf32>, %v: tensor<2x4x8xf32>) -> tensor<2x4x8xf32> {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : tensor<2x4x4xf32>
  %n1 = arith.constant dense_resource<near> : tensor<4x4xf32>
  %n2 = arith.constant dense_resource<near_again> : tensor<4x4xf32>
  %es = tensor.empty() : tensor<2x4x4xf32>
  %zs = linalg.fill ins(%zero : f32) outs(%es : tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
  %p1 = linalg.batch_matmul ins(%q1, %k1 : tensor<2x4x8xf32>, tensor<2x8x4xf32>) outs(%zs : tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
  %b1 = linalg.broadcast ins(%n1 : tensor<4x4xf32>) outs(%es : tensor<2x4x4xf32>) dimensions = [0]
  %s1 = arith.addf %p1, %b1 : tensor<2x4x4xf32>
  %a1 = linalg.softmax dimension(2) ins(%s1 : tensor<2x4x4xf32>) outs(%es : tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
  %p2 = linalg.batch_matmul ins(%q2, %k2 : tensor<2x4x8xf32>, tensor<2x8x4xf32>) outs(%zs : tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
  %b2 = linalg.broadcast ins(%n2 : tensor<4x4xf32>) outs(%es : tensor<2x4x4xf32>) dimensions = [0]
  %s2 = arith.addf %p2, %b2 : tensor<2x4x4xf32>
  %a2 = linalg.softmax dimension(2) ins(%s2 : tensor<2x4x4xf32>) outs(%es : tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
  %l2 = arith.mulf %a2, %half : tensor<2x4x4xf32>
  %c = arith.subf %a1, %l2 : tensor<2x4x4xf32>
  %ev = tensor.empty() : tensor<2x4x8xf32>
  %zv = linalg.fill ins(%zero : f32) outs(%ev : tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%c, %v : tensor<2x4x4xf32>, tensor<2x4x8xf32>) outs(%zv : tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  return %o : tensor<2x4x8xf32>
}

{-# dialect_resources: { builtin: {
  near: "0x0400000000000080000000BF000080BF0000C0BF000000BF00000080000000BF000080BF000080BF000000BF00000080000000BF0000C0BF000080BF000000BF00000080",
  near_again: "0x0400000000000080000000BF000080BF0000C0BF000000BF00000080000000BF000080BF000080BF000000BF00000080000000BF0000C0BF000080BF000000BF00000080"
} } #-}
