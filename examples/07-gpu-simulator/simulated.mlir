// Attention of bf16 that a GPU of capability 8.0 computes by its matrix units: 2 heads, 20 queries, 40 keys.
!q = tensor<1x2x20x32xbf16>
!k = tensor<1x2x40x32xbf16>
!v = tensor<1x2x40x64xbf16>
!o = tensor<1x2x20x64xbf16>
func.func @attention(%q1: !q, %k1: !k, %q2: !q, %k2: !k, %v: !v, %lambda: tensor<f32>) -> !o {
  %init = tensor.empty() : !o
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !k, !q, !k, !v) lambda(%lambda : tensor<f32>) outs(%init : !o)
         {scale = 0.17677669 : f32, is_causal} -> !o
  return %o : !o
}
