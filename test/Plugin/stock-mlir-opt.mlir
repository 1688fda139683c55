// The dialect, a pass and the pipeline in a mlir-opt that knows nothing of them.
// RUN: mlir-opt %s --load-dialect-plugin=%plugin --verify-roundtrip | FileCheck %s --check-prefix=DIALECT
// RUN: mlir-opt %s --load-dialect-plugin=%plugin --load-pass-plugin=%plugin \
// RUN:   --pass-pipeline="builtin.module(diffattn-decompose{all=true},func.func(diffattn-decompose-tensor-ops,diffattn-fuse-elementwise))" \
// RUN:   | FileCheck %s --check-prefix=PASS
// RUN: mlir-opt %s --load-dialect-plugin=%plugin --load-pass-plugin=%plugin \
// RUN:   --pass-pipeline="builtin.module(diffattn-cpu-pipeline{threads=1})" | FileCheck %s --check-prefix=PIPELINE

// DIALECT:  diffattn.attention ins

// PASS-LABEL: func.func @attend
// PASS-NOT:   diffattn.attention
// PASS:       math.exp

// PIPELINE: llvm.func @_mlir_ciface_attend
!t = tensor<1x2x4x8xf32>
func.func @attend(%q1: !t, %k1: !t, %q2: !t, %k2: !t, %v: !t, %l: tensor<f32>) -> !t {
  %init = tensor.empty() : !t
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>)
         outs(%init : !t) {scale = 0.5 : f32, is_causal} -> !t
  return %o : !t
}
