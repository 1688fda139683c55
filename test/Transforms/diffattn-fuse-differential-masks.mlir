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

// An infinite fill hides the keys behind the query.

// CHECK-LABEL: func.func @causal(
// CHECK-NOT:     linalg.softmax
// CHECK:         diffattn.attention
// CHECK-NOT:     bias
// CHECK-SAME:      is_causal
func.func @causal(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
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
  %x2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%in: f32, %out: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %fill = arith.constant 0xFF800000 : f32
    %c = arith.cmpi sge, %i, %j : index
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// So does a large finite one: every row keeps its own key.

// CHECK-LABEL: func.func @causal_finite(
// CHECK:         diffattn.attention
// CHECK-NOT:     bias
// CHECK-SAME:      is_causal
func.func @causal_finite(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
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
    %fill = arith.constant -1.0e+09 : f32
    %c = arith.cmpi sge, %i, %j : index
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%in: f32, %out: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %fill = arith.constant -1.0e+09 : f32
    %c = arith.cmpi sge, %i, %j : index
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Numbers that are added may hide keys too, here 1 for padding times the fill:
// a row may see nothing but padding, beside which the keys behind it are no
// worse. So neither fill becomes an infinite one.

// CHECK-LABEL: func.func @finite_beside_padding(
// CHECK:         diffattn.attention
// CHECK-SAME:      bias(
// CHECK-NOT:     is_causal
func.func @finite_beside_padding(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %padding: tensor<20xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %scale2 = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %s2 = arith.mulf %p2, %scale2 : !s
  %x1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1, %padding : !s, tensor<20xf32>) outs(%es : !s) {
  ^bb0(%in: f32, %pad: f32, %out: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %fill = arith.constant -1.0e+09 : f32
    %c = arith.cmpi sge, %i, %j : index
    %r = arith.select %c, %in, %fill : f32
    %far = arith.mulf %pad, %fill : f32
    %sum = arith.addf %r, %far : f32
    linalg.yield %sum : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2, %padding : !s, tensor<20xf32>) outs(%es : !s) {
  ^bb0(%in: f32, %pad: f32, %out: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %fill = arith.constant -1.0e+09 : f32
    %c = arith.cmpi sge, %i, %j : index
    %r = arith.select %c, %in, %fill : f32
    %far = arith.mulf %pad, %fill : f32
    %sum = arith.addf %r, %far : f32
    linalg.yield %sum : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// The first row sees no key: with a finite fill it is the mean of the values,
// so the fill stays a number that is added.

// CHECK-LABEL: func.func @rows_without_keys(
// CHECK:         tensor.empty() : tensor<1x1x20x20xf32>
// CHECK-NEXT:    %[[BIAS:.+]] = linalg.generic
// CHECK:         %[[FILL:.+]] = arith.constant -1.000000e+09 : f32
// CHECK:         arith.select %{{.+}}, %{{.+}}, %[[FILL]]
// CHECK:         diffattn.attention
// CHECK-SAME:      bias(%[[BIAS]] : tensor<1x1x20x20xf32>)
// CHECK-NOT:     is_causal
// CHECK:         return
func.func @rows_without_keys(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
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
    %fill = arith.constant -1.0e+09 : f32
    %c = arith.cmpi sgt, %i, %j : index
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%in: f32, %out: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %fill = arith.constant -1.0e+09 : f32
    %c = arith.cmpi sgt, %i, %j : index
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// With an infinite fill such a row is 0, so the mask is a band all the same: keys
// up to one before the query.

// CHECK-LABEL: func.func @strictly_before(
// CHECK:         %[[OFFSET:.+]] = arith.constant dense<-1> : tensor<6xi64>
// CHECK:         diffattn.attention
// CHECK-SAME:      q_offset(%[[OFFSET]] : tensor<6xi64>)
// CHECK-SAME:      is_causal
func.func @strictly_before(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
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
    %c = arith.cmpi sgt, %i, %j : index
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%in: f32, %out: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %fill = arith.constant 0xFF800000 : f32
    %c = arith.cmpi sgt, %i, %j : index
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// A window of four keys back.

// CHECK-LABEL: func.func @window(
// CHECK:         diffattn.attention
// CHECK-NOT:     bias
// CHECK-SAME:      is_causal
// CHECK-SAME:      window = array<i64: 3, -1>
func.func @window(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
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
    %three = arith.constant 3 : index
    %back = arith.subi %i, %j : index
    %near = arith.cmpi sle, %back, %three : index
    %past = arith.cmpi sge, %i, %j : index
    %c = arith.andi %near, %past : i1
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%in: f32, %out: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %fill = arith.constant 0xFF800000 : f32
    %three = arith.constant 3 : index
    %back = arith.subi %i, %j : index
    %near = arith.cmpi sle, %back, %three : index
    %past = arith.cmpi sge, %i, %j : index
    %c = arith.andi %near, %past : i1
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Every second key is no band: truth values for each pair.

// CHECK-LABEL: func.func @no_band(
// CHECK:         tensor.empty() : tensor<1x1x1x20xi1>
// CHECK-NEXT:    %[[BIAS:.+]] = linalg.generic
// CHECK:         diffattn.attention
// CHECK-SAME:      bias(%[[BIAS]] : tensor<1x1x1x20xi1>)
// CHECK:         return
func.func @no_band(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
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
    %two = arith.constant 2 : index
    %rem = arith.remui %j, %two : index
    %zi = arith.constant 0 : index
    %c = arith.cmpi eq, %rem, %zi : index
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%in: f32, %out: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %fill = arith.constant 0xFF800000 : f32
    %two = arith.constant 2 : index
    %rem = arith.remui %j, %two : index
    %zi = arith.constant 0 : index
    %c = arith.cmpi eq, %rem, %zi : index
    %r = arith.select %c, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// A mask that the caller gives is an operand.

// CHECK-LABEL: func.func @additive(
// CHECK-SAME:      %[[MASK:[^:]+]]: tensor<20x20xf32>)
// CHECK:         %[[BIAS:.+]] = tensor.expand_shape %[[MASK]]
// CHECK:         diffattn.attention
// CHECK-SAME:      bias(%[[BIAS]] : tensor<1x1x20x20xf32>)
// CHECK:         return
func.func @additive(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %mask: tensor<20x20xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %scale2 = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %s2 = arith.mulf %p2, %scale2 : !s
  %x1 = linalg.generic {indexing_maps = [#s, #ij, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1, %mask : !s, tensor<20x20xf32>) outs(%es : !s) {
  ^bb0(%in: f32, %m: f32, %out: f32):
    %r = arith.addf %m, %in : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #ij, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2, %mask : !s, tensor<20x20xf32>) outs(%es : !s) {
  ^bb0(%in: f32, %m: f32, %out: f32):
    %r = arith.addf %m, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// CHECK-LABEL: func.func @boolean(
// CHECK-SAME:      %[[MASK:[^:]+]]: tensor<20xi1>)
// CHECK:         %[[BIAS:.+]] = tensor.expand_shape %[[MASK]]
// CHECK:         diffattn.attention
// CHECK-SAME:      bias(%[[BIAS]] : tensor<1x1x1x20xi1>)
// CHECK:         return
func.func @boolean(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %mask: tensor<20xi1>) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %scale2 = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %s2 = arith.mulf %p2, %scale2 : !s
  %x1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1, %mask : !s, tensor<20xi1>) outs(%es : !s) {
  ^bb0(%in: f32, %m: i1, %out: f32):
    %fill = arith.constant 0xFF800000 : f32
    %r = arith.select %m, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2, %mask : !s, tensor<20xi1>) outs(%es : !s) {
  ^bb0(%in: f32, %m: i1, %out: f32):
    %fill = arith.constant 0xFF800000 : f32
    %r = arith.select %m, %in, %fill : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// What is added to all keys of a row changes nothing, unless it hides the row, which is 0 then.

// CHECK-LABEL: func.func @hidden_rows(
// CHECK:         diffattn.attention
// CHECK-SAME:      bias(%{{.+}} : tensor<1x1x20x20xi1>)
// CHECK:         return
func.func @hidden_rows(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %rows: tensor<20xi1>) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %x1 = linalg.generic {indexing_maps = [#s, #i, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1, %rows : !s, tensor<20xi1>) outs(%es : !s) {
  ^bb0(%in: f32, %m: i1, %out: f32):
    %fill = arith.constant 0xFF800000 : f32
    %none = arith.constant 0.0 : f32
    %b = arith.select %m, %none, %fill : f32
    %r = arith.addf %b, %in : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #i, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2, %rows : !s, tensor<20xi1>) outs(%es : !s) {
  ^bb0(%in: f32, %m: i1, %out: f32):
    %fill = arith.constant 0xFF800000 : f32
    %none = arith.constant 0.0 : f32
    %b = arith.select %m, %none, %fill : f32
    %r = arith.addf %b, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %d = arith.subf %a1, %a2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Scores beside 1e9 are lost in f32, also where it is added to all of them.

// CHECK-LABEL: func.func @drowned_rows(
// CHECK:         diffattn.attention
// CHECK-SAME:      bias(%{{.+}} : tensor<1x1x20x20xf32>)
// CHECK:         return
func.func @drowned_rows(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %rows: tensor<20xi1>) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %x1 = linalg.generic {indexing_maps = [#s, #i, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1, %rows : !s, tensor<20xi1>) outs(%es : !s) {
  ^bb0(%in: f32, %m: i1, %out: f32):
    %fill = arith.constant -1.0e+09 : f32
    %none = arith.constant 0.0 : f32
    %b = arith.select %m, %none, %fill : f32
    %r = arith.addf %b, %in : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #i, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2, %rows : !s, tensor<20xi1>) outs(%es : !s) {
  ^bb0(%in: f32, %m: i1, %out: f32):
    %fill = arith.constant -1.0e+09 : f32
    %none = arith.constant 0.0 : f32
    %b = arith.select %m, %none, %fill : f32
    %r = arith.addf %b, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %d = arith.subf %a1, %a2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// A fill times log2 e is no number of f32, but the powers of 2 take it back.

// CHECK-LABEL: func.func @fill_of_powers_of_two(
// CHECK:         arith.constant -3.40282347E+38 : f32
// CHECK:         diffattn.attention
// CHECK-SAME:      bias(%{{.+}} : tensor<1x1x1x20xf32>)
// CHECK:         return
func.func @fill_of_powers_of_two(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %m: tensor<20xi1>) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %low = arith.constant 0xFF800000 : f32
  %log2e = arith.constant dense<1.44269502> : !s
  %er = tensor.empty() : tensor<6x20xf32>
  %zr = linalg.fill ins(%zero : f32) outs(%er : tensor<6x20xf32>) -> tensor<6x20xf32>
  %lr = linalg.fill ins(%low : f32) outs(%er : tensor<6x20xf32>) -> tensor<6x20xf32>
  %x1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1, %m : !s, tensor<20xi1>) outs(%es : !s) {
  ^bb0(%in: f32, %seen: i1, %out: f32):
    %fill = arith.constant -3.40282347E+38 : f32
    %true = arith.constant true
    %hidden = arith.xori %seen, %true : i1
    %one = arith.uitofp %hidden : i1 to f32
    %b = arith.mulf %one, %fill : f32
    %r = arith.addf %b, %in : f32
    linalg.yield %r : f32
  } -> !s
  %m1 = linalg.reduce { arith.maximumf } ins(%x1 : !s) outs(%lr : tensor<6x20xf32>) dimensions = [2]
  %mb1 = linalg.broadcast ins(%m1 : tensor<6x20xf32>) outs(%es : !s) dimensions = [2]
  %d1 = arith.subf %x1, %mb1 : !s
  %p1 = arith.mulf %d1, %log2e : !s
  %e1 = math.exp2 %p1 : !s
  %t1 = linalg.reduce { arith.addf } ins(%e1 : !s) outs(%zr : tensor<6x20xf32>) dimensions = [2]
  %tb1 = linalg.broadcast ins(%t1 : tensor<6x20xf32>) outs(%es : !s) dimensions = [2]
  %a1 = arith.divf %e1, %tb1 : !s
  %x2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2, %m : !s, tensor<20xi1>) outs(%es : !s) {
  ^bb0(%in: f32, %seen: i1, %out: f32):
    %fill = arith.constant -3.40282347E+38 : f32
    %true = arith.constant true
    %hidden = arith.xori %seen, %true : i1
    %one = arith.uitofp %hidden : i1 to f32
    %b = arith.mulf %one, %fill : f32
    %r = arith.addf %b, %in : f32
    linalg.yield %r : f32
  } -> !s
  %m2 = linalg.reduce { arith.maximumf } ins(%x2 : !s) outs(%lr : tensor<6x20xf32>) dimensions = [2]
  %mb2 = linalg.broadcast ins(%m2 : tensor<6x20xf32>) outs(%es : !s) dimensions = [2]
  %d2 = arith.subf %x2, %mb2 : !s
  %p2 = arith.mulf %d2, %log2e : !s
  %e2 = math.exp2 %p2 : !s
  %t2 = linalg.reduce { arith.addf } ins(%e2 : !s) outs(%zr : tensor<6x20xf32>) dimensions = [2]
  %tb2 = linalg.broadcast ins(%t2 : tensor<6x20xf32>) outs(%es : !s) dimensions = [2]
  %a2 = arith.divf %e2, %tb2 : !s
  %d = arith.subf %a1, %a2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}
