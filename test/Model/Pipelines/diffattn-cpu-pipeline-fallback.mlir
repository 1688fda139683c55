// An attention that is told to go the linalg way compiles to the end without a kernel.
// RUN: diffattn-opt %s --diffattn-cpu-pipeline | FileCheck %s

// CHECK:     llvm.call @diffattn_rt_batch_gemm
// CHECK-NOT: diffattn_rt_parallel_for
!t = tensor<1x2x4x8xf32>
func.func @told(%q: !t, %k: !t, %v: !t, %l: tensor<f32>) -> !t {
  %init = tensor.empty() : !t
  %o = diffattn.attention ins(%q, %k, %q, %k, %v : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>)
         outs(%init : !t) {scale = 0.5 : f32, schedules = [#diffattn.linalg]} -> !t
  return %o : !t
}

// Kernels for another target are none.
// CHECK-LABEL: llvm.func @scheduled_for_a_gpu(
// CHECK:         llvm.call @diffattn_rt_batch_gemm
func.func @scheduled_for_a_gpu(%q: !t, %k: !t, %v: !t, %l: tensor<f32>) -> !t {
  %init = tensor.empty() : !t
  %o = diffattn.attention ins(%q, %k, %q, %k, %v : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>)
         outs(%init : !t) {scale = 0.5 : f32, schedules = [#diffattn.gpu_plain<warps = 4>, #diffattn.linalg]} -> !t
  return %o : !t
}
