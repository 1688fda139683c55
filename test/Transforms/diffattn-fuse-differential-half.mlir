// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" --remarks-filter="diffattn.*" --remark-format=emitRemark --verify-diagnostics | FileCheck %s

// 16-bit operands whose products are summed in f32: attention of the 16-bit type where the graph rounds to it.

!q = tensor<6x20x16xbf16>
!kt = tensor<6x16x20xbf16>
!v = tensor<6x20x32xbf16>
!s = tensor<6x20x20xbf16>
!qw = tensor<6x20x16xf32>
!ktw = tensor<6x16x20xf32>
!vw = tensor<6x20x32xf32>
!sw = tensor<6x20x20xf32>

// Scores, weights and the result are rounded, as ONNX and torch write it.

// CHECK-LABEL: func.func @rounded_everywhere(
// CHECK-NOT:     arith.extf
// CHECK:         diffattn.attention {{.*}}tensor<6x1x20x32xbf16>) lambda({{.*}} outs({{.*}} : tensor<6x1x20x32xbf16>)
// CHECK-SAME:      scale = 2.500000e-01
// CHECK-NOT:     arith.truncf
// CHECK:         return
func.func @rounded_everywhere(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %half = arith.constant dense<0.5> : !s
  %es = tensor.empty() : !sw
  %ev = tensor.empty() : !vw
  %zs = linalg.fill ins(%zero : f32) outs(%es : !sw) -> !sw
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !vw) -> !vw
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !sw) -> !sw
  %r1 = arith.truncf %p1 : !sw to !s
  %s1 = arith.mulf %r1, %scale : !s
  %w1 = arith.extf %s1 : !s to !sw
  %m1 = linalg.softmax dimension(2) ins(%w1 : !sw) outs(%es : !sw) -> !sw
  %a1 = arith.truncf %m1 : !sw to !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !sw) -> !sw
  %r2 = arith.truncf %p2 : !sw to !s
  %s2 = arith.mulf %r2, %scale : !s
  %w2 = arith.extf %s2 : !s to !sw
  %m2 = linalg.softmax dimension(2) ins(%w2 : !sw) outs(%es : !sw) -> !sw
  %a2 = arith.truncf %m2 : !sw to !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  // expected-remark @below {{two maps became one diffattn.attention}}
  %ow = linalg.batch_matmul ins(%c, %v : !s, !v) outs(%zv : !vw) -> !vw
  %o = arith.truncf %ow : !vw to !v
  return %o : !v
}

// Everything is widened and scaled, as scaled_dot_product_attention is; the result alone is rounded.

// CHECK-LABEL: func.func @result_rounded(
// CHECK-NOT:     arith.extf
// CHECK:         diffattn.attention {{.*}}tensor<6x1x20x32xbf16>) lambda({{.*}} outs({{.*}} : tensor<6x1x20x32xbf16>)
// CHECK-SAME:      scale = 2.500000e-01
// CHECK:         return
func.func @result_rounded(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %rootq = arith.constant dense<0.5> : !qw
  %rootk = arith.constant dense<0.5> : !ktw
  %half = arith.constant dense<0.5> : !vw
  %es = tensor.empty() : !sw
  %ev = tensor.empty() : !vw
  %zs = linalg.fill ins(%zero : f32) outs(%es : !sw) -> !sw
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !vw) -> !vw
  %q1w = arith.extf %q1 : !q to !qw
  %q2w = arith.extf %q2 : !q to !qw
  %k1w = arith.extf %k1 : !kt to !ktw
  %k2w = arith.extf %k2 : !kt to !ktw
  %vw = arith.extf %v : !v to !vw
  %q1s = arith.mulf %q1w, %rootq : !qw
  %k1s = arith.mulf %k1w, %rootk : !ktw
  %q2s = arith.mulf %q2w, %rootq : !qw
  %k2s = arith.mulf %k2w, %rootk : !ktw
  %s1 = linalg.batch_matmul ins(%q1s, %k1s : !qw, !ktw) outs(%zs : !sw) -> !sw
  %a1 = linalg.softmax dimension(2) ins(%s1 : !sw) outs(%es : !sw) -> !sw
  %s2 = linalg.batch_matmul ins(%q2s, %k2s : !qw, !ktw) outs(%zs : !sw) -> !sw
  %a2 = linalg.softmax dimension(2) ins(%s2 : !sw) outs(%es : !sw) -> !sw
  %o1 = linalg.batch_matmul ins(%a1, %vw : !sw, !vw) outs(%zv : !vw) -> !vw
  %o2 = linalg.batch_matmul ins(%a2, %vw : !sw, !vw) outs(%zv : !vw) -> !vw
  %l2 = arith.mulf %o2, %half : !vw
  // expected-remark @below {{two maps became one diffattn.attention}}
  %c = arith.subf %o1, %l2 : !vw
  %o = arith.truncf %c : !vw to !v
  return %o : !v
}

