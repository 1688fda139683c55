// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" --remarks-filter="diffattn.*" --remark-format=emitRemark --verify-diagnostics | FileCheck %s

// Single maps that stay, each with its reason.

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
#s = affine_map<(b, i, j) -> (b, i, j)>
#t = affine_map<(b, i, j) -> (b, j, i)>

// CHECK-LABEL: func.func @map_returned(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @map_returned(%q: !q, %k: !kt, %v: !v) -> (!v, !s) {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s = linalg.batch_matmul ins(%q, %k : !q, !kt) outs(%zs : !s) -> !s
  %a = linalg.softmax dimension(2) ins(%s : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a map or its scores are also used by func.return", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%a, %v : !s, !v) outs(%zv : !v) -> !v
  return %o, %a : !v, !s
}

// The scores are read by another op, too.

// CHECK-LABEL: func.func @scores_used(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @scores_used(%q: !q, %k: !kt, %v: !v) -> (!v, !s) {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s = linalg.batch_matmul ins(%q, %k : !q, !kt) outs(%zs : !s) -> !s
  %a = linalg.softmax dimension(2) ins(%s : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a map or its scores are also used by math.absf", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%a, %v : !s, !v) outs(%zv : !v) -> !v
  %size = math.absf %s : !s
  return %o, %size : !v, !s
}

// One map with two values.

// CHECK-LABEL: func.func @two_values(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @two_values(%q: !q, %k: !kt, %v: !v, %w: !v) -> (!v, !v) {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s = linalg.batch_matmul ins(%q, %k : !q, !kt) outs(%zs : !s) -> !s
  %a = linalg.softmax dimension(2) ins(%s : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a map or its scores are also used by linalg.batch_matmul", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%a, %v : !s, !v) outs(%zv : !v) -> !v
  %p = linalg.batch_matmul ins(%a, %w : !s, !v) outs(%zv : !v) -> !v
  return %o, %p : !v, !v
}

// Dropout behind the softmax.

// CHECK-LABEL: func.func @dropout(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @dropout(%q: !q, %k: !kt, %v: !v, %kept: !s) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s = linalg.batch_matmul ins(%q, %k : !q, !kt) outs(%zs : !s) -> !s
  %a = linalg.softmax dimension(2) ins(%s : !s) outs(%es : !s) -> !s
  %d = arith.mulf %a, %kept : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a map is multiplied by a value that depends on query and key", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// One softmax over a difference of scores.

// CHECK-LABEL: func.func @difference_of_scores(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @difference_of_scores(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %s2, %ls : !s
  %d = arith.subf %s1, %m2 : !s
  %a = linalg.softmax dimension(2) ins(%d : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="one softmax is over a difference of scores", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%a, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// A weight for a sink beside the keys.

// CHECK-LABEL: func.func @sink(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
#row = affine_map<(b, i, j) -> (b, i)>
func.func @sink(%q: !q, %k: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %er = tensor.empty() : tensor<6x20xf32>
  %zr = linalg.fill ins(%zero : f32) outs(%er : tensor<6x20xf32>) -> tensor<6x20xf32>
  %s = linalg.batch_matmul ins(%q, %k : !q, !kt) outs(%zs : !s) -> !s
  %e = math.exp %s : !s
  %sum = linalg.generic {indexing_maps = [#s, #row], iterator_types = ["parallel", "parallel", "reduction"]} ins(%e : !s) outs(%zr : tensor<6x20xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %n = arith.addf %x, %acc : f32
    linalg.yield %n : f32
  } -> tensor<6x20xf32>
  %a = linalg.generic {indexing_maps = [#s, #row, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%e, %sum : !s, tensor<6x20xf32>) outs(%es : !s) {
  ^bb0(%x: f32, %total: f32, %_: f32):
    %more = arith.addf %total, %one : f32
    %n = arith.divf %x, %more : f32
    linalg.yield %n : f32
  } -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a softmax adds a number to its sum that may count", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%a, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// The difference is told, and what it is made of is left beside it.

// CHECK-LABEL: func.func @refused_difference(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @refused_difference(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %w: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o1 = linalg.batch_matmul ins(%a1, %v : !s, !v) outs(%zv : !v) -> !v
  %o2 = linalg.batch_matmul ins(%a2, %w : !s, !v) outs(%zv : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="the two maps are multiplied by different values", Remark="arith.subf stays"}}
  %o = arith.subf %o1, %o2 : !v
  return %o : !v
}

// Heads wider than a kernel takes.

!wq = tensor<2x4x1040xf32>
!wk = tensor<2x1040x6xf32>
!wv = tensor<2x6x8xf32>
!ws = tensor<2x4x6xf32>
!wo = tensor<2x4x8xf32>

// CHECK-LABEL: func.func @wide(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @wide(%q: !wq, %k: !wk, %v: !wv) -> !wo {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !ws
  %zs = linalg.fill ins(%zero : f32) outs(%es : !ws) -> !ws
  %s = linalg.batch_matmul ins(%q, %k : !wq, !wk) outs(%zs : !ws) -> !ws
  %a = linalg.softmax dimension(2) ins(%s : !ws) outs(%es : !ws) -> !ws
  %eo = tensor.empty() : !wo
  %zo = linalg.fill ins(%zero : f32) outs(%eo : !wo) -> !wo
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a head of 1040 is above 1024, the widest of a kernel", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%a, %v : !ws, !wv) outs(%zo : !wo) -> !wo
  return %o : !wo
}

// A softmax of something else than products, and one that meets no values, are no attention.

// CHECK-LABEL: func.func @no_attention(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @no_attention(%x: !s, %q: !q, %k: !kt, %v: !v) -> (!v, !s) {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %a = linalg.softmax dimension(2) ins(%x : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%a, %v : !s, !v) outs(%zv : !v) -> !v
  %s = linalg.batch_matmul ins(%q, %k : !q, !kt) outs(%zs : !s) -> !s
  %p = linalg.softmax dimension(2) ins(%s : !s) outs(%es : !s) -> !s
  return %o, %p : !v, !s
}

