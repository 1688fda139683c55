// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-diffattn-to-vector{threads=2})" | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-diffattn-to-vector{threads=2})" | FileCheck %s --check-prefix=FEW
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-diffattn-to-vector{threads=1})" | FileCheck %s --check-prefix=ONE
// RUN: diffattn-opt %s --convert-diffattn-to-vector | FileCheck %s --check-prefix=ANY

// With few groups of heads for each thread, slices of queries are work items, and their sums another loop; norm weights and lambda are summed at the end.

!q = memref<1x2x64x16xf32>
#small = #diffattn.cpu_backward<isa = "avx2", lanes = 8, q_block_size = 16, qk_tile = [4, 2, 2], pv_tile = [4, 1, 2], kv_block_size = 16,
                                two_pass_keys = 1024, q_slice_size = 32>

// One thread takes less memory with one slice after the other; how many there are may be the runtime's to say.

// ONE:       func.func @slices(
// ONE-NOT:     diffattn_attention_backward_0_slices
// ONE:         llvm.mlir.addressof @diffattn_attention_backward_0 :
// ONE:         llvm.mlir.addressof @diffattn_attention_backward_0_sums
// ANY:       func.func @slices(
// ANY:         %[[THREADS:.*]] = llvm.call @diffattn_rt_threads()
// ANY:         scf.if
// ANY:           llvm.mlir.addressof @diffattn_attention_backward_0_slices
// ANY:         } else {
// ANY:           llvm.mlir.addressof @diffattn_attention_backward_0 :

// CHECK:       func.func @slices(
// CHECK:         %[[SLICES:.*]] = llvm.mlir.addressof @diffattn_attention_backward_0_slices
// CHECK:         llvm.call @diffattn_rt_parallel_for(%[[SLICES]], %[[CONTEXT:[^,]*]], %c4_i64{{.*}},
// CHECK:         %[[SUMS:.*]] = llvm.mlir.addressof @diffattn_attention_backward_0_slice_sums
// CHECK:         llvm.call @diffattn_rt_parallel_for(%[[SUMS]], %[[CONTEXT]],
// CHECK:         %[[LAST:.*]] = llvm.mlir.addressof @diffattn_attention_backward_0_sums
// CHECK:         llvm.call @diffattn_rt_parallel_for(%[[LAST]], %[[CONTEXT]],
// CHECK-NOT:     diffattn.attention_backward
// CHECK:       func.func @groups(
// CHECK:       llvm.func private @diffattn_attention_backward_0_slice(
// CHECK:         call @diffattn_scores_4x2_u2_r16_8_avx2(
// CHECK:         call @diffattn_scores_4x2_u2_r16_raw_8_avx2(
// CHECK:         call @diffattn_row_sums_2_r16_8_avx2(
// CHECK:         call @diffattn_score_gradients_2_r16_8_avx2(
// CHECK:         call @diffattn_lane_product_4x1_u2_r16_8_avx2(
// CHECK:         call @diffattn_product_4x1_u2_r16_8_avx2(
func.func @slices(%q: !q, %w: memref<16xf32>, %l: memref<f32>, %d: !q, %dw: memref<16xf32>, %dl: memref<f32>) {
  diffattn.attention_backward ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) d_out(%q : !q) lambda(%l : memref<f32>) norm_weight(%w : memref<16xf32>)
    outs(d_q1(%d : !q) d_k1(%d : !q) d_v(%d : !q) d_lambda(%dl : memref<f32>) d_norm_weight(%dw : memref<16xf32>))
    {scale = 0.25 : f32, norm = #diffattn.norm<rms>, schedules = [#small]}
  return
}

// One map, whose exponentials are kept as those of two are.