// The weights are rounded, the result is not: it is written as f32.

// CHECK-LABEL: func.func @f32_result(
// CHECK-NOT:     arith.extf
// CHECK:         diffattn.attention {{.*}}tensor<6x1x20x32xbf16>) lambda({{.*}} outs({{.*}} : tensor<6x1x20x32xf32>)
// CHECK-NOT:     linalg.generic
// CHECK:         return
func.func @f32_result(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !vw {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : !sw
  %es = tensor.empty() : !sw
  %ev = tensor.empty() : !vw
  %zs = linalg.fill ins(%zero : f32) outs(%es : !sw) -> !sw
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !vw) -> !vw
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !sw) -> !sw
  %a1 = linalg.softmax dimension(2) ins(%s1 : !sw) outs(%es : !sw) -> !sw
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !sw) -> !sw
  %a2 = linalg.softmax dimension(2) ins(%s2 : !sw) outs(%es : !sw) -> !sw
  %l2 = arith.mulf %a2, %half : !sw
  %c = arith.subf %a1, %l2 : !sw
  %r = arith.truncf %c : !sw to !s
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%r, %v : !s, !v) outs(%zv : !vw) -> !vw
  return %o : !vw
}

// One map is rounded, the other is not, and neither is the result.

// CHECK-LABEL: func.func @one_map_rounded(
// CHECK:         diffattn.attention {{.*}}tensor<6x1x20x32xf32>) lambda({{.*}} outs({{.*}} : tensor<6x1x20x32xf32>)
func.func @one_map_rounded(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !vw {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : !vw
  %es = tensor.empty() : !sw
  %ev = tensor.empty() : !vw
  %zs = linalg.fill ins(%zero : f32) outs(%es : !sw) -> !sw
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !vw) -> !vw
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !sw) -> !sw
  %m1 = linalg.softmax dimension(2) ins(%s1 : !sw) outs(%es : !sw) -> !sw
  %a1 = arith.truncf %m1 : !sw to !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !sw) -> !sw
  %a2 = linalg.softmax dimension(2) ins(%s2 : !sw) outs(%es : !sw) -> !sw
  %vw = arith.extf %v : !v to !vw
  %o1 = linalg.batch_matmul ins(%a1, %v : !s, !v) outs(%zv : !vw) -> !vw
  %o2 = linalg.batch_matmul ins(%a2, %vw : !sw, !vw) outs(%zv : !vw) -> !vw
  %l2 = arith.mulf %o2, %half : !vw
  // expected-remark @+2 {{[Missed] ComputedInF32 | Category:diffattn-fuse | Reason="neither the maps nor the result is rounded to bf16", Summary="16-bit attention is computed in f32"}}
  // expected-remark @+1 {{two maps became one diffattn.attention}}
  %o = arith.subf %o1, %l2 : !vw
  return %o : !vw
}

// Rounded to another type than that of the operands.