// A difference beside a single map: both become ops.

// CHECK-LABEL: func.func @hybrid(
// CHECK:         %[[D:.+]] = diffattn.attention ins(%{{.+}}, %{{.+}}, %{{.+}}, %{{.+}}, %{{.+}} :
// CHECK:         %[[O:.+]] = diffattn.attention ins(%{{[^,]+}}, %{{[^,]+}}, %{{[^,]+}} :
// CHECK-NOT:     linalg.softmax
func.func @hybrid(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
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
  %s3 = linalg.batch_matmul ins(%q2, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %a3 = linalg.softmax dimension(2) ins(%s3 : !s) outs(%es : !s) -> !s
  // expected-remark @below {{[Passed] Raised | Category:diffattn-fuse | Remark="one map became a diffattn.attention"}}
  %r = linalg.batch_matmul ins(%a3, %o : !s, !v) outs(%zv : !v) -> !v
  return %r : !v
}

// The score beside the keys is one of each query: no sink.

// CHECK-LABEL: func.func @sink_of_each_query(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @sink_of_each_query(%q: !q, %k: !kt, %v: !v, %column: tensor<6x20x1xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s = linalg.batch_matmul ins(%q, %k : !q, !kt) outs(%zs : !s) -> !s
  %all = tensor.concat dim(2) %s, %column : (!s, tensor<6x20x1xf32>) -> tensor<6x20x21xf32>
  %ea = tensor.empty() : tensor<6x20x21xf32>
  %a = linalg.softmax dimension(2) ins(%all : tensor<6x20x21xf32>) outs(%ea : tensor<6x20x21xf32>) -> tensor<6x20x21xf32>
  %w = tensor.extract_slice %a[0, 0, 0] [6, 20, 20] [1, 1, 1] : tensor<6x20x21xf32> to !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a softmax is over more keys than have values", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%w, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// The last key has no value, but it is one.

// CHECK-LABEL: func.func @key_without_a_value(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @key_without_a_value(%q: !q, %k: !kt, %v: tensor<6x19x32xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s = linalg.batch_matmul ins(%q, %k : !q, !kt) outs(%zs : !s) -> !s
  %a = linalg.softmax dimension(2) ins(%s : !s) outs(%es : !s) -> !s
  %w = tensor.extract_slice %a[0, 0, 0] [6, 20, 19] [1, 1, 1] : !s to tensor<6x20x19xf32>
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a softmax is over more keys than have values", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%w, %v : tensor<6x20x19xf32>, tensor<6x19x32xf32>) outs(%zv : !v) -> !v
  return %o : !v
}
