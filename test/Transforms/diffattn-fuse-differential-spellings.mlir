// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" | FileCheck %s

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
!r = tensor<6x20xf32>
#s = affine_map<(b, i, j) -> (b, i, j)>
#row = affine_map<(b, i, j) -> (b, i)>
#i = affine_map<(b, i, j) -> (i)>
#b = affine_map<(b, i, j) -> (b)>

// A number of valid keys for each batch.

// CHECK-LABEL: func.func @lengths(
// CHECK-SAME:      %[[LEN:[^:]+]]: tensor<6xi32>)
// CHECK:         %[[N:.+]] = linalg.generic {{.*}}ins(%[[LEN]]
// CHECK:           arith.extsi %{{.+}} : i32 to i64
// CHECK:         diffattn.attention
// CHECK-NOT:       bias
// CHECK-SAME:      kv_len(%[[N]] : tensor<6xi64>)
func.func @lengths(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %len: tensor<6xi32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %x1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : !s) outs(%es : !s) {
  ^bb0(%x0: f32, %out: f32):
    %b = linalg.index 0 : index
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %n = tensor.extract %len[%b] : tensor<6xi32>
    %w = arith.index_cast %n : i32 to index
    %h = arith.cmpi sge, %j, %w : index
    %true = arith.constant true
    %c = arith.andi %h, %true : i1
    %fill = arith.constant 0xFF800000 : f32
    %r = arith.select %c, %fill, %x0 : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %x2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%x0: f32, %out: f32):
    %b = linalg.index 0 : index
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %n = tensor.extract %len[%b] : tensor<6xi32>
    %w = arith.index_cast %n : i32 to index
    %h = arith.cmpi sge, %j, %w : index
    %true = arith.constant true
    %c = arith.andi %h, %true : i1
    %fill = arith.constant 0xFF800000 : f32
    %r = arith.select %c, %fill, %x0 : f32
    linalg.yield %r : f32
  } -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %l = arith.constant dense<0.5> : !s
  %m2 = arith.mulf %a2, %l : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// With a band, the last query still stands beside the last key, not beside
// the last valid one.

// CHECK-LABEL: func.func @lengths_and_causal(
// CHECK-DAG:     %[[AT:.+]] = arith.constant dense<0> : tensor<6xi64>
// CHECK:         diffattn.attention
// CHECK-NOT:       bias
// CHECK-SAME:      kv_len(%{{.+}} : tensor<6xi64>) q_offset(%[[AT]] : tensor<6xi64>)
// CHECK-SAME:      is_causal
func.func @lengths_and_causal(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %len: tensor<6xi32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %x1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : !s) outs(%es : !s) {
  ^bb0(%x0: f32, %out: f32):
    %b = linalg.index 0 : index
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %n = tensor.extract %len[%b] : tensor<6xi32>
    %w = arith.index_cast %n : i32 to index
    %h = arith.cmpi sge, %j, %w : index
    %a = arith.cmpi sgt, %j, %i : index
    %c = arith.ori %h, %a : i1
    %fill = arith.constant 0xFF800000 : f32
    %r = arith.select %c, %fill, %x0 : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %x2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%x0: f32, %out: f32):
    %b = linalg.index 0 : index
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %n = tensor.extract %len[%b] : tensor<6xi32>
    %w = arith.index_cast %n : i32 to index
    %h = arith.cmpi sge, %j, %w : index
    %a = arith.cmpi sgt, %j, %i : index
    %c = arith.ori %h, %a : i1
    %fill = arith.constant 0xFF800000 : f32
    %r = arith.select %c, %fill, %x0 : f32
    linalg.yield %r : f32
  } -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %l = arith.constant dense<0.5> : !s
  %m2 = arith.mulf %a2, %l : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// The op takes a lambda's logits.