// CHECK-LABEL: func.func @other_type(
// CHECK:         diffattn.attention {{.*}}tensor<6x1x20x32xf32>) lambda({{.*}} outs({{.*}} : tensor<6x1x20x32xf32>)
func.func @other_type(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> tensor<6x20x32xf16> {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : !sw
  %es = tensor.empty() : !sw
  %ev = tensor.empty() : !vw
  %zs = linalg.fill ins(%zero : f32) outs(%es : !sw) -> !sw
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !vw) -> !vw
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !sw) -> !sw
  %a1 = linalg.softmax dimension(2) ins(%s1 : !sw) outs(%es : !sw) -> !sw
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !sw) -> !sw
  %a2 = linalg.softmax dimension(2) ins(%s2 : !sw) outs(%es : !sw) -> !sw
  %l2 = arith.mulf %a2, %half : !sw
  %c = arith.subf %a1, %l2 : !sw
  %vw = arith.extf %v : !v to !vw
  // expected-remark @+2 {{neither the maps nor the result is rounded to bf16}}
  // expected-remark @+1 {{two maps became one diffattn.attention}}
  %ow = linalg.batch_matmul ins(%c, %vw : !sw, !vw) outs(%zv : !vw) -> !vw
  %o = arith.truncf %ow : !vw to tensor<6x20x32xf16>
  return %o : tensor<6x20x32xf16>
}

// Queries and keys of one type, values of the other.

// CHECK-LABEL: func.func @mixed_types(
// CHECK:         diffattn.attention {{.*}}tensor<6x1x20x32xf32>) lambda({{.*}} outs({{.*}} : tensor<6x1x20x32xf32>)
func.func @mixed_types(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: tensor<6x20x32xf16>) -> !v {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : !sw
  %es = tensor.empty() : !sw
  %ev = tensor.empty() : !vw
  %zs = linalg.fill ins(%zero : f32) outs(%es : !sw) -> !sw
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !vw) -> !vw
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !sw) -> !sw
  %a1 = linalg.softmax dimension(2) ins(%s1 : !sw) outs(%es : !sw) -> !sw
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !sw) -> !sw
  %a2 = linalg.softmax dimension(2) ins(%s2 : !sw) outs(%es : !sw) -> !sw
  %l2 = arith.mulf %a2, %half : !sw
  %c = arith.subf %a1, %l2 : !sw
  %vw = arith.extf %v : tensor<6x20x32xf16> to !vw
  // expected-remark @+2 {{v is no exact widening of bf16}}
  // expected-remark @+1 {{two maps became one diffattn.attention}}
  %ow = linalg.batch_matmul ins(%c, %vw : !sw, !vw) outs(%zv : !vw) -> !vw
  %o = arith.truncf %ow : !vw to !v
  return %o : !v
}

// f32 throughout, and rounded at the end.

// CHECK-LABEL: func.func @f32_operands(
// CHECK:         diffattn.attention {{.*}}tensor<6x1x20x32xf32>) lambda({{.*}} outs({{.*}} : tensor<6x1x20x32xf32>)
// CHECK:         arith.truncf
func.func @f32_operands(%q1: !qw, %k1: !ktw, %q2: !qw, %k2: !ktw, %v: !vw) -> !v {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : !s
  %es = tensor.empty() : !sw
  %ev = tensor.empty() : !vw
  %zs = linalg.fill ins(%zero : f32) outs(%es : !sw) -> !sw
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !vw) -> !vw
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !qw, !ktw) outs(%zs : !sw) -> !sw
  %m1 = linalg.softmax dimension(2) ins(%s1 : !sw) outs(%es : !sw) -> !sw
  %a1 = arith.truncf %m1 : !sw to !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !qw, !ktw) outs(%zs : !sw) -> !sw
  %m2 = linalg.softmax dimension(2) ins(%s2 : !sw) outs(%es : !sw) -> !sw
  %a2 = arith.truncf %m2 : !sw to !s
  %l2 = arith.mulf %a2, %half : !s
  %c = arith.subf %a1, %l2 : !s
  %w = arith.extf %c : !s to !sw
  // expected-remark @below {{two maps became one diffattn.attention}}
  %ow = linalg.batch_matmul ins(%w, %v : !sw, !vw) outs(%zv : !vw) -> !vw
  %o = arith.truncf %ow : !vw to !v
  return %o : !v
}

// Both maps are multiplied by a number of each query that is known at run time, behind the op: the result is rounded once, there.

