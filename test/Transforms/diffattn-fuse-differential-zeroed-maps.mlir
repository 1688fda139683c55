// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" --remarks-filter="diffattn.*" --remark-format=emitRemark --verify-diagnostics | FileCheck %s

// Maps that are set to zero where a finite number hides their scores: a row that sees no key is zero then, as in the op.

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
!m = tensor<20xi1>
#s = affine_map<(b, i, j) -> (b, i, j)>
#j = affine_map<(b, i, j) -> (j)>
#i = affine_map<(b, i, j) -> (i)>

// The number alone would weigh all keys alike in such a row.

// CHECK-LABEL: func.func @finite(
// CHECK-NOT:     linalg.softmax
// CHECK:         diffattn.attention
// CHECK:         return
func.func @finite(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %m: !m, %n: !m) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %x1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p1, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+9 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %t1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a1, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p2, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+9 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %t2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a2, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %t2, %ls : !s
  %d = arith.subf %t1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Keys that -inf hides have no weight beside it.

// CHECK-LABEL: func.func @beside_infinity(
// CHECK-NOT:     linalg.softmax
// CHECK:         diffattn.attention
// CHECK:         return
func.func @beside_infinity(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %m: !m, %n: !m) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %w1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p1, %n : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0xFF800000 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %x1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%w1, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -3.40282347E+38 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %t1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a1, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %w2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p2, %n : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0xFF800000 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%w2, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -3.40282347E+38 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %t2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a2, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %t2, %ls : !s
  %d = arith.subf %t1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{two maps became one diffattn.attention}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Where the other number hides all other keys, these have weights that nothing sets to zero.

// CHECK-LABEL: func.func @two_numbers(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @two_numbers(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %m: !m, %n: !m) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %w1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p1, %n : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+9 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %x1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%w1, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+9 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %t1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a1, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %w2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p2, %n : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+9 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%w2, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+9 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %t2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a2, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %t2, %ls : !s
  %d = arith.subf %t1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{a map is set to zero under a condition that is not an empty row}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Other keys than those that are hidden.

// CHECK-LABEL: func.func @other_keys(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @other_keys(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %m: !m, %n: !m) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %x1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p1, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+9 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %t1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a1, %n : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p2, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+9 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %t2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a2, %n : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %t2, %ls : !s
  %d = arith.subf %t1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{a map is set to zero under a condition that is not an empty row}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// Queries, not keys.

// CHECK-LABEL: func.func @queries(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @queries(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %m: !m, %n: !m) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %x1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p1, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+9 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %t1 = linalg.generic {indexing_maps = [#s, #i, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a1, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p2, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+9 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %t2 = linalg.generic {indexing_maps = [#s, #i, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a2, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %t2, %ls : !s
  %d = arith.subf %t1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{a map is set to zero under a condition that is not an empty row}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// A number that hides no key.

// CHECK-LABEL: func.func @small_number(
// CHECK-NOT:     diffattn.attention
// CHECK:         return
func.func @small_number(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32, %m: !m, %n: !m) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %p1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %p2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %x1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p1, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+3 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%x1 : !s) outs(%es : !s) -> !s
  %t1 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a1, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %x2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%p2, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant -1.0e+3 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %a2 = linalg.softmax dimension(2) ins(%x2 : !s) outs(%es : !s) -> !s
  %t2 = linalg.generic {indexing_maps = [#s, #j, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%a2, %m : !s, !m) outs(%es : !s) {
  ^bb0(%in: f32, %c: i1, %out: f32):
    %fill = arith.constant 0.0 : f32
    %r = arith.select %c, %fill, %in : f32
    linalg.yield %r : f32
  } -> !s
  %ls = tensor.splat %l : !s
  %m2 = arith.mulf %t2, %ls : !s
  %d = arith.subf %t1, %m2 : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  // expected-remark @below {{a map is set to zero under a condition that is not an empty row}}
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}
