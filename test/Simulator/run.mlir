// The kernels of attention run on the simulator, the rest of the module on the CPU.
// RUN: diffattn-run %s --target=cuda-sim:sm_80 --check=unfused --quiet | FileCheck %s
// RUN: diffattn-run %s --target=cuda-sim:sm_90 --check=unfused --quiet | FileCheck %s
// CHECK: result 0{{.*}}: matches

// A kernel is text: written, changed, run.
// RUN: diffattn-run %s --target=cuda-sim:sm_80 --emit=gpu -o %t.mlir
// RUN: FileCheck %s --check-prefix=GPU < %t.mlir
// GPU-DAG: gpu.module @diffattn_kernels
// GPU-DAG: llvm.func @diffattn_forward_{{[a-z0-9_]*}}(%q1: !llvm.ptr<1>, %k1: !llvm.ptr<1>
// GPU-DAG: nvvm.mma.sync
// GPU-DAG: gpu.launch_func @diffattn_kernels::@

// RUN: diffattn-run %s --target=cuda-sim:sm_80 --output=%t.a.npy --quiet
// RUN: diffattn-run %t.mlir --from=gpu --target=cuda-sim:sm_80 --expected=%t.a.npy --quiet | FileCheck %s

// Without the wait for copies the kernel reads what has not arrived.
// RUN: grep -v nvvm.cp.async.wait.group %t.mlir > %t.broken.mlir
// RUN: not diffattn-run %t.broken.mlir --from=gpu --target=cuda-sim:sm_80 --quiet 2>&1 | FileCheck %s --check-prefix=BROKEN
// BROKEN: not arrived: thread {{[0-9]+}} reads {{.*}}[llvm.nvvm.ldmatrix{{.*}} at {{.*}}broken.mlir:{{[0-9]+}}:

// RUN: not diffattn-run %s --target=cuda-sim:sm_70 --quiet 2>&1 | FileCheck %s --check-prefix=CHIP
// CHIP: sm_70
// RUN: not diffattn-run %t.mlir --from=gpu --quiet 2>&1 | FileCheck %s --check-prefix=TARGET
// TARGET: expected target cuda:<chip> or cuda-sim:<chip> for a module in stage gpu, but got 'cpu'
// RUN: not diffattn-run %t.mlir --from=gpu --target=cuda-sim:sm_80 --check=unfused 2>&1 | FileCheck %s --check-prefix=REFERENCE
// REFERENCE: expected a module in stage input to make the reference from

!q = tensor<1x2x20x32xbf16>
!k = tensor<1x2x40x32xbf16>
!v = tensor<1x2x40x64xbf16>
!o = tensor<1x2x20x64xbf16>

func.func @attention(%q1: !q, %k1: !k, %q2: !q, %k2: !k, %v: !v, %lambda: tensor<f32>) -> !o {
  // The kernel reads what the CPU made.
  %scaled = arith.mulf %q1, %q1 : !q
  %init = tensor.empty() : !o
  %o = diffattn.attention ins(%scaled, %k1, %q2, %k2, %v : !q, !k, !q, !k, !v) lambda(%lambda : tensor<f32>)
    outs(%init : !o) {scale = 0.2 : f32, is_causal, norm = #diffattn.norm<rms>, out_scale = 0.8 : f32} -> !o
  return %o : !o
}
