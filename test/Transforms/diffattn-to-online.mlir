// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-to-online))" | FileCheck %s

// All keys in one state: maxima begin at -inf, sums and products at 0. What follows the difference stays with its end.

// CHECK-LABEL: func.func @attention(
// CHECK-DAG:     %[[LEAST:.+]] = arith.constant 0xFF800000 : f32
// CHECK-DAG:     linalg.fill ins(%[[LEAST]] : f32)
// CHECK:         %[[STATE:.+]]:6 = diffattn.online_attention
// CHECK-SAME:      {is_causal, scale = 5.000000e-01 : f32}
// CHECK-NEXT:    diffattn.finalize ins(%[[STATE]]#1, %[[STATE]]#2, %[[STATE]]#4, %[[STATE]]#5
// CHECK-SAME:      norm = #diffattn.norm<rms>
// CHECK-NOT:     diffattn.attention
func.func @attention(%q1: tensor<1x2x4x8xf32>, %k1: tensor<1x2x6x8xf32>, %q2: tensor<1x2x4x8xf32>,
    %k2: tensor<1x2x6x8xf32>, %v: tensor<1x2x6x16xf32>, %lambda: tensor<f32>, %init: tensor<1x2x4x16xf32>) -> tensor<1x2x4x16xf32> {
  %0 = diffattn.attention ins(%q1, %k1, %q2, %k2, %v
         : tensor<1x2x4x8xf32>, tensor<1x2x6x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x6x8xf32>, tensor<1x2x6x16xf32>)
       lambda(%lambda : tensor<f32>) outs(%init : tensor<1x2x4x16xf32>) {scale = 0.5 : f32, is_causal, norm = #diffattn.norm<rms>} -> tensor<1x2x4x16xf32>
  return %0 : tensor<1x2x4x16xf32>
}

// States have no sinks, and no logarithms of sums.
// CHECK-LABEL: func.func @sums(
// CHECK:         diffattn.attention {{.*}} sink(
// CHECK:         diffattn.attention {{.*}} lse1(
func.func @sums(%q: tensor<1x2x4x8xf32>, %s: tensor<2xf32>, %m: tensor<1x2x4xf32>)
    -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) {
  %0 = diffattn.attention ins(%q, %q, %q : tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
       sink(%s : tensor<2xf32>) outs(%q : tensor<1x2x4x8xf32>) {scale = 0.5 : f32} -> tensor<1x2x4x8xf32>
  %1:2 = diffattn.attention ins(%q, %q, %q : tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
       outs(%q : tensor<1x2x4x8xf32>) lse1(%m : tensor<1x2x4xf32>) {scale = 0.5 : f32} -> tensor<1x2x4x8xf32>, tensor<1x2x4xf32>
  return %0, %1#0, %1#1 : tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>
}
