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

// Sinks and logarithms of sums are of the end, which takes the maxima that they are made of, of their map alone.
// CHECK-LABEL: func.func @sums(
// CHECK:         %[[STATE:.+]]:3 = diffattn.online_attention
// CHECK:         diffattn.finalize ins(%[[STATE]]#1, %[[STATE]]#2 : {{.*}}) max1(%[[STATE]]#0 : tensor<1x2x4xf32>) sink(%arg1 : tensor<2xf32>)
// CHECK-SAME:      outs(%arg0 : tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
// CHECK:         %[[STATES:.+]]:6 = diffattn.online_attention
// CHECK:         diffattn.finalize ins(%[[STATES]]#1, %[[STATES]]#2, %[[STATES]]#4, %[[STATES]]#5 : {{.*}}) lambda({{.*}}) max2(%[[STATES]]#3 : tensor<1x2x4xf32>)
// CHECK-SAME:      outs(%arg0 : tensor<1x2x4x8xf32>) lse2(%arg2 : tensor<1x2x4xf32>) -> tensor<1x2x4x8xf32>, tensor<1x2x4xf32>
// CHECK-NOT:     diffattn.attention
func.func @sums(%q: tensor<1x2x4x8xf32>, %s: tensor<2xf32>, %m: tensor<1x2x4xf32>, %l: tensor<f32>)
    -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) {
  %0 = diffattn.attention ins(%q, %q, %q : tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
       sink(%s : tensor<2xf32>) outs(%q : tensor<1x2x4x8xf32>) {scale = 0.5 : f32} -> tensor<1x2x4x8xf32>
  %1:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
       lambda(%l : tensor<f32>) outs(%q : tensor<1x2x4x8xf32>) lse2(%m : tensor<1x2x4xf32>) {scale = 0.5 : f32} -> tensor<1x2x4x8xf32>, tensor<1x2x4xf32>
  return %0, %1#0, %1#1 : tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>
}
