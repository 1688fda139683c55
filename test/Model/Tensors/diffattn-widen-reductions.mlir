// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-widen-reductions),canonicalize)" | FileCheck %s
#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>

// What a sum begins with, its terms and their factors are f32; it is rounded once.
// CHECK-LABEL: func.func @squares(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<4x?xbf16>
// CHECK:         %[[ZERO:.+]] = arith.constant 0.000000e+00 : f32
// CHECK:         %[[INIT:.+]] = linalg.fill ins(%[[ZERO]] : f32) outs(%{{.+}} : tensor<4xf32>)
// CHECK:         %[[SUM:.+]] = linalg.generic {{.*}} ins(%[[X]] : tensor<4x?xbf16>) outs(%[[INIT]] : tensor<4xf32>)
// CHECK:         ^bb0(%[[A:.+]]: bf16, %[[OUT:.+]]: f32):
// CHECK-NEXT:      %[[WIDE:.+]] = arith.extf %[[A]]
// CHECK-NEXT:      %[[SQUARE:.+]] = arith.mulf %[[WIDE]], %[[WIDE]] : f32
// CHECK-NEXT:      arith.addf %[[SQUARE]], %[[OUT]] : f32
// CHECK:         linalg.generic {{.*}} ins(%[[SUM]] : tensor<4xf32>)
// CHECK:           arith.truncf
func.func @squares(%x: tensor<4x?xbf16>) -> tensor<4xbf16> {
  %zero = arith.constant 0.0 : bf16
  %e = tensor.empty() : tensor<4xbf16>
  %f = linalg.fill ins(%zero : bf16) outs(%e : tensor<4xbf16>) -> tensor<4xbf16>
  %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<4x?xbf16>) outs(%f : tensor<4xbf16>) {
  ^bb0(%a: bf16, %o: bf16):
    %s = arith.mulf %a, %a : bf16
    %t = arith.addf %s, %o : bf16
    linalg.yield %t : bf16
  } -> tensor<4xbf16>
  return %r : tensor<4xbf16>
}

// A sum that goes on from a tensor, rounded after each term, and an extreme.
// CHECK-LABEL: func.func @both(
// CHECK:         %[[R:.+]]:2 = linalg.generic {{.*}} outs(%{{.+}}, %{{.+}} : tensor<4xf32>, tensor<4xf32>)
// CHECK:           %[[SUM:.+]] = arith.addf %{{.+}}, %{{.+}} : f32
// CHECK:           %[[MOST:.+]] = arith.maximumf %{{.+}}, %{{.+}} : f32
// CHECK:           linalg.yield %[[SUM]], %[[MOST]]
func.func @both(%x: tensor<4x8xf32>, %h: tensor<4x8xf16>, %init: tensor<4xf16>, %least: tensor<4xf16>) -> (tensor<4xf16>, tensor<4xf16>) {
  %r:2 = linalg.generic {indexing_maps = [#id, #id, #row, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x, %h : tensor<4x8xf32>, tensor<4x8xf16>) outs(%init, %least : tensor<4xf16>, tensor<4xf16>) {
  ^bb0(%a: f32, %b: f16, %o: f16, %p: f16):
    %w = arith.extf %o : f16 to f32
    %t = arith.addf %w, %a : f32
    %n = arith.truncf %t : f32 to f16
    %m = arith.maximumf %b, %p : f16
    linalg.yield %n, %m : f16, f16
  } -> (tensor<4xf16>, tensor<4xf16>)
  return %r#0, %r#1 : tensor<4xf16>, tensor<4xf16>
}

// What uses a sum so far for more stays.
// CHECK-LABEL: func.func @running(
// CHECK:         arith.addf %{{.+}}, %{{.+}} : bf16
func.func @running(%x: tensor<4x8xbf16>, %init: tensor<4xbf16>) -> tensor<4xbf16> {
  %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<4x8xbf16>) outs(%init : tensor<4xbf16>) {
  ^bb0(%a: bf16, %o: bf16):
    %s = arith.mulf %a, %o : bf16
    %t = arith.addf %s, %o : bf16
    linalg.yield %t : bf16
  } -> tensor<4xbf16>
  return %r : tensor<4xbf16>
}

