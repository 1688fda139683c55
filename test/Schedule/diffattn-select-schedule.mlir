// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512})" | FileCheck %s --check-prefixes=CHECK,AVX512
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512bf16})" | FileCheck %s --check-prefixes=CHECK,BF16
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx2})" | FileCheck %s --check-prefixes=CHECK,AVX2
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=generic})" | FileCheck %s --check-prefixes=CHECK,GENERIC
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx2 linalg=true})" --remark-format=emitRemark --remarks-filter=diffattn-schedule 2>&1 | FileCheck %s --check-prefix=LINALG
// RUN: not diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx1024})" 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// UNKNOWN: error: expected isa to be one of native, avx512bf16, avx512, avx2, generic, but got avx1024

!q = tensor<?x2x?x64xf32>
!v = tensor<?x2x?x128xf32>
!h = tensor<1x2x512x64xbf16>

// CHECK-LABEL: func.func @f32(
// AVX512:      schedule = #diffattn.schedule<path = nest, isa = "avx512", lanes = 16, rows = 48
// AVX512-SAME: qk_tile = [8, 3, 8], pv_tile = [6, 4, 4]
// BF16:        isa = "avx512bf16", lanes = 16
// BF16-NOT:    bf16_dot
// AVX2:        isa = "avx2", lanes = 8, rows = 48
// AVX2-SAME:   qk_tile = [4, 3, 4], pv_tile = [6, 2, 4]
// GENERIC:     isa = "generic", lanes = 4
// LINALG:      remark: [Missed] SelectSchedule {{.*}}the linalg path was asked for
// LINALG:      schedule = #diffattn.schedule<path = linalg>
func.func @f32(%q: !q, %k: !q, %v: !v, %l: tensor<f32>, %o: !v) -> !v {
  %0 = diffattn.attention ins(%q, %k, %q, %k, %v : !q, !q, !q, !q, !v) lambda(%l : tensor<f32>)
      outs(%o : !v) {scale = 0.125 : f32} -> !v
  return %0 : !v
}

// CHECK-LABEL: func.func @bf16(
// BF16:        bf16_dot = true
// AVX512-NOT:  bf16_dot
// AVX2-NOT:    bf16_dot
func.func @bf16(%q: !h, %l: tensor<f32>, %o: !h) -> !h {
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : !h, !h, !h, !h, !h) lambda(%l : tensor<f32>)
      outs(%o : !h) {scale = 0.125 : f32} -> !h
  return %0 : !h
}

// A schedule that is written by hand stays.
// CHECK-LABEL: func.func @by_hand(
// CHECK:       schedule = #diffattn.schedule<path = linalg>
func.func @by_hand(%q: !h, %l: tensor<f32>, %o: !h) -> !h {
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : !h, !h, !h, !h, !h) lambda(%l : tensor<f32>)
      outs(%o : !h) {scale = 0.125 : f32, schedule = #diffattn.schedule<path = linalg>} -> !h
  return %0 : !h
}

// The code of a kernel grows with the head: a very large one goes by linalg.
// CHECK-LABEL: func.func @large_head(
// CHECK:       schedule = #diffattn.schedule<path = linalg>
func.func @large_head(%q: tensor<1x2x8x1025xf32>, %l: tensor<f32>, %o: tensor<1x2x8x1025xf32>) -> tensor<1x2x8x1025xf32> {
  %0 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x1025xf32>, tensor<1x2x8x1025xf32>, tensor<1x2x8x1025xf32>,
      tensor<1x2x8x1025xf32>, tensor<1x2x8x1025xf32>) lambda(%l : tensor<f32>)
      outs(%o : tensor<1x2x8x1025xf32>) {scale = 0.125 : f32} -> tensor<1x2x8x1025xf32>
  return %0 : tensor<1x2x8x1025xf32>
}
