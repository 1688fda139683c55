// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" | FileCheck %s

!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>
#s = affine_map<(b, i, j) -> (b, i, j)>
#r = affine_map<(b, i, j, s) -> (b, s, i, j)>
#w = affine_map<(b, i, j, s) -> (b, s)>
#o = affine_map<(b, i, j, s) -> (b, i, j)>

// A concatenation as a body that chooses what it reads, as JAX writes it.

// CHECK-LABEL: func.func @chosen_pieces(
// CHECK-SAME:      %[[V:[a-z0-9]+]]: tensor<6x20x32xf32>
// CHECK-NOT:     linalg.softmax
// CHECK:         %[[VIEW:.+]] = tensor.expand_shape %[[V]]
// CHECK:         diffattn.attention ins(%{{.+}}, %{{.+}}, %{{.+}}, %{{.+}}, %[[VIEW]] :
// CHECK-NOT:     scf.if
// CHECK:         return
func.func @chosen_pieces(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m : !s
  %v1 = tensor.extract_slice %v[0, 0, 0] [6, 20, 16] [1, 1, 1] : !v to tensor<6x20x16xf32>
  %v2 = tensor.extract_slice %v[0, 0, 16] [6, 20, 16] [1, 1, 1] : !v to tensor<6x20x16xf32>
  %eh = tensor.empty() : tensor<6x20x16xf32>
  %zh = linalg.fill ins(%zero : f32) outs(%eh : tensor<6x20x16xf32>) -> tensor<6x20x16xf32>
  %o1 = linalg.batch_matmul ins(%d, %v1 : !s, tensor<6x20x16xf32>) outs(%zh : tensor<6x20x16xf32>) -> tensor<6x20x16xf32>
  %o2 = linalg.batch_matmul ins(%d, %v2 : !s, tensor<6x20x16xf32>) outs(%zh : tensor<6x20x16xf32>) -> tensor<6x20x16xf32>
  %ev = tensor.empty() : !v
  %c16 = arith.constant 16 : index
  %out = linalg.generic {indexing_maps = [#s], iterator_types = ["parallel", "parallel", "parallel"]} outs(%ev : !v) {
  ^bb0(%e: f32):
    %b = linalg.index 0 : index
    %i = linalg.index 1 : index
    %w = linalg.index 2 : index
    %first = arith.cmpi ult, %w, %c16 : index
    %r = scf.if %first -> (f32) {
      %x = tensor.extract %o1[%b, %i, %w] : tensor<6x20x16xf32>
      scf.yield %x : f32
    } else {
      %u = arith.subi %w, %c16 : index
      %x = tensor.extract %o2[%b, %i, %u] : tensor<6x20x16xf32>
      scf.yield %x : f32
    }
    linalg.yield %r : f32
  } -> !v
  return %out : !v
}

// Halves that change places are copied, each by itself.

// CHECK-LABEL: func.func @swapped_pieces(
// CHECK:         %[[SECOND:.+]] = tensor.extract_slice %[[V:.+]][0, 0, 16]
// CHECK:         %[[LOW:.+]] = tensor.expand_shape %[[SECOND]]
// CHECK:         %[[FIRST:.+]] = tensor.extract_slice %[[V]][0, 0, 0]
// CHECK:         %[[HIGH:.+]] = tensor.expand_shape %[[FIRST]]
// CHECK:         %[[BOTH:.+]] = tensor.empty() : tensor<6x1x20x32xf32>
// CHECK:         %[[HALF:.+]] = tensor.insert_slice %[[LOW]] into %[[BOTH]][0, 0, 0, 0]
// CHECK:         %[[COPY:.+]] = tensor.insert_slice %[[HIGH]] into %[[HALF]][0, 0, 0, 16]
// CHECK:         diffattn.attention ins(%{{.+}}, %{{.+}}, %{{.+}}, %{{.+}}, %[[COPY]] :
func.func @swapped_pieces(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m : !s
  %v1 = tensor.extract_slice %v[0, 0, 0] [6, 20, 16] [1, 1, 1] : !v to tensor<6x20x16xf32>
  %v2 = tensor.extract_slice %v[0, 0, 16] [6, 20, 16] [1, 1, 1] : !v to tensor<6x20x16xf32>
  %eh = tensor.empty() : tensor<6x20x16xf32>
  %zh = linalg.fill ins(%zero : f32) outs(%eh : tensor<6x20x16xf32>) -> tensor<6x20x16xf32>
  %o1 = linalg.batch_matmul ins(%d, %v1 : !s, tensor<6x20x16xf32>) outs(%zh : tensor<6x20x16xf32>) -> tensor<6x20x16xf32>
  %o2 = linalg.batch_matmul ins(%d, %v2 : !s, tensor<6x20x16xf32>) outs(%zh : tensor<6x20x16xf32>) -> tensor<6x20x16xf32>
  %ev = tensor.empty() : !v
  %c16 = arith.constant 16 : index
  %out = linalg.generic {indexing_maps = [#s], iterator_types = ["parallel", "parallel", "parallel"]} outs(%ev : !v) {
  ^bb0(%e: f32):
    %b = linalg.index 0 : index
    %i = linalg.index 1 : index
    %w = linalg.index 2 : index
    %first = arith.cmpi ult, %w, %c16 : index
    %r = scf.if %first -> (f32) {
      %x = tensor.extract %o2[%b, %i, %w] : tensor<6x20x16xf32>
      scf.yield %x : f32
    } else {
      %u = arith.subi %w, %c16 : index
      %x = tensor.extract %o1[%b, %i, %u] : tensor<6x20x16xf32>
      scf.yield %x : f32
    }
    linalg.yield %r : f32
  } -> !v
  return %out : !v
}

// Scores in one tensor, one softmax over both, and a product with [1, -lambda].

// CHECK-LABEL: func.func @stacked_scores(
// CHECK-NOT:     linalg.softmax
// CHECK:         diffattn.attention
// CHECK-NOT:     tensor<6x2x20x20xf32>
// CHECK:         return
func.func @stacked_scores(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v, %lam: tensor<6x1xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %both = tensor.concat dim(1) %s1, %s2 : (!s, !s) -> tensor<6x40x20xf32>
  %stack = tensor.expand_shape %both [[0], [1, 2], [3]] output_shape [6, 2, 20, 20] : tensor<6x40x20xf32> into tensor<6x2x20x20xf32>
  %em = tensor.empty() : tensor<6x2x20x20xf32>
  %a = linalg.softmax dimension(3) ins(%stack : tensor<6x2x20x20xf32>) outs(%em : tensor<6x2x20x20xf32>) -> tensor<6x2x20x20xf32>
  %one = arith.constant dense<1.0> : tensor<6x1xf32>
  %minus = arith.negf %lam : tensor<6x1xf32>
  %weights = tensor.concat dim(1) %one, %minus : (tensor<6x1xf32>, tensor<6x1xf32>) -> tensor<6x2xf32>
  %d = linalg.generic {indexing_maps = [#r, #w, #o], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%a, %weights : tensor<6x2x20x20xf32>, tensor<6x2xf32>) outs(%zs : !s) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %x, %y : f32
    %t = arith.addf %acc, %p : f32
    linalg.yield %t : f32
  } -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %out = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zv : !v) -> !v
  return %out : !v
}

// Products with two values each, whose heads lie side by side in a token: each
// part of the one value is transposed by itself, from where it lies.

// CHECK-LABEL: func.func @transposed_pieces(
// CHECK-SAME:      %[[V:[a-z0-9]+]]: tensor<20x12x16xf32>
// CHECK-DAG:     %[[FIRST:.+]] = tensor.extract_slice %[[V]][0, 0, 0] [20, 6, 16]
// CHECK-DAG:     %[[SECOND:.+]] = tensor.extract_slice %[[V]][0, 6, 0] [20, 6, 16]
// CHECK-DAG:     %[[LOW:.+]] = linalg.generic {{.+}} ins(%[[FIRST]] : tensor<20x6x16xf32>)
// CHECK-DAG:     %[[HIGH:.+]] = linalg.generic {{.+}} ins(%[[SECOND]] : tensor<20x6x16xf32>)
// CHECK:         %[[HALF:.+]] = tensor.insert_slice %[[LOW]] into
// CHECK:         %[[BOTH:.+]] = tensor.insert_slice %[[HIGH]] into %[[HALF]]
// CHECK:         diffattn.attention ins(%{{.+}}, %{{.+}}, %{{.+}}, %{{.+}}, %[[BOTH]] :
func.func @transposed_pieces(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: tensor<20x12x16xf32>, %l: f32) -> !v {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %ls = tensor.splat %l : !s
  %m = arith.mulf %a2, %ls : !s
  %d = arith.subf %a1, %m : !s
  %et = tensor.empty() : tensor<12x20x16xf32>
  %t = linalg.transpose ins(%v : tensor<20x12x16xf32>) outs(%et : tensor<12x20x16xf32>) permutation = [1, 0, 2]
  %v1 = tensor.extract_slice %t[0, 0, 0] [6, 20, 16] [1, 1, 1] : tensor<12x20x16xf32> to tensor<6x20x16xf32>
  %v2 = tensor.extract_slice %t[6, 0, 0] [6, 20, 16] [1, 1, 1] : tensor<12x20x16xf32> to tensor<6x20x16xf32>
  %eh = tensor.empty() : tensor<6x20x16xf32>
  %zh = linalg.fill ins(%zero : f32) outs(%eh : tensor<6x20x16xf32>) -> tensor<6x20x16xf32>
  %o1 = linalg.batch_matmul ins(%d, %v1 : !s, tensor<6x20x16xf32>) outs(%zh : tensor<6x20x16xf32>) -> tensor<6x20x16xf32>
  %o2 = linalg.batch_matmul ins(%d, %v2 : !s, tensor<6x20x16xf32>) outs(%zh : tensor<6x20x16xf32>) -> tensor<6x20x16xf32>
  %ev = tensor.empty() : !v
  %c16 = arith.constant 16 : index
  %out = linalg.generic {indexing_maps = [#s], iterator_types = ["parallel", "parallel", "parallel"]} outs(%ev : !v) {
  ^bb0(%e: f32):
    %b = linalg.index 0 : index
    %i = linalg.index 1 : index
    %w = linalg.index 2 : index
    %first = arith.cmpi ult, %w, %c16 : index
    %r = scf.if %first -> (f32) {
      %x = tensor.extract %o1[%b, %i, %w] : tensor<6x20x16xf32>
      scf.yield %x : f32
    } else {
      %u = arith.subi %w, %c16 : index
      %x = tensor.extract %o2[%b, %i, %u] : tensor<6x20x16xf32>
      scf.yield %x : f32
    }
    linalg.yield %r : f32
  } -> !v
  return %out : !v
}
