// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_80})" --remark-format=emitRemark --remarks-filter=diffattn-gpu 2>&1 | FileCheck %s --check-prefix=SAYS
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_80})" | FileCheck %s

!q = tensor<1x4x?x64xbf16>
!v = tensor<1x4x?x128xbf16>
!lse = tensor<1x4x?xf32>

// CHECK-LABEL: func.func @saved
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32>]
// SAYS: Summary="gradients of attention are GPU kernels"
func.func @saved(%q: !q, %v: !v, %l: tensor<f32>, %lse: !lse, %dl: tensor<f32>) -> tensor<f32> {
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) d_out(%v : !v) lambda(%l : tensor<f32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%v : !v) o2(%v : !v) outs(d_lambda(%dl : tensor<f32>)) {scale = 0.125 : f32} -> tensor<f32>
  return %r : tensor<f32>
}

// CHECK-LABEL: func.func @not_saved
// CHECK-NOT: schedules
// SAYS: Reason="expected o2, but got none", Summary="gradients of attention have no GPU kernels"
func.func @not_saved(%q: !q, %v: !v, %l: tensor<f32>, %lse: !lse, %dl: tensor<f32>) -> tensor<f32> {
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) d_out(%v : !v) lambda(%l : tensor<f32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%v : !v) outs(d_lambda(%dl : tensor<f32>)) {scale = 0.125 : f32} -> tensor<f32>
  return %r : tensor<f32>
}

// Narrower tiles beside more sums.
// CHECK-LABEL: func.func @of_values
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32>]
func.func @of_values(%q: !q, %v: !v, %lse: !lse) -> !v {
  %r = diffattn.attention_backward ins(%q, %q, %v : !q, !q, !v) d_out(%v : !v) lse1(%lse : !lse) x(%v : !v) outs(d_v(%v : !v)) {scale = 0.125 : f32} -> !v
  return %r : !v
}
// CHECK-LABEL: func.func @of_wide_keys
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 16, query_warps = 4, kv_block_size = 16>]
func.func @of_wide_keys(%q: !v, %k: !v, %l: tensor<f32>, %lse: !lse) -> !v {
  %r = diffattn.attention_backward ins(%q, %q, %q, %k, %q : !v, !v, !v, !v, !v) d_out(%q : !v) lambda(%l : tensor<f32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !v) o2(%q : !v) outs(d_k2(%k : !v)) {scale = 0.125 : f32} -> !v
  return %r : !v
}

// Scores in part by elements take registers too.
// CHECK-LABEL: func.func @of_a_softcap
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 16, query_warps = 4, kv_block_size = 16>]
func.func @of_a_softcap(%q: !q, %k: !q, %v: !v, %l: tensor<f32>, %lse: !lse) -> !q {
  %r = diffattn.attention_backward ins(%q, %q, %q, %k, %v : !q, !q, !q, !q, !v) d_out(%v : !v) lambda(%l : tensor<f32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%v : !v) o2(%v : !v) outs(d_k2(%k : !q)) {scale = 0.125 : f32, softcap = 9.0 : f32} -> !q
  return %r : !q
}
// CHECK-LABEL: func.func @of_wide_keys_and_segments
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 16, query_warps = 4, kv_block_size = 16>]
func.func @of_wide_keys_and_segments(%q: !v, %k: !v, %l: tensor<f32>, %lse: !lse, %s: tensor<1x?xi32>) -> !v {
  %r = diffattn.attention_backward ins(%q, %q, %q, %k, %q : !v, !v, !v, !v, !v) d_out(%q : !v) lambda(%l : tensor<f32>)
         q_segments(%s : tensor<1x?xi32>) kv_segments(%s : tensor<1x?xi32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !v) o2(%q : !v) outs(d_k2(%k : !v)) {scale = 0.125 : f32} -> !v
  return %r : !v
}

// Sums of one gradient fit in any case, and blocks have fewer warps where rows do not fit in shared memory.
// CHECK-LABEL: func.func @of_wide_values
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 16, query_warps = 4, kv_block_size = 32>]
func.func @of_wide_values(%q: !q, %v: tensor<1x4x?x256xbf16>, %lse: !lse) -> !q {
  %r = diffattn.attention_backward ins(%q, %q, %v : !q, !q, tensor<1x4x?x256xbf16>) d_out(%v : tensor<1x4x?x256xbf16>) lse1(%lse : !lse)
         x(%v : tensor<1x4x?x256xbf16>) outs(d_q1(%q : !q)) {scale = 0.125 : f32} -> !q
  return %r : !q
}

!w = tensor<1x4x?x256xbf16>
// CHECK-LABEL: func.func @of_the_widest
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 2, q_block_size = 16, query_warps = 2, kv_block_size = 16>]
func.func @of_the_widest(%q: !w, %k: !w, %l: tensor<f32>, %lse: !lse) -> !w {
  %r = diffattn.attention_backward ins(%q, %q, %q, %k, %q : !w, !w, !w, !w, !w) d_out(%q : !w) lambda(%l : tensor<f32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !w) o2(%q : !w) outs(d_k2(%k : !w)) {scale = 0.125 : f32} -> !w
  return %r : !w
}

