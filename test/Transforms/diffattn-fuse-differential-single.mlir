// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" --remarks-filter="diffattn.*" --remark-format=emitRemark --verify-diagnostics | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential{single-maps=false}))" | FileCheck %s --check-prefix=OFF
// RUN: diffattn-opt %s --diffattn-cuda-pipeline="chip=sm_80 until=raised" | FileCheck %s --check-prefix=GPU

// One map, with its scale on the scores, on a query and on a key; of each kind of mask.

// OFF-NOT: diffattn.attention
// GPU:     diffattn.attention

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>

// CHECK-LABEL: func.func @scaled_scores(
// CHECK-SAME:    %[[Q:[^:]+]]: tensor<6x20x16xf32>, %[[K:[^:]+]]: tensor<6x20x16xf32>, %[[V:[^:]+]]: tensor<6x20x32xf32>)
// CHECK-NOT:     linalg.softmax
// CHECK-DAG:     %[[Q4:.+]] = tensor.expand_shape %[[Q]]
// CHECK-DAG:     %[[K4:.+]] = tensor.expand_shape %[[K]]
// CHECK-DAG:     %[[V4:.+]] = tensor.expand_shape %[[V]]
// CHECK:         %[[O:.+]] = diffattn.attention ins(%[[Q4]], %[[K4]], %[[V4]] :
// CHECK-NOT:     lambda
// CHECK-SAME:      scale = 2.500000e-01
// CHECK-NEXT:    %[[C:.+]] = tensor.collapse_shape %[[O]]
// CHECK-NEXT:    return %[[C]]
func.func @scaled_scores(%q: !q, %k: !q, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %quarter = arith.constant dense<0.25> : !s
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %et = tensor.empty() : !kt
  %kt = linalg.transpose ins(%k : !q) outs(%et : !kt) permutation = [0, 2, 1]
  %s = linalg.batch_matmul ins(%q, %kt : !q, !kt) outs(%zs : !s) -> !s
  %c = arith.mulf %s, %quarter : !s
  %a = linalg.softmax dimension(2) ins(%c : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Passed] Raised | Category:diffattn-fuse | Remark="one map became a diffattn.attention"}}
  %o = linalg.batch_matmul ins(%a, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// The softmax op by op, as importers write it; four axes, batch and lengths known at run time only; the query scaled. Its keys are
// hidden as PyTorch's is_causal has it: query 0 sees key 0 alone, also where there are fewer queries than keys.

#qk_q = affine_map<(b, h, i, j, d) -> (b, h, i, d)>
#qk_k = affine_map<(b, h, i, j, d) -> (b, h, j, d)>
#qk_s = affine_map<(b, h, i, j, d) -> (b, h, i, j)>
#pv_v = affine_map<(b, h, i, e, j) -> (b, h, j, e)>
#pv_s = affine_map<(b, h, i, e, j) -> (b, h, i, j)>
#pv_o = affine_map<(b, h, i, e, j) -> (b, h, i, e)>
#id = affine_map<(b, h, i, j) -> (b, h, i, j)>
#row = affine_map<(b, h, i, j) -> (b, h, i)>
!dq = tensor<?x4x?x16xf32>
!ds = tensor<?x4x?x?xf32>
!dr = tensor<?x4x?xf32>

// CHECK-LABEL: func.func @causal_from_the_first_key(
// CHECK-SAME:    %[[Q:[^:]+]]: tensor<?x4x?x16xf32>, %[[K:[^:]+]]: tensor<?x4x?x16xf32>, %[[V:[^:]+]]: tensor<?x4x?x16xf32>)
// CHECK-NOT:     math.exp
// CHECK:         %[[FIRST:.+]] = tensor.splat %{{.+}} : tensor<?xi64>
// CHECK:         diffattn.attention ins(%[[Q]], %[[K]], %[[V]] :
// CHECK-SAME:      q_offset(%[[FIRST]] : tensor<?xi64>)
// CHECK-SAME:      is_causal, scale = 1.250000e-01
func.func @causal_from_the_first_key(%q: !dq, %k: !dq, %v: !dq) -> !dq {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  %eighth = arith.constant 0.125 : f32
  %minus = arith.constant 0xFF800000 : f32
  %b = tensor.dim %q, %c0 : !dq
  %tq = tensor.dim %q, %c2 : !dq
  %tk = tensor.dim %k, %c2 : !dq
  %eq = tensor.empty(%b, %tq) : !dq
  %es = tensor.empty(%b, %tq, %tk) : !ds
  %zs = linalg.fill ins(%zero : f32) outs(%es : !ds) -> !ds
  %er = tensor.empty(%b, %tq) : !dr
  %zr = linalg.fill ins(%zero : f32) outs(%er : !dr) -> !dr
  %mr = linalg.fill ins(%minus : f32) outs(%er : !dr) -> !dr
  %zq = linalg.fill ins(%zero : f32) outs(%eq : !dq) -> !dq
  %sq = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%q : !dq) outs(%eq : !dq) {
  ^bb0(%x: f32, %_: f32):
    %n = arith.mulf %x, %eighth : f32
    linalg.yield %n : f32
  } -> !dq
  %s = linalg.generic {indexing_maps = [#qk_q, #qk_k, #qk_s], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%sq, %k : !dq, !dq) outs(%zs : !ds) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %x, %y : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> !ds
  %m = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%s : !ds) outs(%es : !ds) {
  ^bb0(%x: f32, %_: f32):
    %i = linalg.index 2 : index
    %j = linalg.index 3 : index
    %seen = arith.cmpi sle, %j, %i : index
    %n = arith.select %seen, %x, %minus : f32
    linalg.yield %n : f32
  } -> !ds
  %max = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%m : !ds) outs(%mr : !dr) {
  ^bb0(%x: f32, %acc: f32):
    %n = arith.maximumf %x, %acc : f32
    linalg.yield %n : f32
  } -> !dr
  %e = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%m, %max : !ds, !dr) outs(%es : !ds) {
  ^bb0(%x: f32, %most: f32, %_: f32):
    %n = arith.subf %x, %most : f32
    %p = math.exp %n : f32
    linalg.yield %p : f32
  } -> !ds
  %sum = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%e : !ds) outs(%zr : !dr) {
  ^bb0(%x: f32, %acc: f32):
    %n = arith.addf %x, %acc : f32
    linalg.yield %n : f32
  } -> !dr
  %a = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%e, %sum : !ds, !dr) outs(%es : !ds) {
  ^bb0(%x: f32, %total: f32, %_: f32):
    %n = arith.divf %x, %total : f32
    linalg.yield %n : f32
  } -> !ds
  // expected-remark @below {{[Passed] Raised | Category:diffattn-fuse | Remark="one map became a diffattn.attention"}}
  %o = linalg.generic {indexing_maps = [#pv_s, #pv_v, #pv_o], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%a, %v : !ds, !dq) outs(%zq : !dq) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %x, %y : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> !dq
  return %o : !dq
}

// Heads that share keys and values, which an importer repeats; numbers that are added for each head; keys that a mask of each batch
// hides; a cap; the last query beside the last key.

!gq = tensor<2x6x5x8xf32>
!gk = tensor<2x2x9x8xf32>
!gw = tensor<2x2x3x9x8xf32>
!ge = tensor<2x6x9x8xf32>
!gs = tensor<2x6x5x9xf32>
#from = affine_map<(b, g, r, j, d) -> (b, g, j, d)>
#to = affine_map<(b, g, r, j, d) -> (b, g, r, j, d)>
#each_head = affine_map<(b, h, i, j) -> (h, i, j)>
#each_key = affine_map<(b, h, i, j) -> (b, j)>

// CHECK-LABEL: func.func @grouped(
// CHECK-SAME:    %[[Q:[^:]+]]: tensor<2x6x5x8xf32>, %[[K:[^:]+]]: tensor<2x2x9x8xf32>, %[[V:[^:]+]]: tensor<2x2x9x8xf32>,
// CHECK-NOT:     math.tanh
// CHECK:         diffattn.attention ins(%[[Q]], %[[K]], %[[V]] :
// CHECK-SAME:      bias(%{{.+}} : tensor<2x6x5x9xf32>)
// CHECK-SAME:      is_causal
// CHECK-SAME:      softcap = 5.000000e+00
func.func @grouped(%q: !gq, %k: !gk, %v: !gk, %added: tensor<6x5x9xf32>, %kept: tensor<2x9xi1>) -> !gq {
  %zero = arith.constant 0.0 : f32
  %cap = arith.constant 5.0 : f32
  %minus = arith.constant 0xFF800000 : f32
  %c4 = arith.constant 4 : index
  %ew = tensor.empty() : !gw
  %es = tensor.empty() : !gs
  %zs = linalg.fill ins(%zero : f32) outs(%es : !gs) -> !gs
  %kw = linalg.generic {indexing_maps = [#from, #to], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]} ins(%k : !gk) outs(%ew : !gw) {
  ^bb0(%x: f32, %_: f32):
    linalg.yield %x : f32
  } -> !gw
  %vw = linalg.generic {indexing_maps = [#from, #to], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]} ins(%v : !gk) outs(%ew : !gw) {
  ^bb0(%x: f32, %_: f32):
    linalg.yield %x : f32
  } -> !gw
  %ke = tensor.collapse_shape %kw [[0], [1, 2], [3], [4]] : !gw into !ge
  %ve = tensor.collapse_shape %vw [[0], [1, 2], [3], [4]] : !gw into !ge
  %s = linalg.generic {indexing_maps = [#qk_q, #qk_k, #qk_s], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%q, %ke : !gq, !ge) outs(%zs : !gs) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %x, %y : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> !gs
  %m = linalg.generic {indexing_maps = [#id, #each_head, #each_key, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%s, %added, %kept : !gs, tensor<6x5x9xf32>, tensor<2x9xi1>) outs(%es : !gs) {
  ^bb0(%x: f32, %number: f32, %keep: i1, %_: f32):
    %less = arith.divf %x, %cap : f32
    %bent = math.tanh %less : f32
    %capped = arith.mulf %bent, %cap : f32
    %i = linalg.index 2 : index
    %j = linalg.index 3 : index
    %last = arith.addi %i, %c4 : index
    %past = arith.cmpi sle, %j, %last : index
    %seen = arith.andi %past, %keep : i1
    %sum = arith.addf %capped, %number : f32
    %n = arith.select %seen, %sum, %minus : f32
    linalg.yield %n : f32
  } -> !gs
  %a = linalg.softmax dimension(3) ins(%m : !gs) outs(%es : !gs) -> !gs
  %eo = tensor.empty() : !gq
  %zo = linalg.fill ins(%zero : f32) outs(%eo : !gq) -> !gq
  // expected-remark @below {{[Passed] Raised | Category:diffattn-fuse | Remark="one map became a diffattn.attention"}}
  %o = linalg.generic {indexing_maps = [#pv_s, #pv_v, #pv_o], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%a, %ve : !gs, !ge) outs(%zo : !gq) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %x, %y : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> !gq
  return %o : !gq
}

// Queries of one width and values of another, a window of two keys, operands of 16 bits with sums of 32.

!hq = tensor<3x7x4xbf16>
!hv = tensor<3x7x12xbf16>
!hs = tensor<3x7x7xf32>
#h_q = affine_map<(b, i, j, d) -> (b, i, d)>
#h_k = affine_map<(b, i, j, d) -> (b, j, d)>
#h_s = affine_map<(b, i, j, d) -> (b, i, j)>
#p_s = affine_map<(b, i, e, j) -> (b, i, j)>
#p_v = affine_map<(b, i, e, j) -> (b, j, e)>
#p_o = affine_map<(b, i, e, j) -> (b, i, e)>
#all = affine_map<(b, i, j) -> (b, i, j)>

// CHECK-LABEL: func.func @half_window(
// CHECK-NOT:     arith.extf
// CHECK:         diffattn.attention ins(%{{.+}}, %{{.+}}, %{{.+}} : tensor<3x1x7x4xbf16>, tensor<3x1x7x4xbf16>, tensor<3x1x7x12xbf16>)
// CHECK-SAME:      is_causal
// CHECK-SAME:      window = array<i64: 1, -1>
// CHECK-SAME:      -> tensor<3x1x7x12xbf16>
func.func @half_window(%q: !hq, %k: !hq, %v: !hv) -> !hv {
  %zero = arith.constant 0.0 : f32
  %minus = arith.constant 0xFF800000 : f32
  %c2 = arith.constant 2 : index
  %es = tensor.empty() : !hs
  %zs = linalg.fill ins(%zero : f32) outs(%es : !hs) -> !hs
  %s = linalg.generic {indexing_maps = [#h_q, #h_k, #h_s], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%q, %k : !hq, !hq) outs(%zs : !hs) {
  ^bb0(%x: bf16, %y: bf16, %acc: f32):
    %xf = arith.extf %x : bf16 to f32
    %yf = arith.extf %y : bf16 to f32
    %p = arith.mulf %xf, %yf : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> !hs
  %m = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s : !hs) outs(%es : !hs) {
  ^bb0(%x: f32, %_: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %back = arith.subi %i, %j : index
    %near = arith.cmpi ult, %back, %c2 : index
    %n = arith.select %near, %x, %minus : f32
    linalg.yield %n : f32
  } -> !hs
  %a = linalg.softmax dimension(2) ins(%m : !hs) outs(%es : !hs) -> !hs
  %eo = tensor.empty() : tensor<3x7x12xf32>
  %zo = linalg.fill ins(%zero : f32) outs(%eo : tensor<3x7x12xf32>) -> tensor<3x7x12xf32>
  // expected-remark @below {{[Passed] Raised | Category:diffattn-fuse | Remark="one map became a diffattn.attention"}}
  %o = linalg.generic {indexing_maps = [#p_s, #p_v, #p_o], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%a, %v : !hs, !hv) outs(%zo : tensor<3x7x12xf32>) {
  ^bb0(%x: f32, %y: bf16, %acc: f32):
    %yf = arith.extf %y : bf16 to f32
    %p = arith.mulf %x, %yf : f32
    %n = arith.addf %acc, %p : f32
    linalg.yield %n : f32
  } -> tensor<3x7x12xf32>
  %er = tensor.empty() : !hv
  %r = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%o : tensor<3x7x12xf32>) outs(%er : !hv) {
  ^bb0(%x: f32, %_: bf16):
    %n = arith.truncf %x : f32 to bf16
    linalg.yield %n : bf16
  } -> !hv
  return %r : !hv
}

// A gate and a factor behind the values are parts of the op.

// CHECK-LABEL: func.func @gated(
// CHECK:         %[[O:.+]] = diffattn.attention ins(
// CHECK-SAME:      gate(%{{.+}} : tensor<6x1x20x32xf32>)
// CHECK-SAME:      out_scale = 5.000000e-01
func.func @gated(%q: !q, %kt: !kt, %v: !v, %g: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %half = arith.constant dense<0.5> : !v
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s = linalg.batch_matmul ins(%q, %kt : !q, !kt) outs(%zs : !s) -> !s
  %a = linalg.softmax dimension(2) ins(%s : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Passed] Raised | Category:diffattn-fuse | Remark="one map became a diffattn.attention"}}
  %o = linalg.batch_matmul ins(%a, %v : !s, !v) outs(%zv : !v) -> !v
  %w = linalg.generic {indexing_maps = [#all, #all, #all], iterator_types = ["parallel", "parallel", "parallel"]} ins(%o, %g : !v, !v) outs(%ev : !v) {
  ^bb0(%x: f32, %y: f32, %_: f32):
    %n = arith.negf %y : f32
    %e = math.exp %n : f32
    %d = arith.addf %e, %one : f32
    %open = arith.divf %one, %d : f32
    %r = arith.mulf %x, %open : f32
    linalg.yield %r : f32
  } -> !v
  %r = arith.mulf %w, %half : !v
  return %r : !v
}

// A score of each head beside those of the keys, whose weight is dropped: a sink.

// CHECK-LABEL: func.func @sink(
// CHECK-SAME:    %[[SINK:[^:]+]]: tensor<6xf32>)
// CHECK-NOT:     linalg.softmax
// CHECK:         diffattn.attention ins(
// CHECK-SAME:      sink(%[[SINK]] : tensor<6xf32>) outs(
// CHECK-NOT:     tensor.concat
func.func @sink(%q: !q, %k: !kt, %v: !v, %sink: tensor<6xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s = linalg.batch_matmul ins(%q, %k : !q, !kt) outs(%zs : !s) -> !s
  %eb = tensor.empty() : tensor<6x20xf32>
  %rows = linalg.broadcast ins(%sink : tensor<6xf32>) outs(%eb : tensor<6x20xf32>) dimensions = [1]
  %column = tensor.expand_shape %rows [[0], [1, 2]] output_shape [6, 20, 1] : tensor<6x20xf32> into tensor<6x20x1xf32>
  %all = tensor.concat dim(2) %s, %column : (!s, tensor<6x20x1xf32>) -> tensor<6x20x21xf32>
  %ea = tensor.empty() : tensor<6x20x21xf32>
  %a = linalg.softmax dimension(2) ins(%all : tensor<6x20x21xf32>) outs(%ea : tensor<6x20x21xf32>) -> tensor<6x20x21xf32>
  %w = tensor.extract_slice %a[0, 0, 0] [6, 20, 20] [1, 1, 1] : tensor<6x20x21xf32> to !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Passed] Raised | Category:diffattn-fuse | Remark="one map became a diffattn.attention"}}
  %o = linalg.batch_matmul ins(%w, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}