// CHECK:       llvm.func private @diffattn_attention_backward_1_slice(
// CHECK:         call @diffattn_scores_4x2_u2_r16_8_avx2(
// CHECK-NOT:     call @diffattn_scores
// CHECK:         call @diffattn_product_4x1_u2_r16_8_avx2(
// CHECK:         call @diffattn_scores_4x2_u2_r16_raw_8_avx2(
// CHECK:         call @diffattn_one_map_row_sums_2_r16_8_avx2(
// CHECK-NOT:     call @diffattn_scores
// CHECK:         call @diffattn_one_map_score_gradients_2_r16_8_avx2(
// CHECK-COUNT-2: call @diffattn_lane_product_4x1_u2_r16_8_avx2(
// CHECK:         call @diffattn_product_4x1_u2_r16_8_avx2(
// CHECK-NOT:     call @diffattn_lane_product
// CHECK:       llvm.func private @diffattn_attention_backward_1_store(
func.func @one_map(%q: !q, %w: memref<16xf32>, %d: !q, %dw: memref<16xf32>) {
  diffattn.attention_backward ins(%q, %q, %q : !q, !q, !q) d_out(%q : !q) norm_weight(%w : memref<16xf32>)
    outs(d_q1(%d : !q) d_k1(%d : !q) d_v(%d : !q) d_norm_weight(%dw : memref<16xf32>))
    {scale = 0.25 : f32, norm = #diffattn.norm<rms>, schedules = [#small]}
  return
}

// By matrix tiles of bf16: the values are rows, gradients of scores become tiles of queries for the product that contracts keys, and stay where they
// are for those that contract queries. Exponentials are f32 all the same.

// CHECK:       llvm.func private @diffattn_attention_backward_2_slice(
// CHECK:         call @diffattn_tile_scores_2_bf16_r32_16_amx(
// CHECK:         call @diffattn_exp_2_d3_scaled_r32_16_amx(
// CHECK:         call @diffattn_tile_scores_2_bf16_r32_raw_16_amx(
// CHECK:         call @diffattn_score_gradients_2_bf16_r32_16_amx(
// CHECK-NOT:     call @diffattn_{{(lane_)?product}}
// CHECK:         call @diffattn_tile_key_product_2_bf16_r32_16_amx(
// CHECK:         call @diffattn_tile_weights_bf16_r32_16_amx(
// CHECK:         call @diffattn_tile_product_2_bf16_n32_16_amx(
// CHECK-NOT:     call @diffattn_{{(lane_)?product}}
// CHECK:       llvm.func private @diffattn_attention_backward_2_store(
func.func @tiles(%q: memref<1x2x64x32xbf16>, %l: memref<f32>, %d: memref<1x2x64x32xbf16>) {
  diffattn.attention_backward ins(%q, %q, %q, %q, %q : memref<1x2x64x32xbf16>, memref<1x2x64x32xbf16>, memref<1x2x64x32xbf16>,
    memref<1x2x64x32xbf16>, memref<1x2x64x32xbf16>) d_out(%q : memref<1x2x64x32xbf16>) lambda(%l : memref<f32>)
    outs(d_q1(%d : memref<1x2x64x32xbf16>) d_v(%d : memref<1x2x64x32xbf16>)) {scale = 0.25 : f32,
    schedules = [#diffattn.cpu_backward<isa = "amx", lanes = 16, q_block_size = 32, qk_tile = [16, 2, 1], pv_tile = [32, 1, 1],
      kv_block_size = 32, two_pass_keys = 1024, q_slice_size = 32, product = bf16_tiles>]}
  return
}

// One slice, or enough groups: a work item stores gradients itself. Only what is wanted is computed.

// FEW:       func.func @groups(
// FEW:         llvm.mlir.addressof @diffattn_attention_backward_3 : !llvm.ptr
// FEW-NOT:     llvm.mlir.addressof
// FEW:       llvm.func private @diffattn_attention_backward_3_slice(
// FEW-NOT:     call @diffattn_{{row_sums|product}}
// FEW:         call @diffattn_score_gradients_2_r16_8_avx2(
// FEW-NOT:     call @diffattn_{{row_sums|product}}
// FEW:         call @diffattn_lane_product_4x1_u2_r16_8_avx2(
// FEW-NOT:     call @diffattn_{{row_sums|product|lane_product}}
// FEW:       llvm.func private @diffattn_attention_backward_3_store(
func.func @groups(%q: memref<8x2x64x16xf32>, %l: memref<f32>, %d: memref<8x2x64x16xf32>) {
  diffattn.attention_backward ins(%q, %q, %q, %q, %q : memref<8x2x64x16xf32>, memref<8x2x64x16xf32>, memref<8x2x64x16xf32>,
    memref<8x2x64x16xf32>, memref<8x2x64x16xf32>) d_out(%q : memref<8x2x64x16xf32>) lambda(%l : memref<f32>)
    outs(d_v(%d : memref<8x2x64x16xf32>)) {scale = 0.25 : f32, schedules = [#small]}
  return
}
