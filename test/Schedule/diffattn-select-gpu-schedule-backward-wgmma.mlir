// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90a})" --remark-format=emitRemark --remarks-filter=diffattn-gpu 2>&1 | FileCheck %s --check-prefix=SAYS
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90a})" | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90})" | FileCheck %s --check-prefix=PLAIN

!q = tensor<1x4x?x64xbf16>
!v = tensor<1x4x?x128xbf16>
!wide = tensor<1x4x?x128xf16>
!wider = tensor<1x4x?x192xf16>
!odd = tensor<1x4x?x36xbf16>
!lse = tensor<1x4x?xf32>

// PLAIN-NOT: wgmma

// CHECK-LABEL: func.func @wide_values
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32, wgmma_q_block_size = 64, wgmma_q_stages = 3, wgmma_kv_block_size = 64, wgmma_kv_stages = 4>]
func.func @wide_values(%q: !q, %k: !q, %v: !v, %l: tensor<f32>, %lse: !lse) -> !q {
  %r = diffattn.attention_backward ins(%q, %q, %q, %k, %v : !q, !q, !q, !q, !v) d_out(%v : !v) lambda(%l : tensor<f32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%v : !v) o2(%v : !v) outs(d_q1(%q : !q)) {scale = 0.125 : f32} -> !q
  return %r : !q
}

// CHECK-LABEL: func.func @both
// CHECK: wgmma_q_block_size = 64, wgmma_q_stages = 3, wgmma_kv_block_size = 64, wgmma_kv_stages = 4>]
func.func @both(%q: !q, %l: tensor<f32>, %lse: !lse) -> !q {
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) d_out(%q : !q) lambda(%l : tensor<f32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !q) o2(%q : !q) outs(d_v(%q : !q)) {scale = 0.125 : f32} -> !q
  return %r : !q
}

// Sums of two wide K and of V do not fit: only the kernel of queries is by warpgroups.
// CHECK-LABEL: func.func @two_wide_keys
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 16, query_warps = 4, kv_block_size = 16, wgmma_kv_block_size = 48, wgmma_kv_stages = 3>]
func.func @two_wide_keys(%q: !wide, %k: !wide, %l: tensor<f32>, %lse: !lse) -> !wide {
  %r = diffattn.attention_backward ins(%q, %q, %q, %k, %q : !wide, !wide, !wide, !wide, !wide) d_out(%q : !wide) lambda(%l : tensor<f32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !wide) o2(%q : !wide) outs(d_v(%q : !wide)) {scale = 0.125 : f32} -> !wide
  return %r : !wide
}

// CHECK-LABEL: func.func @one_wide_key
// CHECK: wgmma_q_block_size = 64, wgmma_q_stages = 2, wgmma_kv_block_size = 48, wgmma_kv_stages = 4>]
func.func @one_wide_key(%q: !wide, %l: tensor<f32>, %lse: !lse) -> !wide {
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %q : !wide, !wide, !wide, !wide, !wide) d_out(%q : !wide) lambda(%l : tensor<f32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !wide) o2(%q : !wide) outs(d_v(%q : !wide)) {scale = 0.125 : f32} -> !wide
  return %r : !wide
}

// CHECK-LABEL: func.func @one_map
// CHECK: wgmma_q_block_size = 64, wgmma_q_stages = 4, wgmma_kv_block_size = 64, wgmma_kv_stages = 4>]
func.func @one_map(%q: !q, %lse: !lse) -> !q {
  %r = diffattn.attention_backward ins(%q, %q, %q : !q, !q, !q) d_out(%q : !q) lse1(%lse : !lse) x(%q : !q) outs(d_v(%q : !q)) {scale = 0.125 : f32} -> !q
  return %r : !q
}

// CHECK-LABEL: func.func @one_wide_map
// CHECK: wgmma_q_block_size = 64, wgmma_q_stages = 3, wgmma_kv_block_size = 64, wgmma_kv_stages = 3>]
func.func @one_wide_map(%q: !wide, %lse: !lse) -> !wide {
  %r = diffattn.attention_backward ins(%q, %q, %q : !wide, !wide, !wide) d_out(%q : !wide) lse1(%lse : !lse) x(%q : !wide) outs(d_v(%q : !wide)) {scale = 0.125 : f32} -> !wide
  return %r : !wide
}

// Kernels by mma.sync take ops that those by warpgroups do not.
// CHECK-LABEL: func.func @wider_heads
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 16, query_warps = 4, kv_block_size = 16>]
// SAYS: Reason="expected widths of at most 128 and 128, but got 192 and 128", Summary="gradients of attention do not use wgmma"
func.func @wider_heads(%q: !wider, %k: !wider, %v: !wide, %l: tensor<f32>, %lse: !lse) -> !wide {
  %r = diffattn.attention_backward ins(%q, %q, %q, %k, %v : !wider, !wider, !wider, !wider, !wide) d_out(%v : !wide) lambda(%l : tensor<f32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%v : !wide) o2(%v : !wide) outs(d_v(%v : !wide)) {scale = 0.125 : f32} -> !wide
  return %r : !wide
}

// CHECK-LABEL: func.func @softcap_and_bias
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 16, query_warps = 4, kv_block_size = 16>]
// SAYS: Reason="expected widths that are multiples of 8, but got 36 and 36; expected no additive bias, but got one; expected no softcap, but got one", Summary="gradients of attention do not use wgmma"
func.func @softcap_and_bias(%q: !odd, %k: !odd, %b: tensor<1x1x?x?xbf16>, %l: tensor<f32>, %lse: !lse) -> !odd {
  %r = diffattn.attention_backward ins(%q, %q, %q, %k, %q : !odd, !odd, !odd, !odd, !odd) d_out(%q : !odd) lambda(%l : tensor<f32>) bias(%b : tensor<1x1x?x?xbf16>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !odd) o2(%q : !odd) outs(d_v(%q : !odd)) {scale = 0.125 : f32, softcap = 30.0 : f32} -> !odd
  return %r : !odd
}

// CHECK-LABEL: func.func @packed
// CHECK: schedules = [#diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32>]
// SAYS: Reason="expected no cu_seqlens_q, but got one", Summary="gradients of attention do not use wgmma"
func.func @packed(%q: !q, %l: tensor<f32>, %lse: !lse, %b: tensor<3xi32>) -> !q {
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) d_out(%q : !q) lambda(%l : tensor<f32>)
         cu_seqlens_q(%b : tensor<3xi32>) cu_seqlens_k(%b : tensor<3xi32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !q) o2(%q : !q) outs(d_v(%q : !q)) {scale = 0.125 : f32} -> !q
  return %r : !q
}

// Nothing is said where no product is asked for.
// CHECK-LABEL: func.func @of_lambda
// CHECK: kv_block_size = 32>]
// SAYS-NOT: do not use wgmma
func.func @of_lambda(%q: !q, %v: !v, %l: tensor<f32>, %lse: !lse, %dl: tensor<f32>) -> tensor<f32> {
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) d_out(%v : !v) lambda(%l : tensor<f32>)
         lse1(%lse : !lse) lse2(%lse : !lse) x(%v : !v) o2(%v : !v) outs(d_lambda(%dl : tensor<f32>)) {scale = 0.125 : f32} -> tensor<f32>
  return %r : tensor<f32>
}
