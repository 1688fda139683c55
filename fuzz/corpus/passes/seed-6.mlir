func.func(diffattn-fuse-differential)
!q = tensor<1x2x?x16xf32>
func.func @attend(%q: !q, %k: !q, %v: !q, %lambda: tensor<f32>, %o: !q) -> !q {
  %0 = diffattn.attention ins(%q, %k, %q, %k, %v : !q, !q, !q, !q, !q) lambda(%lambda : tensor<f32>)
      outs(%o : !q) {scale = 0.25 : f32, is_causal} -> !q
  return %0 : !q
}