// CHECK-LABEL: func.func @of_wider_heads
// CHECK-NOT: schedules
// SAYS: Reason="expected a width of heads up to 256, but got 320"
func.func @of_wider_heads(%q: tensor<1x4x?x320xbf16>, %v: !v, %lse: !lse) -> tensor<1x4x?x320xbf16> {
  %r = diffattn.attention_backward ins(%q, %q, %v : tensor<1x4x?x320xbf16>, tensor<1x4x?x320xbf16>, !v) d_out(%v : !v) lse1(%lse : !lse)
         x(%v : !v) outs(d_q1(%q : tensor<1x4x?x320xbf16>)) {scale = 0.125 : f32} -> tensor<1x4x?x320xbf16>
  return %r : tensor<1x4x?x320xbf16>
}

// CHECK-LABEL: func.func @of_f32
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32>]
func.func @of_f32(%q: tensor<1x4x?x64xf32>, %lse: !lse) -> tensor<1x4x?x64xf32> {
  %r = diffattn.attention_backward ins(%q, %q, %q : tensor<1x4x?x64xf32>, tensor<1x4x?x64xf32>, tensor<1x4x?x64xf32>) d_out(%q : tensor<1x4x?x64xf32>)
         lse1(%lse : !lse) x(%q : tensor<1x4x?x64xf32>) outs(d_q1(%q : tensor<1x4x?x64xf32>)) {scale = 0.125 : f32} -> tensor<1x4x?x64xf32>
  return %r : tensor<1x4x?x64xf32>
}

// CHECK-LABEL: func.func @of_a_bias
// CHECK-NOT: schedules
// SAYS: Reason="expected no d_bias, but got one"
func.func @of_a_bias(%q: !q, %lse: !lse, %b: tensor<1x1x?x?xbf16>) -> tensor<1x1x?x?xbf16> {
  %r = diffattn.attention_backward ins(%q, %q, %q : !q, !q, !q) d_out(%q : !q) bias(%b : tensor<1x1x?x?xbf16>)
         lse1(%lse : !lse) x(%q : !q) outs(d_bias(%b : tensor<1x1x?x?xbf16>)) {scale = 0.125 : f32} -> tensor<1x1x?x?xbf16>
  return %r : tensor<1x1x?x?xbf16>
}

// CHECK-LABEL: func.func @of_other_heads
// CHECK-NOT: schedules
// SAYS: Reason="expected as many heads of k1 as of k2 and v, but got others"
func.func @of_other_heads(%q: !q, %v: tensor<1x2x?x64xbf16>, %lse: !lse) -> !q {
  %r = diffattn.attention_backward ins(%q, %q, %v : !q, !q, tensor<1x2x?x64xbf16>) d_out(%q : !q)
         lse1(%lse : !lse) x(%q : !q) outs(d_q1(%q : !q)) {scale = 0.125 : f32} -> !q
  return %r : !q
}

// CHECK-LABEL: func.func @packed
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32>]
// SAYS: Summary="gradients of attention are GPU kernels"
func.func @packed(%q: !q, %v: !v, %lse: !lse, %w: tensor<128xbf16>, %b: tensor<3xi32>) -> tensor<128xbf16> {
  %r = diffattn.attention_backward ins(%q, %q, %v : !q, !q, !v) d_out(%v : !v) norm_weight(%w : tensor<128xbf16>)
         cu_seqlens_q(%b : tensor<3xi32>) cu_seqlens_k(%b : tensor<3xi32>) lse1(%lse : !lse) x(%v : !v)
         outs(d_norm_weight(%w : tensor<128xbf16>)) {scale = 0.125 : f32, norm = #diffattn.norm<rms>} -> tensor<128xbf16>
  return %r : tensor<128xbf16>
}

// CHECK-LABEL: func.func @wide
// CHECK-NOT: schedules
// SAYS: Reason="expected a width of values up to 256, but got 320"
func.func @wide(%q: !q, %v: tensor<1x4x?x320xbf16>, %lse: !lse, %w: tensor<320xbf16>) -> tensor<320xbf16> {
  %r = diffattn.attention_backward ins(%q, %q, %v : !q, !q, tensor<1x4x?x320xbf16>) d_out(%v : tensor<1x4x?x320xbf16>) norm_weight(%w : tensor<320xbf16>)
         lse1(%lse : !lse) x(%v : tensor<1x4x?x320xbf16>)
         outs(d_norm_weight(%w : tensor<320xbf16>)) {scale = 0.125 : f32, norm = #diffattn.norm<rms>} -> tensor<320xbf16>
  return %r : tensor<320xbf16>
}
