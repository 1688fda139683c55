// RUN: diffattn-opt %s --convert-diffattn-to-gpu | FileCheck %s

!q = memref<?x4x?x64xbf16>
!lse = memref<?x4x?xf32>
#schedule = #diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32>

// What is shared is left in parts, by rows that there are, and added by kernels that always run.
// CHECK-LABEL: func.func @rows
// CHECK:         %[[DX:.+]] = gpu.alloc ({{.*}}) : memref<?x4x?x64xbf16>
// CHECK:         %[[D1:.+]] = gpu.alloc ({{.*}}) : memref<?x4x?xf32>
// CHECK:         %[[D2:.+]] = gpu.alloc ({{.*}}) : memref<?x4x?xf32>
// CHECK:         %[[WEIGHTS:.+]] = gpu.alloc ({{.*}}) : memref<?x4x?x64xf32>
// CHECK:         %[[LAMBDAS:.+]] = gpu.alloc ({{.*}}) : memref<?x4x?xf32>
// CHECK:         scf.if
// CHECK:           gpu.launch_func @diffattn_kernels::@diffattn_rows_64_bf16_doutbf16_weightbf16_xbf16_o2bf16_lse1_lse2_dweight_dlambda
// CHECK:           gpu.launch_func @diffattn_kernels::@diffattn_rows_64_bf16_doutbf16_anystride_weightbf16_xbf16_o2bf16_lse1_lse2_dweight_dlambda
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_weights_64_bf16
// CHECK:         gpu.dealloc %[[WEIGHTS]]
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_lambdas_of_all
// CHECK:         gpu.dealloc %[[LAMBDAS]]
// CHECK:         gpu.dealloc %[[DX]]
// CHECK:         gpu.dealloc %[[D1]]
// CHECK:         gpu.dealloc %[[D2]]
// CHECK-NOT:     diffattn.attention_backward
func.func @rows(%q: !q, %l: memref<f32>, %lse: !lse, %w: memref<64xbf16>, %dw: memref<64xbf16>, %dl: memref<f32>) {
  diffattn.attention_backward ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) d_out(%q : !q) lambda(%l : memref<f32>) norm_weight(%w : memref<64xbf16>)
    lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !q) o2(%q : !q) outs(d_lambda(%dl : memref<f32>) d_norm_weight(%dw : memref<64xbf16>))
    {scale = 0.125 : f32, norm = #diffattn.norm<rms>, schedules = [#schedule]}
  return
}

