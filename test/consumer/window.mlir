// RUN: consumer-opt %s --consumer-limit-window=left=3
!t = tensor<1x2x8x16xf32>
func.func @attend(%q: !t, %k: !t, %v: !t, %l: tensor<f32>, %init: !t) -> !t {
  %o = diffattn.attention ins(%q, %k, %q, %k, %v : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>)
         outs(%init : !t) {scale = 0.25 : f32} -> !t
  return %o : !t
}
