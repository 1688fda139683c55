// RUN: diffattn-opt %s --convert-diffattn-to-gpu --canonicalize | FileCheck %s

!q = memref<?x4x?x64xbf16, strided<[?, ?, ?, 1], offset: ?>>
!k = memref<?x2x?x64xbf16, strided<[?, ?, ?, 1], offset: ?>>
!d = memref<3x4x2x64xbf16, strided<[?, ?, ?, 1], offset: ?>>
!p = memref<?x4x?x64xf32, strided<[?, ?, ?, ?], offset: ?>>

// Half of what two maps copy and multiply: queries once, a tile of K and V, 16 products for scores and 16 for sums. What there is beside
// them is normalized as it is, without a lambda.
// CHECK-LABEL: llvm.func @diffattn_forward_64x64_bf16_both4x1_k32s2q_onemap(
// CHECK-SAME:  diffattn.shared_bytes = 16384
// CHECK-COUNT-4: nvvm.cp.async.shared.global
// CHECK-NOT:   nvvm.cp.async.shared.global
// CHECK:       nvvm.cp.async.commit.group
// CHECK-COUNT-4: nvvm.cp.async.shared.global
// CHECK-NOT:   nvvm.cp.async.shared.global
// CHECK:       nvvm.cp.async.commit.group
// CHECK-COUNT-4: nvvm.ldmatrix
// CHECK-NOT:   nvvm.ldmatrix
// CHECK:       nvvm.cp.async.wait.group 0
// CHECK-COUNT-16: nvvm.mma.sync
// CHECK-NOT:   nvvm.mma.sync
// CHECK:       nvvm.vote.sync any
// CHECK-COUNT-16: nvvm.mma.sync
// CHECK-NOT:   nvvm.mma.sync
// CHECK-LABEL: llvm.func @diffattn_forward_64x64_bf16_both4x1_k32s2q_onemap_anystride(
// CHECK-LABEL: llvm.func @diffattn_forward_64x64_f32_plain4_onemap_anystride(

// Of a tile of 16 rows eight are queries: two matrices each 16 columns, and no others.
// CHECK-LABEL: llvm.func @diffattn_decode_64x64_bf16_both2x1_k32s2q_onemap(
// CHECK-COUNT-4: nvvm.ldmatrix {{.*}} -> !llvm.struct<(i32, i32)>
// CHECK-NOT:   nvvm.ldmatrix {{.*}} -> !llvm.struct<(i32, i32)>
// CHECK:       nvvm.vote.sync any
// CHECK-LABEL: llvm.func @diffattn_merge_64_bf16_onemap(

// CHECK-LABEL: func.func @prefill(
// CHECK:       gpu.launch_func @diffattn_kernels::@diffattn_forward_64x64_bf16_both4x1_k32s2q_onemap
func.func @prefill(%q: !q, %k: !k, %o: !q) {
  diffattn.attention ins(%q, %k, %k : !q, !k, !k) outs(%o : !q)
    {scale = 0.125 : f32, is_causal, schedules = [#diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32, q_in_registers = true>]}
  return
}

// A launch for the ranges of keys, and one that merges the states of the map and ends the rows.
// CHECK-LABEL: func.func @decode(
// CHECK-NOT:   memref.alloc(
// CHECK:       gpu.launch_func @diffattn_kernels::@diffattn_decode_64x64_bf16_both2x1_k32s2q_onemap
// CHECK:       gpu.launch_func @diffattn_kernels::@diffattn_merge_64_bf16_onemap
// CHECK-NOT:   gpu.launch_func
// CHECK:       return
func.func @decode(%q: !d, %k: !k, %o: !d) {
  diffattn.attention ins(%q, %k, %k : !d, !k, !k) outs(%o : !d)
    {scale = 0.125 : f32, schedules = [#diffattn.gpu_split_kv<warps = 2, q_in_registers = true, kv_split_size = 512>]}
  return
}

// CHECK-LABEL: func.func @plain(
// CHECK:       gpu.launch_func @diffattn_kernels::@diffattn_forward_64x64_f32_plain4_onemap_anystride
func.func @plain(%q: !p, %o: !p) {
  diffattn.attention ins(%q, %q, %q : !p, !p, !p) outs(%o : !p) {scale = 0.125 : f32, schedules = [#diffattn.gpu_plain<warps = 4>]}
  return
}
