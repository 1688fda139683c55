// Code for a GPU is made on any machine: one PTX module with all kernels, and a cubin.
// RUN: diffattn-run %s --target=cuda --emit=ptx -o %t.ptx
// RUN: FileCheck %s --check-prefix=PTX --input-file=%t.ptx
// RUN: grep -c "^.version" %t.ptx | FileCheck %s --check-prefix=ONE
// RUN: not grep -E "__nv_|\.loc" %t.ptx
// PTX: .target sm_80
// PTX-DAG: .entry diffattn_forward_
// PTX-DAG: .entry diffattn_decode_
// PTX-DAG: .entry diffattn_merge_
// ONE: {{^1$}}

// RUN: diffattn-run %s --target=cuda:sm_90 --emit=cubin -o %t.cubin
// RUN: llvm-readelf -h %t.cubin | FileCheck %s --check-prefix=CUBIN
// CUBIN: Machine: {{.*}}NVIDIA CUDA

// An assembler that says that all went well is not believed where it left nothing, or half an object.
// RUN: not diffattn-run %s --target=cuda:sm_90 --emit=cubin --ptxas=/bin/true -o %t.none 2>&1 | FileCheck %s --check-prefix=NOTHING
// RUN: not diffattn-run %s --target=cuda:sm_90 --emit=cubin --ptxas=%S/Inputs/ptxas-half.sh -o %t.none 2>&1 | FileCheck %s --check-prefix=HALF
// RUN: not ls %t.none
// NOTHING: error (compile): expected an object for NVIDIA's GPUs (ELF) of /bin/true, but got 0 bytes that are none
// HALF: error (compile): expected an object for NVIDIA's GPUs (ELF) of {{.*}}ptxas-half.sh, but got {{[1-9][0-9]*}} bytes that are none

// What was written with --emit=gpu is taken up again, also for a chip that is newer than the tables: its cubin is its own.
// RUN: diffattn-run %s --target=cuda:sm_120 --emit=gpu -o %t.mlir 2>&1 | FileCheck %s --check-prefix=UNTUNED
// RUN: diffattn-run %t.mlir --from=gpu --target=cuda:sm_120 --emit=ptx | FileCheck %s --check-prefix=PTX
// RUN: diffattn-run %t.mlir --from=gpu --target=cuda:sm_120 --emit=cubin -o %t.120.cubin
// RUN: not cmp -s %t.cubin %t.120.cubin
// UNTUNED: remark: {{.*}}untuned: sm_120 gets the code and the schedules of sm_80

// What has no kernel is said.
// RUN: diffattn-run %s --entry=wide --target=cuda --emit=scheduled 2>&1 >%t.scheduled | FileCheck %s --check-prefix=WIDE
// WIDE: run-gpu.mlir:[[#]]:{{.*}} remark: {{.*}}expected widths of heads up to 256, but got 320 and 64

// RUN: not diffattn-run %s --target=cuda:sm_75 --emit=ptx 2>&1 | FileCheck %s --check-prefix=OLD
// OLD: error (usage): expected a chip of sm_80, sm_86, sm_87, sm_88, sm_89, sm_90, sm_90a, sm_100, sm_101, sm_103, sm_110, sm_120, sm_121, but got "sm_75"
// RUN: not diffattn-run %s --target=gpu --emit=ptx 2>&1 | FileCheck %s --check-prefix=TARGET
// TARGET: error (usage): expected target cpu, cpu:<isa> with an isa of {{.*}}, cuda:<chip> or cuda-sim:<chip> with a chip of sm_80, sm_86, sm_89, sm_90, sm_90a or newer, but got 'gpu'
// RUN: not diffattn-run %s --emit=ptx 2>&1 | FileCheck %s --check-prefix=CPU
// CPU: error (usage): expected target cuda:<chip> or cuda-sim:<chip> for stage ptx, but got 'cpu'
// RUN: not diffattn-run %s --target=cuda --emit=cubin --ptxas=no-such-ptxas 2>&1 | FileCheck %s --check-prefix=NONE
// NONE: error (compile): expected ptxas of CUDA 12 or 13, but found none; tried {{.*}}/no-such-ptxas, {{.*}}/usr/local/cuda/bin/no-such-ptxas, {{.*}}/nvidia/cu13/bin/no-such-ptxas. It comes with
// RUN: not diffattn-run %s --target=cuda --emit=cubin --ptxas=/none/ptxas 2>&1 | FileCheck %s --check-prefix=PATH
// PATH: error (compile): expected ptxas of CUDA 12 or 13, but found none; tried /none/ptxas.
// RUN: echo "func.func @none() { return }" > %t.none.mlir
// RUN: not diffattn-run %t.none.mlir --target=cuda --emit=ptx 2>&1 | FileCheck %s --check-prefix=EMPTY
// EMPTY: error (compile): expected an op that becomes a kernel, but found none in the module

!q = tensor<1x2x?x32xbf16>
!v = tensor<1x2x?x64xbf16>
func.func @many(%q: !q, %k: !q, %k2: !q, %v: !v, %l: tensor<f32>, %o: !v) -> !v {
  %r = diffattn.attention ins(%q, %k, %q, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : tensor<f32>)
    outs(%o : !v) {scale = 0.125 : f32} -> !v
  return %r : !v
}

!q1 = tensor<1x2x1x32xbf16>
!o1 = tensor<1x2x1x64xbf16>
func.func @one(%q: !q1, %k: !q, %k2: !q, %v: !v, %l: tensor<f32>, %o: !o1) -> !o1 {
  %r = diffattn.attention ins(%q, %k, %q, %k2, %v : !q1, !q, !q1, !q, !v) lambda(%l : tensor<f32>)
    outs(%o : !o1) {scale = 0.125 : f32} -> !o1
  return %r : !o1
}

!qw = tensor<1x2x?x320xbf16>
func.func @wide(%q: !qw, %k: !qw, %k2: !qw, %v: !v, %l: tensor<f32>, %o: !v) -> !v {
  %r = diffattn.attention ins(%q, %k, %q, %k2, %v : !qw, !qw, !qw, !qw, !v) lambda(%l : tensor<f32>)
    outs(%o : !v) {scale = 0.125 : f32} -> !v
  return %r : !v
}
