// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" --remarks-filter="diffattn.*" --remark-format=emitRemark --verify-diagnostics | FileCheck %s

// A difference of softmaxes that is not followed is told, whatever stands between, and whatever the softmaxes are.

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
!r = tensor<6x20xf32>
#s = affine_map<(b, i, j) -> (b, i, j)>
#i = affine_map<(b, i, j) -> (b, i)>
#j = affine_map<(b, i, j) -> (j)>

// A map that a branch chooses.

// CHECK-LABEL: func.func @branch(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @branch(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %early: i1) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m2 = scf.if %early -> (!s) {
    scf.yield %a2 : !s
  } else {
    %weighted = arith.mulf %a2, %ls : !s
    scf.yield %weighted : !s
  }
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="what lies between two softmaxes and their difference is not understood", Remark="arith.subf stays"}}
  %d = arith.subf %a1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %out : !v
}

// A loop that adds up products.

// CHECK-LABEL: func.func @loop(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @loop(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %times: index) -> !v {
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
  %o2 = linalg.batch_matmul ins(%a2, %v : !s, !v) outs(%zv : !v) -> !v
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %ls = tensor.splat %l : !v
  %m2 = scf.for %k = %c0 to %times step %c1 iter_args(%o = %o2) -> (!v) {
    %next = arith.mulf %o, %ls : !v
    scf.yield %next : !v
  }
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="what lies between two softmaxes and their difference is not understood", Remark="arith.subf stays"}}
  %out = arith.subf %o1, %m2 : !v
  return %out : !v
}

// A sum of weighted powers is not what the powers are divided by in a softmax.

// CHECK-LABEL: func.func @weighted_sum(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @weighted_sum(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %weights: tensor<20xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %e2 = math.exp %s2 : !s
  %er = tensor.empty() : !r
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %sum = linalg.generic {indexing_maps = [#s, #j, #i], iterator_types = ["parallel", "parallel", "reduction"]} ins(%e2, %weights : !s, tensor<20xf32>) outs(%zr : !r) {
  ^bb0(%x: f32, %w: f32, %acc: f32):
    %p = arith.mulf %x, %w : f32
    %t = arith.addf %acc, %p : f32
    linalg.yield %t : f32
  } -> !r
  %a2 = linalg.generic {indexing_maps = [#s, #i, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%e2, %sum : !s, !r) outs(%es : !s) {
  ^bb0(%x: f32, %t: f32, %o: f32):
    %p = arith.divf %x, %t : f32
    linalg.yield %p : f32
  } -> !s
  %ls = tensor.splat %l : !s
  %m = arith.mulf %a2, %ls : !s
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="a difference of softmaxes, one of which is not understood", Remark="arith.subf stays"}}
  %d = arith.subf %a1, %m : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %out : !v
}

// A difference that the sum of its squares and its norm each make for themselves.

// CHECK-LABEL: func.func @inside_a_norm(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @inside_a_norm(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !r {
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
  %o2 = linalg.batch_matmul ins(%a2, %v : !s, !v) outs(%zv : !v) -> !v
  %er = tensor.empty() : !r
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="what lies between two softmaxes and their difference is not understood", Remark="linalg.generic stays"}}
  %out = linalg.generic {indexing_maps = [#s, #s, #i], iterator_types = ["parallel", "parallel", "reduction"]} ins(%o1, %o2 : !v, !v) outs(%zr : !r) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %w = arith.mulf %y, %l : f32
    %d = arith.subf %x, %w : f32
    %p = arith.mulf %d, %d : f32
    %t = arith.addf %acc, %p : f32
    linalg.yield %t : f32
  } -> !r
  return %out : !r
}

// Two attentions after each other, a norm of one, and heads of one that are added, are no difference. The first is one of one map.

