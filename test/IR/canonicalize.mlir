// RUN: diffattn-opt %s --canonicalize --split-input-file | FileCheck %s

!q = tensor<1x4x8x16xf32>
!n = tensor<1x2x8x16xf32>
!o = tensor<1x4x8x32xf32>

// A constant lambda of 0: map 2 and what computed it are gone.
// CHECK-LABEL: func.func @no_second_map(
// CHECK-SAME:    %[[Q1:[^:]+]]: {{[^,]+}}, %[[Q2:[^:]+]]: {{[^,]+}}, %[[K1:[^:]+]]: {{[^,]+}}, %[[K2:[^:]+]]: {{[^,]+}}, %[[V:[^:]+]]:
// CHECK-NOT:     arith
// CHECK:         diffattn.attention ins(%[[Q1]], %[[K1]], %[[V]] : tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>, tensor<1x4x8x32xf32>)
// CHECK-SAME:      outs(
// CHECK-SAME:      {scale = 1.000000e+00 : f32}
func.func @no_second_map(%q1: !q, %q2: !n, %k1: !q, %k2: !n, %v: !o, %init: !o) -> !o {
  %l = arith.constant dense<0.0> : tensor<1x8x2xf32>
  %neg = arith.negf %q2 : !n
  %o = diffattn.attention ins(%q1, %k1, %neg, %k2, %v : !q, !q, !n, !n, !o)
         lambda(%l : tensor<1x8x2xf32>) outs(%init : !o) {scale = 1.0 : f32} -> !o
  return %o : !o
}

// So is the mean over queries, which lambda multiplies.
// CHECK-LABEL: func.func @no_integral(
// CHECK:         diffattn.attention ins({{[^,]+}}, {{[^,]+}}, {{[^,]+}} :
// CHECK-SAME:      {scale = 1.000000e+00 : f32}
func.func @no_integral(%q: !q, %v: !o, %init: !o) -> !o {
  %l = arith.constant dense<0.0> : tensor<f32>
  %o = diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !o) lambda(%l : tensor<f32>)
         outs(%init : !o) {scale = 1.0 : f32, integral} -> !o
  return %o : !o
}

// With map 2 goes its sink, but not where its sums are asked for.
// CHECK-LABEL: func.func @sums_of_no_second_map(
// CHECK:         diffattn.attention ins({{[^,]+}}, {{[^,]+}}, {{[^,]+}} :
// CHECK-SAME:      sink(%{{.*}}) outs(
// CHECK:         diffattn.attention {{.*}} lse2(
func.func @sums_of_no_second_map(%q: !q, %n: !n, %v: !o, %s: tensor<4xf32>, %s2: tensor<2xf32>, %m: tensor<1x2x8xf32>, %init: !o)
    -> (!o, !o, tensor<1x2x8xf32>) {
  %l = arith.constant dense<0.0> : tensor<f32>
  %a = diffattn.attention ins(%q, %q, %n, %n, %v : !q, !q, !n, !n, !o) lambda(%l : tensor<f32>) sink(%s : tensor<4xf32>)
         sink2(%s2 : tensor<2xf32>) outs(%init : !o) {scale = 1.0 : f32} -> !o
  %b:2 = diffattn.attention ins(%q, %q, %n, %n, %v : !q, !q, !n, !n, !o) lambda(%l : tensor<f32>)
         outs(%init : !o) lse2(%m : tensor<1x2x8xf32>) {scale = 1.0 : f32} -> !o, tensor<1x2x8xf32>
  return %a, %b#0, %b#1 : !o, !o, tensor<1x2x8xf32>
}

