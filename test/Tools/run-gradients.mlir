// Gradients of attention on a CPU and on a GPU: what the oracle computes, and the plain path.
// RUN: diffattn-run %s --no-cache --quiet --check=oracle --remarks=none | FileCheck %s
// RUN: diffattn-run %s --no-cache --quiet --check=unfused --remarks=none | FileCheck %s --check-prefix=SAME
// RUN: diffattn-run %s --no-cache --quiet --check=oracle --target=cuda-sim:sm_80 --remarks=none | FileCheck %s

// CHECK: result 0 and the oracle: matches, largest error {{.+}} of what is allowed
// CHECK: result 1 and the oracle: matches, largest error {{.+}} of what is allowed
// SAME: result 0 and the reference: matches
// SAME: result 1 and the reference: matches

!q = tensor<1x4x9x8xf32>
!n = tensor<1x2x9x8xf32>
func.func @gradients(%q1: !q, %k: !n, %q2: !n, %v: !n, %d: !q, %l: tensor<4xf32>) -> (!n, tensor<4xf32>) {
  %g:2 = diffattn.attention_backward ins(%q1, %k, %q2, %k, %v : !q, !n, !n, !n, !n) d_out(%d : !q) lambda(%l : tensor<4xf32>)
           outs(d_k1(%k : !n) d_lambda(%l : tensor<4xf32>)) {scale = 0.5 : f32, is_causal, norm = #diffattn.norm<rms>} -> !n, tensor<4xf32>
  return %g#0, %g#1 : !n, tensor<4xf32>
}
