// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_80},convert-diffattn-to-gpu{chip=sm_80},diffattn-gpu-to-ptx{file=%t})" | FileCheck %s
// RUN: FileCheck %s --check-prefix=PTX --input-file=%t.ptx

// CHECK: diffattn.ptxas = {{.*}}diffattn_keys_64x128_bf16_w4_t32s2_dk1bf16_dk2bf16_dvbf16 = {registers = {{[0-9]+}} : i64, spill_loads = 0 : i64, spill_stores = 0 : i64}{{.*}}diffattn_queries_64x128_bf16_w4_t32s2_dq1bf16_dq2bf16 = {registers = {{[0-9]+}} : i64, spill_loads = 0 : i64, spill_stores = 0 : i64}

// No kernel adds to memory that others add to.
// PTX-NOT: {{[[:space:]]red[.]}}
// PTX-NOT: {{[[:space:]]atom[.]}}
// PTX:     .visible .entry diffattn_keys_64x128_bf16_w4_t32s2_dk1bf16_dk2bf16_dvbf16(
// PTX-NOT: .entry
// PTX:     cp.async.ca.shared.global [{{.*}}], [{{.*}}], 4
// PTX-NOT: {{[[:space:]]red[.]}}
// PTX-NOT: {{[[:space:]]atom[.]}}
// PTX:     .visible .entry diffattn_queries_64x128_bf16_w4_t32s2_dq1bf16_dq2bf16(
// PTX-NOT: {{[[:space:]]red[.]}}
// PTX-NOT: {{[[:space:]]atom[.]}}
!q = memref<?x4x?x64xbf16>
!v = memref<?x4x?x128xbf16>
!lse = memref<?x4x?xf32>
func.func @gradients(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !v, %lse: !lse, %l: memref<f32>, %d_q1: !q, %d_k1: !q, %d_q2: !q, %d_k2: !q, %d_v: !v) {
  diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : !q, !q, !q, !q, !v) d_out(%v : !v) lambda(%l : memref<f32>)
    lse1(%lse : !lse) lse2(%lse : !lse) x(%v : !v) o2(%v : !v)
    outs(d_q1(%d_q1 : !q) d_k1(%d_k1 : !q) d_q2(%d_q2 : !q) d_k2(%d_k2 : !q) d_v(%d_v : !v)) {scale = 0.125 : f32, is_causal}
  return
}
