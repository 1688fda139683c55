// The dialect, passes and pipelines in a mlir-opt that knows nothing of them: those of attention from one plugin, those of models
// from the other, alone or both.
// RUN: mlir-opt %s --load-dialect-plugin=%plugin --verify-roundtrip | FileCheck %s --check-prefix=DIALECT
// RUN: mlir-opt %s --load-dialect-plugin=%plugin --load-pass-plugin=%plugin \
// RUN:   --pass-pipeline="builtin.module(diffattn-decompose{all=true})" | FileCheck %s --check-prefix=PASS
// RUN: mlir-opt %s --load-dialect-plugin=%plugin --load-pass-plugin=%plugin \
// RUN:   --pass-pipeline="builtin.module(diffattn-attention-pipeline{threads=1})" | FileCheck %s --check-prefix=ATTENTION
// RUN: not mlir-opt %s --load-dialect-plugin=%plugin --load-pass-plugin=%plugin \
// RUN:   --pass-pipeline="builtin.module(diffattn-cpu-pipeline)" 2>&1 | FileCheck %s --check-prefix=OTHER
// RUN: mlir-opt %s --load-dialect-plugin=%model_plugin --load-pass-plugin=%model_plugin \
// RUN:   --pass-pipeline="builtin.module(diffattn-decompose{all=true},func.func(diffattn-decompose-tensor-ops,diffattn-fuse-elementwise))" \
// RUN:   | FileCheck %s --check-prefix=PASS
// RUN: mlir-opt %s --load-dialect-plugin=%model_plugin --load-pass-plugin=%model_plugin \
// RUN:   --pass-pipeline="builtin.module(diffattn-cpu-pipeline{threads=1})" | FileCheck %s --check-prefix=MODEL
// RUN: mlir-opt %s --load-dialect-plugin=%plugin --load-pass-plugin=%plugin --load-pass-plugin=%model_plugin \
// RUN:   --pass-pipeline="builtin.module(diffattn-cpu-pipeline{threads=1})" | FileCheck %s --check-prefix=MODEL
// RUN: mlir-opt %s --load-dialect-plugin=%model_plugin --load-pass-plugin=%model_plugin --load-pass-plugin=%plugin \
// RUN:   --pass-pipeline="builtin.module(diffattn-attention-pipeline{threads=1})" | FileCheck %s --check-prefix=ATTENTION

// DIALECT:  diffattn.attention ins

// PASS-LABEL: func.func @attend
// PASS-NOT:   diffattn.attention
// PASS:       math.exp

// ATTENTION-DAG: llvm.func @diffattn_rt_parallel_for
// ATTENTION-DAG: llvm.func @attend
// ATTENTION-NOT: llvm.func @diffattn_rt_gemm

// OTHER: 'diffattn-cpu-pipeline' does not refer to a registered pass or pass pipeline

// MODEL: llvm.func @_mlir_ciface_attend
!t = tensor<1x2x4x8xf32>
func.func @attend(%q1: !t, %k1: !t, %q2: !t, %k2: !t, %v: !t, %l: tensor<f32>) -> !t {
  %init = tensor.empty() : !t
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>)
         outs(%init : !t) {scale = 0.5 : f32, is_causal} -> !t
  return %o : !t
}