// One map has neither D2 nor lambda.
// CHECK-LABEL: func.func @one_map
// CHECK-COUNT-2: gpu.alloc
// CHECK-NOT:     gpu.alloc
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_rows_64_bf16_onemap_doutbf16_gatebf16_xbf16_lse1_dgatebf16
func.func @one_map(%q: !q, %lse: !lse, %dg: !q) {
  diffattn.attention_backward ins(%q, %q, %q : !q, !q, !q) d_out(%q : !q) gate(%q : !q) lse1(%lse : !lse) x(%q : !q) outs(d_gate(%dg : !q))
    {scale = 0.125 : f32, schedules = [#schedule]}
  return
}

// Keys and queries come behind the rows; keys also where there is no query, whose gradients are zeros then.
// CHECK-LABEL: func.func @products
// CHECK:         %[[DX:.+]] = gpu.alloc
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_rows_64_bf16
// CHECK:         scf.if
// CHECK:           gpu.launch_func @diffattn_kernels::@diffattn_keys_64x64_bf16_w4_t32s2_dk1bf16_dk2f32_dvbf16 {{.*}} threads in
// CHECK:           gpu.launch_func @diffattn_kernels::@diffattn_keys_64x64_bf16_w4_t32s2_anystride_dk1bf16_dk2f32_dvbf16
// CHECK:         scf.if
// CHECK:           gpu.launch_func @diffattn_kernels::@diffattn_queries_64x64_bf16_w4_t32s2_dq1bf16 {{.*}} threads in
// CHECK:         gpu.dealloc %[[DX]]
func.func @products(%q: !q, %k: !q, %l: memref<f32>, %lse: !lse, %d1: !q, %d2: !q, %d3: memref<?x4x?x64xf32>, %d4: !q) {
  diffattn.attention_backward ins(%q, %q, %q, %k, %q : !q, !q, !q, !q, !q) d_out(%q : !q) lambda(%l : memref<f32>)
    lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !q) o2(%q : !q)
    outs(d_q1(%d1 : !q) d_k1(%d2 : !q) d_k2(%d3 : memref<?x4x?x64xf32>) d_v(%d4 : !q)) {scale = 0.125 : f32, schedules = [#schedule]}
  return
}

!wide = memref<?x4x?x256xbf16>
// Sums of several gradients do not fit in registers.
// CHECK-LABEL: func.func @apart
// CHECK-NOT:     _dk1bf16_
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_keys_256x256_bf16_w2_t16s2_onekey_dk1bf16 {{.*}} threads in
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_keys_256x256_bf16_w2_t16s2_onekey_dvf32 {{.*}} threads in
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_queries_256x256_bf16_w2_t16s2_onekey_dq2bf16 {{.*}} threads in
func.func @apart(%q: !wide, %l: memref<f32>, %lse: !lse, %d1: !wide, %d2: !wide, %d3: memref<?x4x?x256xf32>) {
  diffattn.attention_backward ins(%q, %q, %q, %q, %q : !wide, !wide, !wide, !wide, !wide) d_out(%q : !wide) lambda(%l : memref<f32>)
    lse1(%lse : !lse) lse2(%lse : !lse) x(%q : !wide) o2(%q : !wide)
    outs(d_k1(%d1 : !wide) d_q2(%d2 : !wide) d_v(%d3 : memref<?x4x?x256xf32>)) {scale = 0.125 : f32,
      schedules = [#diffattn.gpu_backward<key_warps = 2, q_block_size = 16, query_warps = 2, kv_block_size = 16>]}
  return
}

// Rows of f32 are read where they lie, by a warp each.
// CHECK-LABEL: func.func @plain
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_keys_64x64_f32_plain4_onemap_anystride_dvf32 {{.*}} threads in
// CHECK-NOT:     gpu.launch_func
func.func @plain(%q: memref<?x4x?x64xf32>, %lse: !lse, %d: memref<?x4x?x64xf32>) {
  diffattn.attention_backward ins(%q, %q, %q : memref<?x4x?x64xf32>, memref<?x4x?x64xf32>, memref<?x4x?x64xf32>) d_out(%q : memref<?x4x?x64xf32>)
    lse1(%lse : !lse) x(%q : memref<?x4x?x64xf32>) outs(d_v(%d : memref<?x4x?x64xf32>)) {scale = 0.125 : f32, schedules = [#schedule]}
  return
}

!packed = memref<1x4x?x64xbf16>
// A grid of parts of sequences, as many as there may be for any bounds, which the host does not read; rows know no sequences.
// CHECK-LABEL: func.func @packed
// CHECK-NOT:     memref.load
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_rows_64_bf16_onemap_doutbf16_xbf16_lse1 blocks
// CHECK:         %[[PARTS:.+]] = arith.addi %{{.+}}, %c3{{.*}} : index
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_keys_64x64_bf16_w4_t32s2_onemap_packedi32_packedkeysi32_dk1bf16 blocks in (%[[PARTS]], %c4{{.*}}, %c1{{.*}}) threads in
// CHECK:         gpu.launch_func @diffattn_kernels::@diffattn_queries_64x64_bf16_w4_t32s2_onemap_packedi32_packedkeysi32_dq1bf16 {{.*}} threads in
// CHECK-NOT:     memref.load
// CHECK:         return
func.func @packed(%q: !packed, %k: !packed, %lse: memref<1x4x?xf32>, %bounds: memref<4xi32>, %d1: !packed, %d2: !packed) {
  diffattn.attention_backward ins(%q, %k, %k : !packed, !packed, !packed) d_out(%q : !packed)
    cu_seqlens_q(%bounds : memref<4xi32>) cu_seqlens_k(%bounds : memref<4xi32>) lse1(%lse : memref<1x4x?xf32>) x(%q : !packed)
    outs(d_q1(%d1 : !packed) d_k1(%d2 : !packed)) {scale = 0.125 : f32, schedules = [#schedule]}
  return
}

!all = memref<1x4x1024x64xbf16>
!rows = memref<1x4x1024xf32>
// Beside what a forward call saved, and the gradients, a call has dX, D1, D2 and the parts of what is shared: nothing of queries times keys.
// CHECK-LABEL: func.func @memory
// CHECK-NOT:     alloc
// CHECK:         gpu.alloc  () : memref<1x4x1024x64xbf16>
// CHECK-NOT:     alloc
// CHECK:         gpu.alloc  () : memref<1x4x1024xf32>
// CHECK-NOT:     alloc
// CHECK:         gpu.alloc  () : memref<1x4x1024xf32>
// CHECK-NOT:     alloc
// CHECK:         gpu.alloc  () : memref<1x4x64x64xf32>
// CHECK-NOT:     alloc
// CHECK:         gpu.alloc  () : memref<1x4x64xf32>
// CHECK-NOT:     {{[^e]}}alloc
// CHECK-COUNT-5: gpu.dealloc
// CHECK-NOT:     alloc
// CHECK:         return
func.func @memory(%q: !all, %k: !all, %l: memref<f32>, %lse: !rows, %w: memref<64xbf16>, %d1: !all, %d2: !all, %d3: !all, %d4: !all, %d5: !all,
                  %dl: memref<f32>, %dw: memref<64xbf16>, %dg: !all) {
  diffattn.attention_backward ins(%q, %q, %q, %k, %q : !all, !all, !all, !all, !all) d_out(%q : !all) lambda(%l : memref<f32>) norm_weight(%w : memref<64xbf16>)
    gate(%q : !all) lse1(%lse : !rows) lse2(%lse : !rows) x(%q : !all) o2(%q : !all)
    outs(d_q1(%d1 : !all) d_k1(%d2 : !all) d_q2(%d3 : !all) d_k2(%d4 : !all) d_v(%d5 : !all) d_lambda(%dl : memref<f32>) d_norm_weight(%dw : memref<64xbf16>)
         d_gate(%dg : !all)) {scale = 0.125 : f32, norm = #diffattn.norm<rms>, schedules = [#schedule]}
  return
}
