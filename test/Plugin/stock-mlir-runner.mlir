// A graph through either plugin's pipeline in the stock mlir-opt runs in the stock mlir-runner.
// RUN: mlir-opt %s --load-dialect-plugin=%plugin --load-pass-plugin=%plugin \
// RUN:   --pass-pipeline="builtin.module(func.func(llvm-request-c-wrappers),diffattn-attention-pipeline)" \
// RUN: | mlir-runner -e main --entry-point-result=void \
// RUN:     --shared-libs=%runtime,%mlir_lib_dir/libmlir_runner_utils.so | FileCheck %s
// RUN: mlir-opt %s --load-dialect-plugin=%model_plugin --load-pass-plugin=%model_plugin \
// RUN:   --pass-pipeline="builtin.module(diffattn-cpu-pipeline)" \
// RUN: | mlir-runner -e main --entry-point-result=void \
// RUN:     --shared-libs=%runtime,%mlir_lib_dir/libmlir_runner_utils.so | FileCheck %s
!t = tensor<1x1x2x2xf32>

// Logits of 200 and 0 saturate softmax to exactly 1 and 0: each row is one row of V minus half another.
func.func private @printMemrefF32(memref<*xf32>)
func.func @main() {
  %q1 = arith.constant dense<[[[[200.0, 0.0], [0.0, 200.0]]]]> : !t
  %q2 = arith.constant dense<[[[[0.0, 200.0], [200.0, 0.0]]]]> : !t
  %k = arith.constant dense<[[[[1.0, 0.0], [0.0, 1.0]]]]> : !t
  %v = arith.constant dense<[[[[2.0, 5.0], [6.0, 8.0]]]]> : !t
  %l = arith.constant dense<0.5> : tensor<f32>
  %init = tensor.empty() : !t
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>)
         outs(%init : !t) {scale = 1.0 : f32} -> !t
  // CHECK:      [-1, 1],
  // CHECK-NEXT: [5, 5.5]
  %b = bufferization.to_buffer %o : !t to memref<1x1x2x2xf32>
  %u = memref.cast %b : memref<1x1x2x2xf32> to memref<*xf32>
  call @printMemrefF32(%u) : (memref<*xf32>) -> ()
  return
}
