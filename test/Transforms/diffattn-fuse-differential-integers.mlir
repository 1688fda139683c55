// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" | FileCheck %s

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
#s = affine_map<(b, i, j) -> (b, i, j)>

// 0 <= i - j < 20 as one comparison: a negative number is a large one.

// CHECK-LABEL: func.func @range_check(
// CHECK:         diffattn.attention
// CHECK-NOT:     bias
// CHECK-SAME:      is_causal
func.func @range_check(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %m1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %d = arith.subi %i, %j : index
    %n = arith.constant 20 : index
    %vis = arith.cmpi ult, %d, %n : index
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %m2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %d = arith.subi %i, %j : index
    %n = arith.constant 20 : index
    %vis = arith.cmpi ult, %d, %n : index
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%m1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%m2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %out : !v
}

// The same of four keys, as what is hidden, with its operands swapped.

// CHECK-LABEL: func.func @range_check_hides(
// CHECK:         diffattn.attention
// CHECK-NOT:     bias
// CHECK-SAME:      is_causal
// CHECK-SAME:      window = array<i64: 3, -1>
func.func @range_check_hides(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %m1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %d = arith.subi %i, %j : index
    %n = arith.constant 4 : index
    %h = arith.cmpi ule, %n, %d : index
    %true = arith.constant true
    %vis = arith.xori %h, %true : i1
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %m2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %d = arith.subi %i, %j : index
    %n = arith.constant 4 : index
    %h = arith.cmpi ule, %n, %d : index
    %true = arith.constant true
    %vis = arith.xori %h, %true : i1
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%m1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%m2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %out : !v
}

// Keys behind the query.

// CHECK-LABEL: func.func @forward(
// CHECK:         diffattn.attention
// CHECK-NOT:     bias
// CHECK-NOT:     is_causal
// CHECK-SAME:      window = array<i64: 0, 4>
func.func @forward(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %m1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %d = arith.subi %j, %i : index
    %n = arith.constant 5 : index
    %vis = arith.cmpi ugt, %n, %d : index
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %m2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %d = arith.subi %j, %i : index
    %n = arith.constant 5 : index
    %vis = arith.cmpi ugt, %n, %d : index
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%m1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%m2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %out : !v
}

// Below the largest number lies every difference but -1.

// CHECK-LABEL: func.func @all_but_one(
// CHECK:         tensor.empty() : tensor<1x1x20x20xi1>
// CHECK-NEXT:    %[[BIAS:.+]] = linalg.generic
// CHECK:         diffattn.attention
// CHECK-SAME:      bias(%[[BIAS]] : tensor<1x1x20x20xi1>)
func.func @all_but_one(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %m1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %d = arith.subi %i, %j : index
    %n = arith.constant -1 : index
    %vis = arith.cmpi ult, %d, %n : index
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %m2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %d = arith.subi %i, %j : index
    %n = arith.constant -1 : index
    %vis = arith.cmpi ult, %d, %n : index
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%m1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%m2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %out : !v
}

// From query 8 on the sum does not fit into 8 bits, and is negative.

// CHECK-LABEL: func.func @wraps_around(
// CHECK:         tensor.empty() : tensor<1x1x20x20xi1>
// CHECK-NEXT:    %[[BIAS:.+]] = linalg.generic
// CHECK:           arith.addi %{{.+}}, %{{.+}} : i8
// CHECK:         diffattn.attention
// CHECK-SAME:      bias(%[[BIAS]] : tensor<1x1x20x20xi1>)
func.func @wraps_around(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %m1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %i8 = arith.index_cast %i : index to i8
    %j8 = arith.index_cast %j : index to i8
    %c = arith.constant 120 : i8
    %x = arith.addi %i8, %c : i8
    %vis = arith.cmpi sge, %x, %j8 : i8
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %m2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %i8 = arith.index_cast %i : index to i8
    %j8 = arith.index_cast %j : index to i8
    %c = arith.constant 120 : i8
    %x = arith.addi %i8, %c : i8
    %vis = arith.cmpi sge, %x, %j8 : i8
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%m1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%m2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %out : !v
}

// Here it fits.

// CHECK-LABEL: func.func @fits(
// CHECK:         diffattn.attention
// CHECK-NOT:     bias
// CHECK-SAME:      is_causal
func.func @fits(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %m1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %i8 = arith.index_cast %i : index to i8
    %j8 = arith.index_cast %j : index to i8
    %c = arith.constant 100 : i8
    %x = arith.addi %i8, %c : i8
    %y = arith.addi %j8, %c : i8
    %vis = arith.cmpi uge, %x, %y : i8
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %m2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %i8 = arith.index_cast %i : index to i8
    %j8 = arith.index_cast %j : index to i8
    %c = arith.constant 100 : i8
    %x = arith.addi %i8, %c : i8
    %y = arith.addi %j8, %c : i8
    %vis = arith.cmpi uge, %x, %y : i8
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%m1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%m2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %out : !v
}

// Division rounds towards zero: 3 keys behind the query are seen too.

// CHECK-LABEL: func.func @steps(
// CHECK:         diffattn.attention
// CHECK-NOT:     bias
// CHECK-SAME:      window = array<i64: -1, 3>
func.func @steps(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %ninf = arith.constant 0xFF800000 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %m1 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s1 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %i32 = arith.index_cast %i : index to i32
    %j32 = arith.index_cast %j : index to i32
    %d = arith.subi %i32, %j32 : i32
    %c = arith.constant 4 : i32
    %z = arith.constant 0 : i32
    %x = arith.divsi %d, %c : i32
    %vis = arith.cmpi sge, %x, %z : i32
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %m2 = linalg.generic {indexing_maps = [#s, #s], iterator_types = ["parallel", "parallel", "parallel"]} ins(%s2 : !s) outs(%es : !s) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 1 : index
    %j = linalg.index 2 : index
    %i32 = arith.index_cast %i : index to i32
    %j32 = arith.index_cast %j : index to i32
    %d = arith.subi %i32, %j32 : i32
    %c = arith.constant 4 : i32
    %z = arith.constant 0 : i32
    %x = arith.divsi %d, %c : i32
    %vis = arith.cmpi sge, %x, %z : i32
    %r = arith.select %vis, %a, %ninf : f32
    linalg.yield %r : f32
  } -> !s
  %a1 = linalg.softmax dimension(2) ins(%m1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%m2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m : !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %out : !v
}
