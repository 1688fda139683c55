// The kernel of an attention, a gpu.module under gpu.launch_func, goes through the stock mlir-opt to PTX: our two passes from the
// plugin, then upstream's alone. ptxas takes it, without a spill.
//
// RUN: mlir-opt %s --load-dialect-plugin=%plugin --load-pass-plugin=%plugin -o %t.mlir \
// RUN:   --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_80},convert-diffattn-to-gpu{chip=sm_80},gpu.module(canonicalize,convert-nvvm-to-llvm))"
// RUN: FileCheck %s --check-prefix=KERNEL < %t.mlir
// RUN: mlir-opt %t.mlir --gpu-module-to-binary=format=isa -o %t.isa.mlir
// RUN: FileCheck %s --check-prefix=ISA < %t.isa.mlir
// RUN: sed 's/^.*assembly = "//; s/\\0A/\n/g; s/\\09/\t/g; s/\\22/"/g' %t.isa.mlir | sed -n '/^\.version/,/^">/p' | grep -v '^">' > %t.ptx
// RUN: ptxas -arch=sm_80 -v %t.ptx -o %t.cubin 2>&1 | FileCheck %s --check-prefix=PTXAS

// KERNEL: gpu.module @diffattn_kernels [#nvvm.target<chip = "sm_80"
// KERNEL: llvm.func @diffattn_forward_64x128_f16
// KERNEL: gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_f16

// ISA: gpu.binary @diffattn_kernels [#gpu.object<#nvvm.target<chip = "sm_80"{{.*}}.entry diffattn_forward_64x128_f16
// ISA: gpu.launch_func @diffattn_kernels::@diffattn_forward_64x128_f16

// PTXAS: Compiling entry function 'diffattn_forward_64x128_f16
// PTXAS: 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
!q = memref<1x2x64x64xf16>
!v = memref<1x2x64x128xf16>
func.func @attend(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>)
         outs(%o : !v) {scale = 0.5 : f32, is_causal}
  return
}
