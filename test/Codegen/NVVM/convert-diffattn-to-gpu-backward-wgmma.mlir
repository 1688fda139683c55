// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-diffattn-to-gpu{chip=sm_90a})" | FileCheck %s

!q = memref<2x4x?x64xbf16>
!lse = memref<2x4x?xf32>
#both = #diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32, wgmma_q_block_size = 64, wgmma_q_stages = 2, wgmma_kv_block_size = 64, wgmma_kv_stages = 3>
#queries = #diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32, wgmma_kv_block_size = 64, wgmma_kv_stages = 3>

// The kernels by warpgroups, where maps can be made of all operands, and the others.
// CHECK-LABEL: func.func @both
// CHECK:         scf.if
// CHECK:           scf.if
// CHECK-COUNT-6:     llvm.call @diffattn_rt_device_tensor_map
// CHECK-NOT:         llvm.call @diffattn_rt_device_tensor_map
// CHECK:             gpu.launch_func @diffattn_kernels::@diffattn_keys_64x64_bf16_wgmma_t64s2_dk1bf16
// CHECK:           } else {
// CHECK:             gpu.launch_func @diffattn_kernels::@diffattn_keys_64x64_bf16_w4_t32s2_dk1bf16
// CHECK:             gpu.launch_func @diffattn_kernels::@diffattn_keys_64x64_bf16_w4_t32s2_anystride_dk1bf16
// CHECK:         scf.if
// CHECK:           scf.if
// CHECK-COUNT-6:     llvm.call @diffattn_rt_device_tensor_map
// CHECK-NOT:         llvm.call @diffattn_rt_device_tensor_map
// CHECK:             gpu.launch_func @diffattn_kernels::@diffattn_queries_64x64_bf16_wgmma_t64s3_dq2bf16
// CHECK:             gpu.launch_func @diffattn_kernels::@diffattn_queries_64x64_bf16_w4_t32s2_dq2bf16
func.func @both(%q: !q, %k: !q, %l: memref<f32>, %lse: !lse, %d1: !q, %d2: !q) {
  diffattn.attention_backward ins(%q, %q, %q, %k, %q : !q, !q, !q, !q, !q) d_out(%q : !q) lambda(%l : memref<f32>)
    lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !q) o2(%q : !q) outs(d_k1(%d1 : !q) d_q2(%d2 : !q)) {scale = 0.125 : f32, schedules = [#both]}
  return
}

// One kernel of the two.
// CHECK-LABEL: func.func @queries
// CHECK-NOT:     diffattn_keys_{{.*}}wgmma
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_keys_64x64_bf16_w4_t32s2_onekey_dk1bf16
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_queries_64x64_bf16_wgmma_t64s3_onekey_dq1bf16
func.func @queries(%q: !q, %l: memref<f32>, %lse: !lse, %d1: !q, %d2: !q) {
  diffattn.attention_backward ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) d_out(%q : !q) lambda(%l : memref<f32>)
    lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !q) o2(%q : !q) outs(d_q1(%d1 : !q) d_k1(%d2 : !q)) {scale = 0.125 : f32, schedules = [#queries]}
  return
}

// One map has no second Q and K.
// CHECK-LABEL: func.func @one_map
// CHECK-COUNT-4:     llvm.call @diffattn_rt_device_tensor_map
// CHECK-NOT:         llvm.call @diffattn_rt_device_tensor_map
// CHECK:             gpu.launch_func @diffattn_kernels::@diffattn_keys_64x64_bf16_wgmma_t64s2_onemap_dk1bf16_dvbf16
// CHECK-COUNT-4:     llvm.call @diffattn_rt_device_tensor_map
// CHECK-NOT:         llvm.call @diffattn_rt_device_tensor_map
// CHECK:             gpu.launch_func @diffattn_kernels::@diffattn_queries_64x64_bf16_wgmma_t64s3_onemap_dq1bf16
func.func @one_map(%q: !q, %lse: !lse, %d1: !q, %d2: !q, %d3: !q) {
  diffattn.attention_backward ins(%q, %q, %q : !q, !q, !q) d_out(%q : !q)
    lse1(%lse : !lse) x(%q : !q) outs(d_q1(%d1 : !q) d_k1(%d2 : !q) d_v(%d3 : !q)) {scale = 0.125 : f32, schedules = [#both]}
  return
}