// CHECK-LABEL: func.func @sigmoid(
// CHECK-NOT:     math.exp
// CHECK:         diffattn.attention
// CHECK-SAME:      lambda_act = #diffattn.activation<sigmoid>
func.func @sigmoid(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %logits: tensor<20xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %zero1 = arith.constant dense<0.0> : !s
  %x1 = arith.addf %s1, %zero1 : !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %zero2 = arith.constant dense<0.0> : !s
  %x2 = arith.addf %s2, %zero2 : !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %ls = linalg.generic {indexing_maps = [#i, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%logits : tensor<20xf32>) outs(%es : !s) {
  ^bb0(%in: f32, %out: f32):
    %one = arith.constant 1.0 : f32
    %n = arith.negf %in : f32
    %e = math.exp %n : f32
    %p = arith.addf %e, %one : f32
    %r = arith.divf %one, %p : f32
    linalg.yield %r : f32
  } -> !s
  %m2 = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// exp(log_softmax(x)).

// CHECK-LABEL: func.func @log_softmax(
// CHECK-NOT:     math.log
// CHECK:         diffattn.attention
func.func @log_softmax(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %zero1 = arith.constant dense<0.0> : !s
  %x1 = arith.addf %s1, %zero1 : !s
  %low1 = arith.constant 0xFF800000 : f32
  %em1 = tensor.empty() : !r
  %emf1 = linalg.fill ins(%low1 : f32) outs(%em1 : !r) -> !r
  %max1 = linalg.generic {indexing_maps = [#s, #row], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1 : !s) outs(%emf1 : !r) {
  ^bb0(%in: f32, %acc: f32):
    %y = arith.maximumf %in, %acc : f32
    linalg.yield %y : f32
  } -> !r
  %c1 = linalg.generic {indexing_maps = [#s, #row, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x1, %max1 : !s, !r) outs(%es : !s) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %z = arith.subf %x, %y : f32
    linalg.yield %z : f32
  } -> !s
  %e1 = math.exp %c1 : !s
  %et1 = tensor.empty() : !r
  %etf1 = linalg.fill ins(%zero : f32) outs(%et1 : !r) -> !r
  %sum1 = linalg.generic {indexing_maps = [#s, #row], iterator_types = ["parallel", "parallel", "reduction"]} ins(%e1 : !s) outs(%etf1 : !r) {
  ^bb0(%in: f32, %acc: f32):
    %y = arith.addf %in, %acc : f32
    linalg.yield %y : f32
  } -> !r
  %log1 = math.log %sum1 : !r
  %y1 = linalg.generic {indexing_maps = [#s, #row, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%c1, %log1 : !s, !r) outs(%es : !s) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %z = arith.subf %x, %y : f32
    linalg.yield %z : f32
  } -> !s
  %a1 = math.exp %y1 : !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %zero2 = arith.constant dense<0.0> : !s
  %x2 = arith.addf %s2, %zero2 : !s
  %low2 = arith.constant 0xFF800000 : f32
  %em2 = tensor.empty() : !r
  %emf2 = linalg.fill ins(%low2 : f32) outs(%em2 : !r) -> !r
  %max2 = linalg.generic {indexing_maps = [#s, #row], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x2 : !s) outs(%emf2 : !r) {
  ^bb0(%in: f32, %acc: f32):
    %y = arith.maximumf %in, %acc : f32
    linalg.yield %y : f32
  } -> !r
  %c2 = linalg.generic {indexing_maps = [#s, #row, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x2, %max2 : !s, !r) outs(%es : !s) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %z = arith.subf %x, %y : f32
    linalg.yield %z : f32
  } -> !s
  %e2 = math.exp %c2 : !s
  %et2 = tensor.empty() : !r
  %etf2 = linalg.fill ins(%zero : f32) outs(%et2 : !r) -> !r
  %sum2 = linalg.generic {indexing_maps = [#s, #row], iterator_types = ["parallel", "parallel", "reduction"]} ins(%e2 : !s) outs(%etf2 : !r) {
  ^bb0(%in: f32, %acc: f32):
    %y = arith.addf %in, %acc : f32
    linalg.yield %y : f32
  } -> !r
  %log2 = math.log %sum2 : !r
  %y2 = linalg.generic {indexing_maps = [#s, #row, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%c2, %log2 : !s, !r) outs(%es : !s) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %z = arith.subf %x, %y : f32
    linalg.yield %z : f32
  } -> !s
  %a2 = math.exp %y2 : !s
  %l = arith.constant dense<0.5> : !s
  %m2 = arith.mulf %a2, %l : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Powers of two of scores that hold the factor log2(e).

// CHECK-LABEL: func.func @powers_of_two(
// CHECK-NOT:     math.powf
// CHECK:         diffattn.attention
// CHECK-SAME:      scale = 2.500000e-01
func.func @powers_of_two(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %zero1 = arith.constant dense<0.0> : !s
  %x1 = arith.addf %s1, %zero1 : !s
  %two1 = arith.constant dense<2.0> : !s
  %k1e = arith.constant dense<1.44269502> : !s
  %z1 = arith.mulf %x1, %k1e : !s
  %e1 = math.powf %two1, %z1 : !s
  %et1 = tensor.empty() : !r
  %etf1 = linalg.fill ins(%zero : f32) outs(%et1 : !r) -> !r
  %sum1 = linalg.generic {indexing_maps = [#s, #row], iterator_types = ["parallel", "parallel", "reduction"]} ins(%e1 : !s) outs(%etf1 : !r) {
  ^bb0(%in: f32, %acc: f32):
    %y = arith.addf %in, %acc : f32
    linalg.yield %y : f32
  } -> !r
  %a1 = linalg.generic {indexing_maps = [#s, #row, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%e1, %sum1 : !s, !r) outs(%es : !s) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %z = arith.divf %x, %y : f32
    linalg.yield %z : f32
  } -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %zero2 = arith.constant dense<0.0> : !s
  %x2 = arith.addf %s2, %zero2 : !s
  %two2 = arith.constant dense<2.0> : !s
  %k2e = arith.constant dense<1.44269502> : !s
  %z2 = arith.mulf %x2, %k2e : !s
  %e2 = math.powf %two2, %z2 : !s
  %et2 = tensor.empty() : !r
  %etf2 = linalg.fill ins(%zero : f32) outs(%et2 : !r) -> !r
  %sum2 = linalg.generic {indexing_maps = [#s, #row], iterator_types = ["parallel", "parallel", "reduction"]} ins(%e2 : !s) outs(%etf2 : !r) {
  ^bb0(%in: f32, %acc: f32):
    %y = arith.addf %in, %acc : f32
    linalg.yield %y : f32
  } -> !r
  %a2 = linalg.generic {indexing_maps = [#s, #row, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%e2, %sum2 : !s, !r) outs(%es : !s) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %z = arith.divf %x, %y : f32
    linalg.yield %z : f32
  } -> !s
  %l = arith.constant dense<0.5> : !s
  %m2 = arith.mulf %a2, %l : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// nan_to_num asks for the sign and for the magnitude.

// CHECK-LABEL: func.func @guarded(
// CHECK-NOT:     math.absf
// CHECK:         diffattn.attention
func.func @guarded(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s1 = arith.mulf %p1, %scale : !s
  %x1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : !s) outs(%es : !s) {
  ^bb0(%in: f32, %out: f32):
    %none = arith.constant 0.0 : f32
    %infinity = arith.constant 0x7F800000 : f32
    %most = arith.constant 3.40282347E+38 : f32
    %size = math.absf %in : f32
    %large = arith.cmpf oeq, %size, %infinity : f32
    %above = arith.cmpf ogt, %in, %none : f32
    %both = arith.andi %above, %large : i1
    %y = arith.select %both, %most, %in : f32
    linalg.yield %y : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = arith.mulf %p2, %scale : !s
  %x2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%in: f32, %out: f32):
    %none = arith.constant 0.0 : f32
    %infinity = arith.constant 0x7F800000 : f32
    %most = arith.constant 3.40282347E+38 : f32
    %size = math.absf %in : f32
    %large = arith.cmpf oeq, %size, %infinity : f32
    %above = arith.cmpf ogt, %in, %none : f32
    %both = arith.andi %above, %large : i1
    %y = arith.select %both, %most, %in : f32
    linalg.yield %y : f32
  } -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %l = arith.constant dense<0.5> : !s
  %m2 = arith.mulf %a2, %l : !s
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}
