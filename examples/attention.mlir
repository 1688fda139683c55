// A layer of causal differential attention: batch and length are free, 8 heads of 64 with values of 128, and the norm that
// models put behind it. docs/runner.md runs it.
!q = tensor<?x8x?x64xf32>
!v = tensor<?x8x?x128xf32>
func.func @attention(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !v, %lambda: tensor<8xf32>) -> !v {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %b = tensor.dim %q1, %c0 : !q
  %t = tensor.dim %q1, %c2 : !q
  %init = tensor.empty(%b, %t) : !v
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !q, !q, !q, !v) lambda(%lambda : tensor<8xf32>) outs(%init : !v)
         {scale = 0.125 : f32, is_causal, norm = #diffattn.norm<rms>, out_scale = 0.8 : f32} -> !v
  return %o : !v
}