// CHECK-LABEL: func.func @scaled_behind(
// CHECK:         %[[O:.+]] = diffattn.attention {{.*}}tensor<6x1x20x32xbf16>) lambda({{.*}} outs({{.*}} : tensor<6x1x20x32xf32>)
// CHECK:         linalg.generic {{.*}} ins(%[[O]]
// CHECK-NOT:     arith.extf
// CHECK:         return
func.func @scaled_behind(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %g: tensor<20xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : !sw
  %es = tensor.empty() : !sw
  %ev = tensor.empty() : !vw
  %zs = linalg.fill ins(%zero : f32) outs(%es : !sw) -> !sw
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !vw) -> !vw
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !sw) -> !sw
  %a1 = linalg.softmax dimension(2) ins(%s1 : !sw) outs(%es : !sw) -> !sw
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !sw) -> !sw
  %a2 = linalg.softmax dimension(2) ins(%s2 : !sw) outs(%es : !sw) -> !sw
  %l2 = arith.mulf %a2, %half : !sw
  %c = arith.subf %a1, %l2 : !sw
  %gb = linalg.broadcast ins(%g : tensor<20xf32>) outs(%es : !sw) dimensions = [0, 2]
  %cg = arith.mulf %c, %gb : !sw
  %vw = arith.extf %v : !v to !vw
  // expected-remark @below {{two maps became one diffattn.attention}}
  %ow = linalg.batch_matmul ins(%cg, %vw : !sw, !vw) outs(%zv : !vw) -> !vw
  %o = arith.truncf %ow : !vw to !v
  return %o : !v
}

// A mask in 16 bits that is widened to be added is read as it is; what an f32 graph chooses of constants has no 16-bit type.

// CHECK-LABEL: func.func @half_bias(
// CHECK-SAME:      %[[MASK:[a-z0-9]+]]: tensor<20x20xbf16>
// CHECK:         %[[B:.+]] = tensor.expand_shape %[[MASK]]
// CHECK-NOT:     arith.extf
// CHECK:         diffattn.attention {{.*}} bias(%[[B]] : tensor<1x1x20x20xbf16>)
func.func @half_bias(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %mask: tensor<20x20xbf16>) -> !v {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : !sw
  %es = tensor.empty() : !sw
  %ev = tensor.empty() : !vw
  %zs = linalg.fill ins(%zero : f32) outs(%es : !sw) -> !sw
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !vw) -> !vw
  %mw = arith.extf %mask : tensor<20x20xbf16> to tensor<20x20xf32>
  %mb = linalg.broadcast ins(%mw : tensor<20x20xf32>) outs(%es : !sw) dimensions = [0]
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !sw) -> !sw
  %s1 = arith.addf %p1, %mb : !sw
  %a1 = linalg.softmax dimension(2) ins(%s1 : !sw) outs(%es : !sw) -> !sw
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !sw) -> !sw
  %s2 = arith.addf %p2, %mb : !sw
  %a2 = linalg.softmax dimension(2) ins(%s2 : !sw) outs(%es : !sw) -> !sw
  %l2 = arith.mulf %a2, %half : !sw
  %c = arith.subf %a1, %l2 : !sw
  %r = arith.truncf %c : !sw to !s
  // expected-remark @below {{two maps became one diffattn.attention}}
  %ow = linalg.batch_matmul ins(%r, %v : !s, !v) outs(%zv : !vw) -> !vw
  %o = arith.truncf %ow : !vw to !v
  return %o : !v
}

