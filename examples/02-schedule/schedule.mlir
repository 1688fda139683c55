// A schedule by hand, in the place of the one that the compiler chooses: blocks of 24 queries and 64 keys, by 128-bit vectors.
#blocks = #diffattn.cpu_prefill<isa = "generic", lanes = 4, q_block_size = 24, qk_tile = [4, 3, 4], pv_tile = [3, 4, 4],
                                kv_block_size = 64, two_pass_keys = 16384>
!q = tensor<1x2x?x32xf32>
!v = tensor<1x2x?x64xf32>
func.func @attention(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !v, %lambda: tensor<f32>) -> !v {
  %c2 = arith.constant 2 : index
  %t = tensor.dim %q1, %c2 : !q
  %init = tensor.empty(%t) : !v
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !q, !q, !q, !v) lambda(%lambda : tensor<f32>) outs(%init : !v)
         {scale = 0.17677669 : f32, is_causal, schedules = [#blocks]} -> !v
  return %o : !v
}