// CHECK-LABEL: func.func @no_difference(
// CHECK:         diffattn.attention ins(%{{[^,]+}}, %{{[^,]+}}, %{{[^,]+}} :
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @no_difference(%q1: !q, %k1: !kt, %v: !v, %w: tensor<6x32x16xf32>) -> tensor<3x20x20xf32> {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Passed] Raised | Category:diffattn-fuse | Remark="one map became a diffattn.attention"}}
  %o1 = linalg.batch_matmul ins(%a1, %v : !s, !v) outs(%zv : !v) -> !v
  %er = tensor.empty() : !r
  %zr = linalg.fill ins(%zero : f32) outs(%er : !r) -> !r
  %mean = linalg.reduce ins(%o1 : !v) outs(%zr : !r) dimensions = [2] (%x: f32, %acc: f32) {
    %t = arith.addf %x, %acc : f32
    linalg.yield %t : f32
  }
  %centred = linalg.generic {indexing_maps = [#s, #i, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%o1, %mean : !v, !r) outs(%ev : !v) {
  ^bb0(%x: f32, %t: f32, %o: f32):
    %p = arith.subf %x, %t : f32
    linalg.yield %p : f32
  } -> !v
  %eq = tensor.empty() : !q
  %zq = linalg.fill ins(%zero : f32) outs(%eq : !q) -> !q
  %q2 = linalg.batch_matmul ins(%centred, %w : !v, tensor<6x32x16xf32>) outs(%zq : !q) -> !q
  %s2 = linalg.batch_matmul ins(%q2, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %x = tensor.extract_slice %a2[0, 0, 0] [3, 20, 20] [1, 1, 1] : !s to tensor<3x20x20xf32>
  %y = tensor.extract_slice %a2[3, 0, 0] [3, 20, 20] [1, 1, 1] : !s to tensor<3x20x20xf32>
  %out = arith.addf %x, %y : tensor<3x20x20xf32>
  return %out : tensor<3x20x20xf32>
}

// Halves of one softmax that are gathered by their elements, as ONNX writes them, with a product in packed tiles behind.

!half = tensor<3x20x20xf32>
#h = affine_map<(b, i, j) -> (b, i, j)>

// CHECK-LABEL: func.func @gathered(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @gathered(%q1: !q, %k1: !kt, %l: f32) -> tensor<3x3x3x7x8xf32> {
  %zero = arith.constant 0.0 : f32
  %c3 = arith.constant 3 : index
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %a = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %eh = tensor.empty() : !half
  %x = linalg.generic {indexing_maps = [#h], iterator_types = ["parallel", "parallel", "parallel"]} outs(%eh : !half) {
  ^bb0(%o: f32):
    %b = linalg.index 0 : index
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %e = tensor.extract %a[%b, %i, %j] : !s
    linalg.yield %e : f32
  } -> !half
  %y = linalg.generic {indexing_maps = [#h], iterator_types = ["parallel", "parallel", "parallel"]} outs(%eh : !half) {
  ^bb0(%o: f32):
    %b = linalg.index 0 : index
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %n = arith.addi %b, %c3 : index
    %e = tensor.extract %a[%n, %i, %j] : !s
    linalg.yield %e : f32
  } -> !half
  %ls = tensor.splat %l : !half
  %m = arith.mulf %y, %ls : !half
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="what lies between two softmaxes and their difference is not understood", Remark="arith.subf stays"}}
  %d = arith.subf %x, %m : !half
  %ep = tensor.empty() : tensor<3x3x3x7x8xf32>
  %p = linalg.pack %d padding_value(%zero : f32) inner_dims_pos = [2, 1] inner_tiles = [7, 8] into %ep : !half -> tensor<3x3x3x7x8xf32>
  return %p : tensor<3x3x3x7x8xf32>
}

// With one key nothing tells what runs along keys.

!k1t = tensor<6x16x1xf32>
!s1 = tensor<6x20x1xf32>

// CHECK-LABEL: func.func @one_key(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @one_key(%q1: !q, %k1: !k1t, %q2: !q, %k2: !k1t, %v: tensor<6x1x32xf32>, %l: !s1) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s1
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s1) -> !s1
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !k1t) outs(%zs : !s1) -> !s1
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !k1t) outs(%zs : !s1) -> !s1
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s1) outs(%es : !s1) -> !s1
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s1) outs(%es : !s1) -> !s1
  %m2 = arith.mulf %a2, %l : !s1
  %d = arith.subf %a1, %m2 : !s1
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{[Missed] NotRaised | Category:diffattn-fuse | Reason="there is one key, whose weight is 1 in both maps", Remark="linalg.batch_matmul stays"}}
  %o = linalg.batch_matmul ins(%d, %v : !s1, tensor<6x1x32xf32>) outs(%zv : !v) -> !v
  return %o : !v
}