// CHECK-LABEL: func.func @chosen_bias(
// CHECK:         diffattn.attention {{.*}} bias({{.*}} : tensor<1x1x20x20xf32>)
func.func @chosen_bias(%q1: !qw, %k1: !ktw, %q2: !qw, %k2: !ktw, %v: !vw, %where: tensor<20x20xi1>) -> !vw {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant dense<0.5> : !sw
  %es = tensor.empty() : !sw
  %ev = tensor.empty() : !vw
  %zs = linalg.fill ins(%zero : f32) outs(%es : !sw) -> !sw
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !vw) -> !vw
  %one = arith.constant dense<1.0> : tensor<20x20xf32>
  %two = arith.constant dense<2.0> : tensor<20x20xf32>
  %m = arith.select %where, %one, %two : tensor<20x20xi1>, tensor<20x20xf32>
  %mb = linalg.broadcast ins(%m : tensor<20x20xf32>) outs(%es : !sw) dimensions = [0]
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !qw, !ktw) outs(%zs : !sw) -> !sw
  %s1 = arith.addf %p1, %mb : !sw
  %a1 = linalg.softmax dimension(2) ins(%s1 : !sw) outs(%es : !sw) -> !sw
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !qw, !ktw) outs(%zs : !sw) -> !sw
  %s2 = arith.addf %p2, %mb : !sw
  %a2 = linalg.softmax dimension(2) ins(%s2 : !sw) outs(%es : !sw) -> !sw
  %l2 = arith.mulf %a2, %half : !sw
  %c = arith.subf %a1, %l2 : !sw
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%c, %v : !sw, !vw) outs(%zv : !vw) -> !vw
  return %o : !vw
}

// Values that were widened before they were weighed are so again, also where lambda is on one of them.

// CHECK-LABEL: func.func @weighed_values(
// CHECK:         linalg.generic
// CHECK:         %[[WIDE:.+]] = arith.extf %{{.+}} : bf16 to f32
// CHECK:         arith.mulf {{.*}}%[[WIDE]]{{.*}} : f32
// CHECK:         diffattn.attention
// CHECK-SAME:      -> tensor<6x1x20x32xf32>
func.func @weighed_values(%q1: tensor<6x20x16xf32>, %k1: tensor<6x16x20xf32>, %q2: tensor<6x20x16xf32>, %k2: tensor<6x16x20xf32>,
                          %v: tensor<6x20x32xbf16>, %w: tensor<6x20x32xf32>) -> tensor<6x20x32xf32> {
  %zero = arith.constant 0.0 : f32
  %lambda = arith.constant dense<1.5> : tensor<6x20x32xf32>
  %es = tensor.empty() : tensor<6x20x20xf32>
  %zs = linalg.fill ins(%zero : f32) outs(%es : tensor<6x20x20xf32>) -> tensor<6x20x20xf32>
  %s1 = linalg.batch_matmul ins(%q1, %k1 : tensor<6x20x16xf32>, tensor<6x16x20xf32>) outs(%zs : tensor<6x20x20xf32>) -> tensor<6x20x20xf32>
  %s2 = linalg.batch_matmul ins(%q2, %k2 : tensor<6x20x16xf32>, tensor<6x16x20xf32>) outs(%zs : tensor<6x20x20xf32>) -> tensor<6x20x20xf32>
  %a1 = linalg.softmax dimension(2) ins(%s1 : tensor<6x20x20xf32>) outs(%es : tensor<6x20x20xf32>) -> tensor<6x20x20xf32>
  %a2 = linalg.softmax dimension(2) ins(%s2 : tensor<6x20x20xf32>) outs(%es : tensor<6x20x20xf32>) -> tensor<6x20x20xf32>
  %wide = arith.extf %v : tensor<6x20x32xbf16> to tensor<6x20x32xf32>
  %v1 = arith.mulf %wide, %w : tensor<6x20x32xf32>
  %v2 = arith.mulf %v1, %lambda : tensor<6x20x32xf32>
  %ev = tensor.empty() : tensor<6x20x32xf32>
  %zv = linalg.fill ins(%zero : f32) outs(%ev : tensor<6x20x32xf32>) -> tensor<6x20x32xf32>
  %o1 = linalg.batch_matmul ins(%a1, %v1 : tensor<6x20x20xf32>, tensor<6x20x32xf32>) outs(%zv : tensor<6x20x32xf32>) -> tensor<6x20x32xf32>
  %o2 = linalg.batch_matmul ins(%a2, %v2 : tensor<6x20x20xf32>, tensor<6x20x32xf32>) outs(%zv : tensor<6x20x32xf32>) -> tensor<6x20x32xf32>
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = arith.subf %o1, %o2 : tensor<6x20x32xf32>
  return %o : tensor<6x20x32xf32>
}
