// A whole module on one command: kernels in PTX, and host functions that only launch, multiply and allocate.
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-cuda-pipeline{chip=sm_80 until=ptx})" | FileCheck %s
// RUN: not diffattn-opt %s --pass-pipeline="builtin.module(diffattn-cuda-pipeline{chip=sm_70 until=ptx})" 2>&1 | FileCheck %s --check-prefix=CHIP
// RUN: not diffattn-opt %s --diffattn-cuda-pipeline="until=object" 2>&1 | FileCheck %s --check-prefix=STAGE
// RUN: diffattn-opt %s --diffattn-cuda-pipeline="chip=sm_80" | FileCheck %s --check-prefix=HOST
// CHIP: sm_70
// STAGE: expected until to be a stage of input, imported, raised, scheduled, bufferized, gpu, ptx, cubin, loops, llvm, but got 'object'
// HOST: llvm.func @diffattn_rt_device_launch

// Former spellings make the same, with a warning.
// RUN: diffattn-opt %s --diffattn-cuda-pipeline="chip=sm_80 until=ptx" > %t.ptx.mlir
// RUN: diffattn-opt %s --diffattn-gpu-pipeline="chip=sm_80 assemble=false" 2> %t.ptx.txt | diff - %t.ptx.mlir
// RUN: FileCheck %s --check-prefix=GPU < %t.ptx.txt
// RUN: diffattn-opt %s --diffattn-cuda-pipeline="chip=sm_90a until=loops isa=avx2" > %t.loops.mlir
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="gpu-chip=sm_90a until=loops isa=avx2" 2> %t.loops.txt | diff - %t.loops.mlir
// RUN: FileCheck %s --check-prefix=CPU < %t.loops.txt
// GPU: warning: expected diffattn-cuda-pipeline{until=ptx} in the place of diffattn-gpu-pipeline, which is its former spelling and will go
// CPU: warning: expected diffattn-cuda-pipeline{chip=sm_90a} in the place of diffattn-cpu-pipeline{gpu-chip=sm_90a}, which

// CHECK: gpu.module @diffattn_kernels
// CHECK-SAME: diffattn.ptx = "
// CHECK-SAME: .entry diffattn_row_reduction_0
// CHECK-DAG: llvm.func @diffattn_row_reduction_0
// CHECK-DAG: llvm.func @diffattn_forward
// CHECK-LABEL: func.func @block
// CHECK-NOT: {{linalg|memref\.load|memref\.store|memref\.copy|diffattn\.attention|tensor\.}}
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_row_reduction_0
// CHECK: diffattn.gemm
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_forward
// CHECK: return
!h = tensor<1x?x4x32xbf16>
!v = tensor<1x?x2x64xbf16>
!o = tensor<1x?x4x64xbf16>
func.func @block(%x: tensor<?x256xf32>, %w: tensor<128x256xbf16>, %k1: !h, %q2: !h, %k2: !h, %v: !v, %lambda: tensor<f32>) -> !o {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?x256xf32>
  %e = tensor.empty(%n) : tensor<?xf32>
  %init = linalg.fill ins(%zero : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x256xf32>) outs(%init : tensor<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.mulf %a, %a : f32
    %c = arith.addf %o, %b : f32
    linalg.yield %c : f32
  } -> tensor<?xf32>
  %y0 = tensor.empty(%n) : tensor<?x256xbf16>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%x, %s : tensor<?x256xf32>, tensor<?xf32>) outs(%y0 : tensor<?x256xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %c = math.rsqrt %b : f32
    %d = arith.mulf %a, %c : f32
    %f = arith.truncf %d : f32 to bf16
    linalg.yield %f : bf16
  } -> tensor<?x256xbf16>
  %q0 = tensor.empty(%n) : tensor<?x128xbf16>
  %bzero = arith.constant 0.0 : bf16
  %q1 = linalg.fill ins(%bzero : bf16) outs(%q0 : tensor<?x128xbf16>) -> tensor<?x128xbf16>
  %q = linalg.matmul indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (j, k)>, affine_map<(i, j, k) -> (i, j)>]
    ins(%y, %w : tensor<?x256xbf16>, tensor<128x256xbf16>) outs(%q1 : tensor<?x128xbf16>) -> tensor<?x128xbf16>
  %heads = tensor.expand_shape %q [[0, 1], [2, 3]] output_shape [1, %n, 4, 32] : tensor<?x128xbf16> into !h
  %o0 = tensor.empty(%n) : !o
  %o = diffattn.attention ins(%heads, %k1, %q2, %k2, %v : !h, !h, !h, !h, !v) lambda(%lambda : tensor<f32>) outs(%o0 : !o)
    {scale = 0.2 : f32, is_causal, q_layout = #diffattn.layout<bthd>, k_layout = #diffattn.layout<bthd>, v_layout = #diffattn.layout<bthd>, o_layout = #diffattn.layout<bthd>} -> !o
  return %o : !o
}
