// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512})" | FileCheck %s --check-prefixes=CHECK,AVX512
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512bf16})" | FileCheck %s --check-prefixes=CHECK,PAIRS
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=amx})" | FileCheck %s --check-prefixes=CHECK,AMX
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx2})" | FileCheck %s --check-prefixes=CHECK,AVX2
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx2 linalg=true})" | FileCheck %s --check-prefix=LINALG
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx2})" --remark-format=emitRemark --remarks-filter=diffattn-schedule 2>&1 >/dev/null | FileCheck %s --check-prefix=REMARK

// The schedule of gradients does not depend on sizes. bf16 is multiplied in pairs or by tiles where a CPU does that, d_out is bf16 too, and the
// scale is positive; else all types are widened to f32.

!q = tensor<1x2x?x16xbf16>
!f = tensor<1x2x?x16xf32>

// REMARK: remark: [Passed] SelectSchedule {{.*}}"the gradient of attention is one kernel"
// CHECK-LABEL: func.func @by_a_kernel(
// AVX512: schedules = [#diffattn.cpu_backward<isa = "avx512", lanes = 16, q_block_size = 48, qk_tile = [8, 3, 4], pv_tile = [6, 4, 2], kv_block_size = 192, two_pass_keys = 16384, q_slice_size = 1008>]
// AMX: schedules = [#diffattn.cpu_backward<isa = "amx", lanes = 16, q_block_size = 48, qk_tile = [8, 3, 4], pv_tile = [6, 4, 2], kv_block_size = 192, two_pass_keys = 16384, q_slice_size = 1008>]
// PAIRS: schedules = [#diffattn.cpu_backward<isa = "avx512bf16", lanes = 16, q_block_size = 48, qk_tile = [8, 3, 4], pv_tile = [6, 4, 2], kv_block_size = 192, two_pass_keys = 16384, q_slice_size = 1008>]
// AVX2: schedules = [#diffattn.cpu_backward<isa = "avx2", lanes = 8, q_block_size = 96, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 96, two_pass_keys = 16384, q_slice_size = 960>]
// LINALG: schedules = [#diffattn.linalg]
func.func @by_a_kernel(%q: !q, %l: tensor<f32>, %d: !f) -> !f {
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) d_out(%d : !f) lambda(%l : tensor<f32>)
         outs(d_v(%d : !f)) {scale = 0.25 : f32} -> !f
  return %r : !f
}

// REMARK: remark: [Passed] SelectSchedule {{.*}}"the gradient of attention is one kernel"
// CHECK-LABEL: func.func @of_bf16(
// AVX512: kv_block_size = 192, two_pass_keys = 16384, q_slice_size = 1008>]
// AMX: schedules = [#diffattn.cpu_backward<isa = "amx", lanes = 16, q_block_size = 64, qk_tile = [16, 4, 1], pv_tile = [64, 1, 1], kv_block_size = 128, two_pass_keys = 16384, q_slice_size = 1024, product = bf16_tiles>]
// PAIRS: schedules = [#diffattn.cpu_backward<isa = "avx512bf16", lanes = 16, q_block_size = 48, qk_tile = [8, 3, 4], pv_tile = [6, 4, 2], kv_block_size = 192, two_pass_keys = 16384, q_slice_size = 1008, product = bf16_pairs>]
// AVX2: kv_block_size = 96, two_pass_keys = 16384, q_slice_size = 960>]
func.func @of_bf16(%q: !q, %l: tensor<f32>) -> !q {
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) d_out(%q : !q) lambda(%l : tensor<f32>)
         outs(d_v(%q : !q)) {scale = 0.25 : f32} -> !q
  return %r : !q
}

// REMARK: remark: [Missed] SelectSchedule {{.*}}"no kernel computes the gradient of a bias"{{.*}}"the gradient of attention runs as loops over maps in memory, not as one kernel"
// CHECK-LABEL: func.func @of_a_bias(
// CHECK: schedules = [#diffattn.linalg]
func.func @of_a_bias(%q: !q, %l: tensor<f32>, %d: !f, %bias: tensor<1x1x?x?xf32>) -> tensor<1x1x?x?xf32> {
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) d_out(%d : !f) lambda(%l : tensor<f32>)
         bias(%bias : tensor<1x1x?x?xf32>) outs(d_bias(%bias : tensor<1x1x?x?xf32>)) {scale = 0.25 : f32} -> tensor<1x1x?x?xf32>
  return %r : tensor<1x1x?x?xf32>
}

// REMARK: remark: [Missed] SelectSchedule {{.*}}"a head of 1025 is above 1024, and the code of a kernel grows with it"
// CHECK-LABEL: func.func @of_a_large_head(
// CHECK: schedules = [#diffattn.linalg]
func.func @of_a_large_head(%q: tensor<1x2x8x1025xf32>, %l: tensor<f32>) -> tensor<1x2x8x1025xf32> {
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %q : tensor<1x2x8x1025xf32>, tensor<1x2x8x1025xf32>, tensor<1x2x8x1025xf32>,
         tensor<1x2x8x1025xf32>, tensor<1x2x8x1025xf32>) d_out(%q : tensor<1x2x8x1025xf32>) lambda(%l : tensor<f32>)
         outs(d_v(%q : tensor<1x2x8x1025xf32>)) {scale = 0.25 : f32} -> tensor<1x2x8x1025xf32>
  return %r : tensor<1x2x8x1025xf32>
}