// Kernels that were chosen are of two maps.
// CHECK-LABEL: func.func @keep_schedule(
// CHECK:         diffattn.attention {{.*}} lambda(
func.func @keep_schedule(%q: !q, %v: !o, %init: !o) -> !o {
  %l = arith.constant dense<0.0> : tensor<f32>
  %o = diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !o) lambda(%l : tensor<f32>)
         outs(%init : !o) {scale = 1.0 : f32, schedules = [#diffattn.gpu_plain<warps = 4>]} -> !o
  return %o : !o
}

// sigmoid(0) is a half, and a bias by noise head fits no other map.
// CHECK-LABEL: func.func @keep_second_map(
// CHECK-SAME:    %[[Q1:[^:]+]]: {{[^,]+}}, %[[Q2:[^:]+]]: {{[^,]+}}, %[[K:[^:]+]]:
// CHECK:         diffattn.attention ins(%[[Q1]], %[[K]], %[[Q2]], %[[K]],
// CHECK:         diffattn.attention ins(%[[Q1]], %[[K]], %[[Q2]], %[[K]],
func.func @keep_second_map(%q1: !q, %q2: !n, %k: !n, %v: !o, %bias: tensor<1x2x8x8xf32>,
                           %init: !o) -> (!o, !o) {
  %l = arith.constant dense<0.0> : tensor<f32>
  %a = diffattn.attention ins(%q1, %k, %q2, %k, %v : !q, !n, !n, !n, !o) lambda(%l : tensor<f32>)
         outs(%init : !o) {scale = 1.0 : f32, lambda_act = #diffattn.activation<sigmoid>} -> !o
  %b = diffattn.attention ins(%q1, %k, %q2, %k, %v : !q, !n, !n, !n, !o) lambda(%l : tensor<f32>)
         bias(%bias : tensor<1x2x8x8xf32>) outs(%init : !o) {scale = 1.0 : f32} -> !o
  return %a, %b : !o, !o
}

// A power of two moves into the scale, from arith and from linalg.
// CHECK-LABEL: func.func @scale(
// CHECK-SAME:    %[[Q1:[^:]+]]: {{[^,]+}}, %[[Q2:[^:]+]]: {{[^,]+}}, %[[K:[^:]+]]:
// CHECK-NOT:     arith.mulf
// CHECK:         diffattn.attention ins(%[[Q1]], %[[K]], %[[Q2]], %[[K]],
// CHECK-SAME:      scale = 7.500000e-01 : f32
func.func @scale(%q1: !q, %q2: !q, %k: !q, %v: !o, %l: tensor<f32>, %init: !o) -> !o {
  %c = arith.constant dense<0.25> : !q
  %a = arith.mulf %q1, %c : !q
  %e = tensor.empty() : !q
  %s = arith.constant 0.25 : f32
  %b = linalg.generic {
      indexing_maps = [affine_map<(b, h, t, d) -> (b, h, t, d)>, affine_map<(b, h, t, d) -> (b, h, t, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%q2 : !q) outs(%e : !q) {
  ^bb0(%x: f32, %out: f32):
    %y = arith.mulf %x, %s : f32
    linalg.yield %y : f32
  } -> !q
  %o = diffattn.attention ins(%a, %k, %b, %k, %v : !q, !q, !q, !q, !o) lambda(%l : tensor<f32>)
         outs(%init : !o) {scale = 3.0 : f32} -> !o
  return %o : !o
}

// Of one map its queries are all.
// CHECK-LABEL: func.func @scale_of_one_map(
// CHECK-SAME:    %[[Q:[^:]+]]:
// CHECK-NOT:     arith.mulf
// CHECK:         diffattn.attention ins(%[[Q]],
// CHECK-SAME:      scale = 7.500000e-01 : f32
func.func @scale_of_one_map(%q: !q, %k: !q, %v: !o, %init: !o) -> !o {
  %c = arith.constant dense<0.25> : !q
  %a = arith.mulf %q, %c : !q
  %o = diffattn.attention ins(%a, %k, %v : !q, !q, !o) outs(%init : !o) {scale = 3.0 : f32} -> !o
  return %o : !o
}

// Other constants would round; different ones are two scales.
// CHECK-LABEL: func.func @keep_scale(
// CHECK-COUNT-3: arith.mulf
// CHECK:         diffattn.attention
// CHECK-SAME:      scale = 1.000000e+00 : f32
// CHECK:         diffattn.attention
// CHECK-SAME:      scale = 1.000000e+00 : f32
func.func @keep_scale(%q1: !q, %q2: !q, %k: !q, %v: !o, %l: tensor<f32>, %init: !o) -> (!o, !o) {
  %c = arith.constant dense<0.3> : !q
  %d = arith.constant dense<0.5> : !q
  %a = arith.mulf %q1, %c : !q
  %b = arith.mulf %q2, %c : !q
  %h = arith.mulf %q2, %d : !q
  %o = diffattn.attention ins(%a, %k, %b, %k, %v : !q, !q, !q, !q, !o) lambda(%l : tensor<f32>)
         outs(%init : !o) {scale = 1.0 : f32} -> !o
  %p = diffattn.attention ins(%a, %k, %h, %k, %v : !q, !q, !q, !q, !o) lambda(%l : tensor<f32>)
         outs(%init : !o) {scale = 1.0 : f32} -> !o
  return %o, %p : !o, !o
}

// Casts that forget sizes leave the operands, and the result is cast instead.
// CHECK-LABEL: func.func @casts(
// CHECK:         %[[O:.+]] = diffattn.attention
// CHECK-SAME:      outs(%{{.+}} : tensor<1x4x8x32xf32>)
// CHECK-SAME:      -> tensor<1x4x8x32xf32>
// CHECK:         %[[C:.+]] = tensor.cast %[[O]] : tensor<1x4x8x32xf32> to tensor<?x4x?x32xf32>
// CHECK:         return %[[C]]
func.func @casts(%q: !q, %v: !o, %l: tensor<f32>, %init: !o) -> tensor<?x4x?x32xf32> {
  %qd = tensor.cast %q : !q to tensor<?x4x?x16xf32>
  %vd = tensor.cast %v : !o to tensor<?x4x?x32xf32>
  %id = tensor.cast %init : !o to tensor<?x4x?x32xf32>
  %o = diffattn.attention ins(%qd, %qd, %qd, %qd, %vd : tensor<?x4x?x16xf32>,
         tensor<?x4x?x16xf32>, tensor<?x4x?x16xf32>, tensor<?x4x?x16xf32>, tensor<?x4x?x32xf32>)
         lambda(%l : tensor<f32>) outs(%id : tensor<?x4x?x32xf32>) {scale = 1.0 : f32}
         -> tensor<?x4x?x32xf32>
  return %o : tensor<?x4x?x32xf32>
}
