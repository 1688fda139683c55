// A program on a CUDA device, up to the driver's calls: the driver is a mock that writes them down and runs nothing.
// REQUIRES: mocks
// RUN: rm -rf %t.log %t.again.log %t.ptx.log %t.cache
// RUN: env MOCK_CUDA_LOG=%t.log diffattn-run %s --target=cuda:sm_90 --cuda-driver=%mock_cuda --cache-dir=%t.cache --quiet
// RUN: FileCheck %s --input-file=%t.log
// CHECK:      cuDevicePrimaryCtxRetain 0
// CHECK:      cuModuleLoadDataEx {{.*}}ELF
// CHECK:      cuModuleGetFunction [[KERNEL:diffattn_forward_32x64_bf16_[a-z0-9_]*]]
// CHECK:      cuStreamCreate 1
// Three arguments of four, since one is given twice, and lambda.
// CHECK-COUNT-5: cuMemcpyHtoDAsync
// CHECK:      cuLaunchKernelEx {{diffattn_forward[a-z0-9_]*}} {{[0-9]+}} 2 1 128 1 1
// CHECK:      cuMemcpyDtoHAsync 5120
// CHECK-NEXT: cuStreamSynchronize
// CHECK:      cuModuleUnload
// CHECK:      cuDevicePrimaryCtxRelease 0

// Found in the cache, with its kernels.
// RUN: env MOCK_CUDA_LOG=%t.again.log diffattn-run %s --target=cuda:sm_90 --cuda-driver=%mock_cuda --cache-dir=%t.cache --quiet
// RUN: FileCheck %s --input-file=%t.again.log
// RUN: diffattn-run cache ls --cache-dir=%t.cache | FileCheck %s --check-prefix=CACHE
// CACHE: run-cuda.mlir for cuda:sm_90@0

// Without a chip it is that of the device, with what that chip has alone: the mock says that its capability is 9.0. Without an assembler
// the driver gets PTX.
// RUN: env MOCK_CUDA_LOG=%t.ptx.log diffattn-run %s --target=cuda@0 --cuda-driver=%mock_cuda --ptxas=no-such-ptxas --no-cache --quiet 2>&1 | FileCheck %s --check-prefix=NOTE
// RUN: FileCheck %s --check-prefix=TEXT --input-file=%t.ptx.log
// NOTE: note: no machine code for sm_90a, the driver will compile PTX: expected ptxas
// TEXT: .target sm_90a

// RUN: not diffattn-run %s --target=cuda:sm_90 --cuda-driver=/no/such/libcuda.so.1 2>&1 | FileCheck %s --check-prefix=NONE
// NONE: error (usage): expected the CUDA driver's library (it comes with NVIDIA's driver), but could open none of:
// NONE-NEXT: /no/such/libcuda.so.1: cannot open
// RUN: not diffattn-run %s --target=cuda@3 --cuda-driver=%mock_cuda 2>&1 | FileCheck %s --check-prefix=ORDINAL
// ORDINAL: error (usage): expected a device from 0 to 0, but got 3
// RUN: not diffattn-run %s --target=cuda@x 2>&1 | FileCheck %s --check-prefix=NUMBER
// NUMBER: error (usage): expected a target cuda:<chip>@<number of the GPU>, but got 'cuda@x'
// RUN: not diffattn-run %s --target=cuda-sim:sm_80@1 2>&1 | FileCheck %s --check-prefix=SIM
// SIM: error (usage): expected a target cuda:<chip>@<number of the GPU>, but got 'cuda-sim:sm_80@1'

// The same host code on the simulator gives numbers.
// RUN: diffattn-run %s --target=cuda-sim:sm_90 --check=unfused --quiet | FileCheck %s --check-prefix=SAME
// SAME: result 0{{.*}}: matches

!q = tensor<1x2x20x32xbf16>
!k = tensor<1x2x40x32xbf16>
!v = tensor<1x2x40x64xbf16>
!o = tensor<1x2x20x64xbf16>

func.func @attention(%q1: !q, %k1: !k, %k2: !k, %v: !v, %lambda: tensor<f32>) -> !o {
  %init = tensor.empty() : !o
  %o = diffattn.attention ins(%q1, %k1, %q1, %k2, %v : !q, !k, !q, !k, !v) lambda(%lambda : tensor<f32>)
    outs(%init : !o) {scale = 0.2 : f32, is_causal, norm = #diffattn.norm<rms>, out_scale = 0.8 : f32} -> !o
  return %o : !o
}