// Ops by their names are convolutions and pools.
// CHECK-LABEL: func.func @windows(
// CHECK:         %[[WIDE:.+]] = linalg.generic {{.*}} ins(%{{.+}}, %{{.+}} : tensor<1x4x4x8xf16>, tensor<3x3x8x2xf16>) outs(%{{.+}} : tensor<1x2x2x2xf32>)
// CHECK:         arith.truncf %{{.+}} : f32 to f16
// CHECK:         linalg.generic {{.*}} outs(%{{.+}} : tensor<1x3x3x8xf32>)
// CHECK:         linalg.generic {{.*}} outs(%{{.+}} : tensor<1x3x3x8xf32>)
// CHECK:           arith.maximumf %{{.+}}, %{{.+}} : f32
func.func @windows(%x: tensor<1x4x4x8xf16>, %w: tensor<3x3x8x2xf16>, %size: tensor<2x2xf16>, %a: tensor<1x2x2x2xf16>, %b: tensor<1x3x3x8xf16>)
    -> (tensor<1x2x2x2xf16>, tensor<1x3x3x8xf16>, tensor<1x3x3x8xf16>) {
  %y = linalg.conv_2d_nhwc_hwcf ins(%x, %w : tensor<1x4x4x8xf16>, tensor<3x3x8x2xf16>) outs(%a : tensor<1x2x2x2xf16>) -> tensor<1x2x2x2xf16>
  %s = linalg.pooling_nhwc_sum ins(%x, %size : tensor<1x4x4x8xf16>, tensor<2x2xf16>) outs(%b : tensor<1x3x3x8xf16>) -> tensor<1x3x3x8xf16>
  %m = linalg.pooling_nhwc_max ins(%x, %size : tensor<1x4x4x8xf16>, tensor<2x2xf16>) outs(%b : tensor<1x3x3x8xf16>) -> tensor<1x3x3x8xf16>
  return %y, %s, %m : tensor<1x2x2x2xf16>, tensor<1x3x3x8xf16>, tensor<1x3x3x8xf16>
}

// The greatest one and its place: what compares with the greatest one so far
// sees it in its own type, and the result is cut, not rounded, so that it is one
// of the elements also where it is subnormal.
// CHECK-LABEL: func.func @place(
// CHECK:         linalg.generic {{.*}} outs(%{{.+}}, %{{.+}} : tensor<4xf32>, tensor<4xi64>)
// CHECK:         ^bb0(%[[A:.+]]: bf16, %[[SO_FAR:.+]]: f32, %{{.+}}: i64):
// CHECK-DAG:       %[[MOST:.+]] = arith.maximumf %{{.+}}, %[[SO_FAR]] : f32
// CHECK-DAG:       %[[BITS:.+]] = arith.bitcast %[[SO_FAR]] : f32 to i32
// CHECK-DAG:       %[[UPPER:.+]] = arith.shrui %[[BITS]]
// CHECK-DAG:       %[[CUT:.+]] = arith.trunci %[[UPPER]] : i32 to i16
// CHECK-DAG:       %[[NARROW:.+]] = arith.bitcast %[[CUT]] : i16 to bf16
// CHECK:           arith.cmpf ogt, %[[A]], %[[NARROW]] : bf16
// CHECK-NOT:     arith.truncf
func.func @place(%x: tensor<4x8xbf16>, %least: tensor<4xbf16>, %none: tensor<4xi64>) -> (tensor<4xbf16>, tensor<4xi64>) {
  %r:2 = linalg.generic {indexing_maps = [#id, #row, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<4x8xbf16>) outs(%least, %none : tensor<4xbf16>, tensor<4xi64>) {
  ^bb0(%a: bf16, %o: bf16, %p: i64):
    %i = linalg.index 1 : index
    %n = arith.index_cast %i : index to i64
    %m = arith.maximumf %a, %o : bf16
    %g = arith.cmpf ogt, %a, %o : bf16
    %q = arith.select %g, %n, %p : i64
    linalg.yield %m, %q : bf16, i64
  } -> (tensor<4xbf16>, tensor<4xi64>)
  return %r#0, %r#1 : tensor<4xbf16>, tensor<4xi64>
}
