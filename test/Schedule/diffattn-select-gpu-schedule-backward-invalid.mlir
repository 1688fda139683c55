// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_80})" --split-input-file --verify-diagnostics

!q = tensor<1x4x?x64xbf16>

// Loops of the host cannot read where sequences begin.
func.func @packed(%q: !q, %lse: tensor<1x4x?xf32>, %b: tensor<3xi32>) -> !q {
  // expected-error @below {{'diffattn.attention_backward' op expected a kernel for cu_seqlens_q on a GPU, but got none: expected x, but got none}}
  %r = diffattn.attention_backward ins(%q, %q, %q : !q, !q, !q) d_out(%q : !q) cu_seqlens_q(%b : tensor<3xi32>) cu_seqlens_k(%b : tensor<3xi32>)
         lse1(%lse : tensor<1x4x?xf32>) outs(d_q1(%q : !q)) {scale = 0.125 : f32} -> !q
  return %r : !q
}
