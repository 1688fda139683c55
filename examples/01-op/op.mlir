// Causal differential attention of 4 query heads, in pairs that share a key and value head, with the norm and the factor behind it.
!q = tensor<1x4x40x32xf32>
!k = tensor<1x2x40x32xf32>
!v = tensor<1x2x40x64xf32>
!o = tensor<1x4x40x64xf32>
func.func @attention(%q1: !q, %k1: !k, %q2: !q, %k2: !k, %v: !v, %lambda: tensor<4xf32>) -> !o {
  %init = tensor.empty() : !o
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !k, !q, !k, !v) lambda(%lambda : tensor<4xf32>) outs(%init : !o)
         {scale = 0.17677669 : f32, is_causal, norm = #diffattn.norm<rms>, out_scale = 0.8 : f32} -> !o
  return %o : !o
}
