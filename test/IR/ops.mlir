// RUN: diffattn-opt %s --verify-roundtrip | FileCheck %s

// CHECK-LABEL: func.func @v1
// CHECK:       diffattn.attention ins
func.func @v1(%q: tensor<1x8x512x64xf32>, %v: tensor<1x8x512x128xf32>, %l: tensor<f32>)
    -> tensor<1x8x512x128xf32> {
  %init = tensor.empty() : tensor<1x8x512x128xf32>
  %o = diffattn.attention ins(%q, %q, %q, %q, %v : tensor<1x8x512x64xf32>, tensor<1x8x512x64xf32>,
         tensor<1x8x512x64xf32>, tensor<1x8x512x64xf32>, tensor<1x8x512x128xf32>)
         lambda(%l : tensor<f32>) outs(%init : tensor<1x8x512x128xf32>)
         {scale = 0.125 : f32, is_causal, norm = #diffattn.norm<rms>, out_scale = 0.8 : f32}
         -> tensor<1x8x512x128xf32>
  return %o : tensor<1x8x512x128xf32>
}

// One map, as attention and as states, which are three.
// CHECK-LABEL: func.func @one_map
// CHECK:       diffattn.attention ins(%{{.+}}, %{{.+}}, %{{.+}} : tensor<1x8x512x64xf32>, tensor<1x8x512x64xf32>, tensor<1x8x512x128xf32>) outs(
// CHECK:       diffattn.online_attention ins(%{{.+}}, %{{.+}}, %{{.+}} : tensor<1x8x512x64xf32>, tensor<1x8x512x64xf32>, tensor<1x8x512x128xf32>) outs(
// CHECK:       diffattn.finalize ins(%{{.+}}#1, %{{.+}}#2 : tensor<1x8x512xf32>, tensor<1x8x512x128xf32>) outs(
func.func @one_map(%q: tensor<1x8x512x64xf32>, %v: tensor<1x8x512x128xf32>, %m: tensor<1x8x512xf32>, %a: tensor<1x8x512x128xf32>)
    -> (tensor<1x8x512x128xf32>, tensor<1x8x512x128xf32>) {
  %0 = diffattn.attention ins(%q, %q, %v : tensor<1x8x512x64xf32>, tensor<1x8x512x64xf32>, tensor<1x8x512x128xf32>)
         outs(%a : tensor<1x8x512x128xf32>) {scale = 0.125 : f32, is_causal} -> tensor<1x8x512x128xf32>
  %s:3 = diffattn.online_attention ins(%q, %q, %v : tensor<1x8x512x64xf32>, tensor<1x8x512x64xf32>, tensor<1x8x512x128xf32>)
           outs(%m, %m, %a : tensor<1x8x512xf32>, tensor<1x8x512xf32>, tensor<1x8x512x128xf32>) {scale = 0.125 : f32}
           -> tensor<1x8x512xf32>, tensor<1x8x512xf32>, tensor<1x8x512x128xf32>
  %1 = diffattn.finalize ins(%s#1, %s#2 : tensor<1x8x512xf32>, tensor<1x8x512x128xf32>)
         outs(%a : tensor<1x8x512x128xf32>) {norm = #diffattn.norm<rms>} -> tensor<1x8x512x128xf32>
  return %0, %1 : tensor<1x8x512x128xf32>, tensor<1x8x512x128xf32>
}

// What ends states takes sinks and gives logarithms of sums, of both maps.
// CHECK-LABEL: func.func @end_with_sums
// CHECK:       diffattn.finalize {{.*}} max1(%{{.+}} : {{.*}}) max2(%{{.+}} : {{.*}}) sink(%{{.+}} : tensor<4xf32>) sink2(%{{.+}} : tensor<2xbf16>) outs(
// CHECK-SAME:    lse1(%{{.+}} : tensor<1x4x8xf32>) lse2(%{{.+}} : tensor<1x2x8xf32>) -> tensor<1x4x8x16xbf16>, tensor<1x4x8xf32>, tensor<1x2x8xf32>
func.func @end_with_sums(%m: tensor<1x4x8xf32>, %m2: tensor<1x2x8xf32>, %a: tensor<1x4x8x16xf32>, %l: tensor<f32>, %s: tensor<4xf32>,
    %s2: tensor<2xbf16>, %o: tensor<1x4x8x16xbf16>) -> (tensor<1x4x8x16xbf16>, tensor<1x4x8xf32>, tensor<1x2x8xf32>) {
  %r:3 = diffattn.finalize ins(%m, %a, %m2, %a : tensor<1x4x8xf32>, tensor<1x4x8x16xf32>, tensor<1x2x8xf32>, tensor<1x4x8x16xf32>)
         lambda(%l : tensor<f32>) max1(%m : tensor<1x4x8xf32>) max2(%m2 : tensor<1x2x8xf32>) sink(%s : tensor<4xf32>) sink2(%s2 : tensor<2xbf16>)
         outs(%o : tensor<1x4x8x16xbf16>) lse1(%m : tensor<1x4x8xf32>) lse2(%m2 : tensor<1x2x8xf32>)
         -> tensor<1x4x8x16xbf16>, tensor<1x4x8xf32>, tensor<1x2x8xf32>
  return %r#0, %r#1, %r#2 : tensor<1x4x8x16xbf16>, tensor<1x4x8xf32>, tensor<1x2x8xf32>
}

// A result in f32 beside 16-bit operands is not rounded.
// CHECK-LABEL: func.func @f32_result
// CHECK:       diffattn.attention {{.*}} -> tensor<1x8x512x128xf32>
func.func @f32_result(%q: tensor<1x8x512x64xbf16>, %v: tensor<1x8x512x128xbf16>, %l: tensor<f32>)
    -> tensor<1x8x512x128xf32> {
  %init = tensor.empty() : tensor<1x8x512x128xf32>
  %o = diffattn.attention ins(%q, %q, %q, %q, %v : tensor<1x8x512x64xbf16>, tensor<1x8x512x64xbf16>,
         tensor<1x8x512x64xbf16>, tensor<1x8x512x64xbf16>, tensor<1x8x512x128xbf16>)
         lambda(%l : tensor<f32>) outs(%init : tensor<1x8x512x128xf32>) {scale = 0.125 : f32}
         -> tensor<1x8x512x128xf32>
  return %o : tensor<1x8x512x128xf32>
}

// Attributes of other dialects pass, and so do marks that passes leave.
// CHECK-LABEL: func.func @foreign_attributes
// CHECK: __mark__
// CHECK-SAME: llvm.unknown = 3
func.func @foreign_attributes(%q: memref<1x1x4x16xf32>, %l: memref<f32>, %o: memref<1x1x4x16xf32>) {
  diffattn.attention ins(%q, %q, %q, %q, %q : memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<1x1x4x16xf32>,
      memref<1x1x4x16xf32>) lambda(%l : memref<f32>) outs(%o : memref<1x1x4x16xf32>) {scale = 1.0 : f32, llvm.unknown = 3 : i64, __mark__}
  return
}

// Every family of kernels, with and without a condition; what has its default is not printed.
// CHECK-LABEL: func.func @schedules
// CHECK: schedules = [#diffattn.when<max_queries = 8, min_keys = 9 : #diffattn.cpu_split_kv<isa = "avx512bf16", lanes = 16, kv_split_size = 512, qk_rows = 4, q_vectors = 16, pv_rows = 2, pv_keys = 32, o_vectors = 16, o_row_vectors = 8, product = bf16_pairs>>,
// CHECK-SAME: #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = 0>,
// CHECK-SAME: #diffattn.when<max_queries = 8 : #diffattn.gpu_split_kv<warps = 4, stages = 3, q_in_registers = true, kv_split_size = 512>>,
// CHECK-SAME: #diffattn.when<unaligned = true : #diffattn.gpu_forward<placement = apart, warps = 4, row_tiles = 2, kv_block_size = 32>>,
// CHECK-SAME: #diffattn.when<min_keys = 7 : #diffattn.gpu_plain<warps = 4>>, #diffattn.linalg]
func.func @schedules(%q: memref<1x1x?x16xf32>, %l: memref<f32>, %o: memref<1x1x?x16xf32>) {
  diffattn.attention ins(%q, %q, %q, %q, %q : memref<1x1x?x16xf32>, memref<1x1x?x16xf32>, memref<1x1x?x16xf32>, memref<1x1x?x16xf32>,
      memref<1x1x?x16xf32>) lambda(%l : memref<f32>) outs(%o : memref<1x1x?x16xf32>) {scale = 1.0 : f32, schedules = [
      #diffattn.when<max_queries = 8, min_keys = 9 : #diffattn.cpu_split_kv<isa = "avx512bf16", lanes = 16, kv_split_size = 512,
        qk_rows = 4, q_vectors = 16, pv_rows = 2, pv_keys = 32, o_vectors = 16, o_row_vectors = 8, product = bf16_pairs>>,
      #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128,
        two_pass_keys = 0, product = f32>,
      #diffattn.when<max_queries = 8 : #diffattn.gpu_split_kv<warps = 4, stages = 3, q_in_registers = true, kv_split_size = 512>>,
      #diffattn.when<unaligned = true : #diffattn.gpu_forward<placement = apart, warps = 4, row_tiles = 2, kv_block_size = 32, stages = 2>>,
      #diffattn.when<min_keys = 7 : #diffattn.gpu_plain<warps = 4>>, #diffattn.linalg]}
  return
}

// The kinds of masks that `getMasks()` lists.
// CHECK-LABEL: func.func private @masks
// CHECK-SAME:  diffattn.m = [#diffattn.length_mask, #diffattn.causal_mask, #diffattn.window_mask<left = 3, right = -1>,
// CHECK-SAME:  #diffattn.boolean_mask, #diffattn.additive_bias, #diffattn.segment_mask]
func.func private @masks() attributes {
  diffattn.m = [#diffattn.length_mask, #diffattn.causal_mask, #diffattn.window_mask<left = 3, right = -1>,
                #diffattn.boolean_mask, #diffattn.additive_bias, #diffattn.segment_mask]}

// Segments, in the order of the ops' definition.
// CHECK-LABEL: func.func @segments
// CHECK:       diffattn.attention {{.*}} q_offset({{.*}}) q_segments(%{{.*}} : tensor<1x4xi32>) kv_segments(%{{.*}} : tensor<1x?xi32>) outs
// CHECK:       diffattn.online_attention {{.*}} q_segments(%{{.*}} : tensor<1x4xi32>) kv_segments(%{{.*}} : tensor<1x?xi32>) k_offset
func.func @segments(%q: tensor<1x1x4x8xf32>, %k: tensor<1x1x?x8xf32>, %l: tensor<f32>, %p: tensor<1xi64>, %qs: tensor<1x4xi32>,
                    %ks: tensor<1x?xi32>, %m: tensor<1x1x4xf32>, %at: index) {
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x1x4x8xf32>, tensor<1x1x?x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x?x8xf32>,
      tensor<1x1x?x8xf32>) lambda(%l : tensor<f32>) q_offset(%p : tensor<1xi64>) q_segments(%qs : tensor<1x4xi32>)
      kv_segments(%ks : tensor<1x?xi32>) outs(%q : tensor<1x1x4x8xf32>) {scale = 1.0 : f32} -> tensor<1x1x4x8xf32>
  %s:6 = diffattn.online_attention ins(%q, %k, %q, %k, %k : tensor<1x1x4x8xf32>, tensor<1x1x?x8xf32>, tensor<1x1x4x8xf32>,
      tensor<1x1x?x8xf32>, tensor<1x1x?x8xf32>) q_segments(%qs : tensor<1x4xi32>) kv_segments(%ks : tensor<1x?xi32>) k_offset(%at)
      outs(%m, %m, %q, %m, %m, %q : tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>,
      tensor<1x1x4x8xf32>) {scale = 1.0 : f32}
      -> tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4x8xf32>
  return
}

// CHECK-LABEL: func.func @packed(
// CHECK:         cu_seqlens_q(%{{.+}} : tensor<3xi32>) cu_seqlens_k(%{{.+}} : tensor<?xi64>) outs(
func.func @packed(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %bq: tensor<3xi32>, %bk: tensor<?xi64>) -> tensor<1x2x6x8xf32> {
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>)
         lambda(%l : tensor<f32>) cu_seqlens_q(%bq : tensor<3xi32>) cu_seqlens_k(%bk : tensor<?xi64>)
         outs(%q : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return %o : tensor<1x2x6x8xf32>
}

// Both batches of a table, and sequences of one batch.
// CHECK-LABEL: func.func @paged(
// CHECK:         kv_len(%{{.+}} : tensor<2xi64>) block_table(%{{.+}} : tensor<2x3xi64>) outs(
func.func @paged(%q: tensor<2x2x6x8xf32>, %k: tensor<9x2x16x8xf32>, %l: tensor<f32>, %len: tensor<2xi64>, %table: tensor<2x3xi64>) -> tensor<2x2x6x8xf32> {
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<2x2x6x8xf32>, tensor<9x2x16x8xf32>, tensor<2x2x6x8xf32>, tensor<9x2x16x8xf32>, tensor<9x2x16x8xf32>)
         lambda(%l : tensor<f32>) kv_len(%len : tensor<2xi64>) block_table(%table : tensor<2x3xi64>)
         outs(%q : tensor<2x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<2x2x6x8xf32>
  return %o : tensor<2x2x6x8xf32>
}

// Every gradient, of everything that attention may have, and what a forward pass may have kept.
// CHECK-LABEL: func.func @attention_backward(
// CHECK:       diffattn.attention_backward ins(%
// CHECK-SAME:  d_out(%
// CHECK-SAME:  lambda(%
// CHECK-SAME:  bias(%
// CHECK-SAME:  norm_weight(%
// CHECK-SAME:  gate(%
// CHECK-SAME:  kv_len(%
// CHECK-SAME:  q_offset(%
// CHECK-SAME:  q_segments(%
// CHECK-SAME:  kv_segments(%
// CHECK-SAME:  lse1(%
// CHECK-SAME:  lse2(%
// CHECK-SAME:  x(%
// CHECK-SAME:  o2(%
// CHECK-SAME:  outs(d_q1(%
// CHECK-SAME:  d_k1(%
// CHECK-SAME:  d_q2(%
// CHECK-SAME:  d_k2(%
// CHECK-SAME:  d_v(%
// CHECK-SAME:  d_lambda(%
// CHECK-SAME:  d_bias(%
// CHECK-SAME:  d_norm_weight(%
// CHECK-SAME:  d_gate(%
func.func @attention_backward(%q1: tensor<2x4x8x16xbf16>, %k1: tensor<2x2x6x16xbf16>, %q2: tensor<2x2x8x16xbf16>, %k2: tensor<2x1x6x16xbf16>,
    %v: tensor<2x2x6x32xbf16>, %d: tensor<2x4x8x32xf32>, %l: tensor<2x8x2xf32>, %bias: tensor<1x2x8x6xbf16>, %w: tensor<32xf32>,
    %gate: tensor<2x4x8x32xbf16>, %n: tensor<2xi64>, %qs: tensor<2x8xi32>, %ks: tensor<2x6xi32>, %lse1: tensor<2x4x8xf32>,
    %lse2: tensor<2x2x8xf32>) -> (tensor<2x4x8x16xbf16>, tensor<2x8x2xf32>) {
  %g:9 = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xbf16>, tensor<2x2x6x16xbf16>, tensor<2x2x8x16xbf16>,
           tensor<2x1x6x16xbf16>, tensor<2x2x6x32xbf16>) d_out(%d : tensor<2x4x8x32xf32>) lambda(%l : tensor<2x8x2xf32>)
           bias(%bias : tensor<1x2x8x6xbf16>) norm_weight(%w : tensor<32xf32>) gate(%gate : tensor<2x4x8x32xbf16>) kv_len(%n : tensor<2xi64>)
           q_offset(%n : tensor<2xi64>) q_segments(%qs : tensor<2x8xi32>) kv_segments(%ks : tensor<2x6xi32>) lse1(%lse1 : tensor<2x4x8xf32>)
           lse2(%lse2 : tensor<2x2x8xf32>) x(%d : tensor<2x4x8x32xf32>) o2(%gate : tensor<2x4x8x32xbf16>)
           outs(d_q1(%q1 : tensor<2x4x8x16xbf16>) d_k1(%k1 : tensor<2x2x6x16xbf16>) d_q2(%q2 : tensor<2x2x8x16xbf16>)
                d_k2(%k2 : tensor<2x1x6x16xbf16>) d_v(%v : tensor<2x2x6x32xbf16>) d_lambda(%l : tensor<2x8x2xf32>)
                d_bias(%bias : tensor<1x2x8x6xbf16>) d_norm_weight(%w : tensor<32xf32>) d_gate(%gate : tensor<2x4x8x32xbf16>))
           {scale = 0.25 : f32, is_causal, softcap = 20.0 : f32, norm = #diffattn.norm<rms>, out_scale = 0.8 : f32}
           -> tensor<2x4x8x16xbf16>, tensor<2x2x6x16xbf16>, tensor<2x2x8x16xbf16>, tensor<2x1x6x16xbf16>, tensor<2x2x6x32xbf16>,
              tensor<2x8x2xf32>, tensor<1x2x8x6xbf16>, tensor<32xf32>, tensor<2x4x8x32xbf16>
  return %g#0, %g#5 : tensor<2x4x8x16xbf16>, tensor<2x8x2xf32>
}

// Gradients of one map.
// CHECK-LABEL: func.func @attention_backward_of_one_map(
// CHECK:       diffattn.attention_backward ins(%{{[^,]*}}, %{{[^,]*}}, %{{[^,]*}} : tensor<2x4x8x16xbf16>
// CHECK-SAME:  lse1(%
// CHECK-SAME:  outs(d_q1(%
// CHECK-SAME:  d_v(%
func.func @attention_backward_of_one_map(%q: tensor<2x4x8x16xbf16>, %d: tensor<2x4x8x16xf32>, %lse: tensor<2x4x8xf32>)
    -> (tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>) {
  %g:2 = diffattn.attention_backward ins(%q, %q, %q : tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>)
           d_out(%d : tensor<2x4x8x16xf32>) lse1(%lse : tensor<2x4x8xf32>)
           outs(d_q1(%q : tensor<2x4x8x16xbf16>) d_v(%q : tensor<2x4x8x16xbf16>)) {scale = 0.25 : f32}
           -> tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>
  return %g#0, %g#1 : tensor<2x4x8x16xbf16>, tensor<2x4x8x16xbf16>
}

// On buffers: two gradients, in f32 beside operands of 16 bits.
// CHECK-LABEL: func.func @attention_backward_on_buffers
// CHECK:       diffattn.attention_backward ins(%
// CHECK-SAME:  outs({{ ?}}d_k1(%
// CHECK-SAME:  d_lambda(%
func.func @attention_backward_on_buffers(%q: memref<1x1x4x16xf16>, %l: memref<f32>, %d: memref<1x1x4x16xf16>, %dk: memref<1x1x4x16xf32>, %dl: memref<f32>) {
  diffattn.attention_backward ins(%q, %q, %q, %q, %q : memref<1x1x4x16xf16>, memref<1x1x4x16xf16>, memref<1x1x4x16xf16>,
      memref<1x1x4x16xf16>, memref<1x1x4x16xf16>) d_out(%d : memref<1x1x4x16xf16>) lambda(%l : memref<f32>)
      outs(d_k1(%dk : memref<1x1x4x16xf32>) d_lambda(%dl : memref<f32>)) {scale = 1.0 : f32}
  return
}

// With destinations for what comes before the norm, and for map 2 times the values.
// CHECK-LABEL: func.func @saved
// CHECK:       diffattn.attention ins(%
// CHECK-SAME:  outs(%{{.*}} : tensor<1x8x512x128xbf16>) x(%{{.*}} : tensor<1x8x512x128xf32>) o2(%{{.*}} : tensor<1x8x512x128xbf16>)
// CHECK-SAME:  -> tensor<1x8x512x128xbf16>, tensor<1x8x512x128xf32>, tensor<1x8x512x128xbf16>
func.func @saved(%q: tensor<1x8x512x64xbf16>, %v: tensor<1x8x512x128xbf16>, %l: tensor<f32>, %x: tensor<1x8x512x128xf32>)
    -> (tensor<1x8x512x128xbf16>, tensor<1x8x512x128xf32>, tensor<1x8x512x128xbf16>) {
  %o:3 = diffattn.attention ins(%q, %q, %q, %q, %v : tensor<1x8x512x64xbf16>, tensor<1x8x512x64xbf16>, tensor<1x8x512x64xbf16>,
           tensor<1x8x512x64xbf16>, tensor<1x8x512x128xbf16>) lambda(%l : tensor<f32>) outs(%v : tensor<1x8x512x128xbf16>)
           x(%x : tensor<1x8x512x128xf32>) o2(%v : tensor<1x8x512x128xbf16>) {scale = 0.125 : f32, norm = #diffattn.norm<rms>}
           -> tensor<1x8x512x128xbf16>, tensor<1x8x512x128xf32>, tensor<1x8x512x128xbf16>
  return %o#0, %o#1, %o#2 : tensor<1x8x512x128xbf16>, tensor<1x8x512x128xf32>, tensor<1x8x512x128xbf16>
}

// With a term in each sum that is no key, and destinations of the logarithms of these sums.
// CHECK-LABEL: func.func @sums
// CHECK:       diffattn.attention ins(%
// CHECK-SAME:  sink(%{{.*}} : tensor<4xf32>) sink2(%{{.*}} : tensor<2xbf16>) outs(%{{.*}} : tensor<1x4x?x16xbf16>) lse1(%{{.*}} : tensor<1x4x?xf32>) lse2(%{{.*}} : tensor<1x2x?xf32>)
// CHECK-SAME:  -> tensor<1x4x?x16xbf16>, tensor<1x4x?xf32>, tensor<1x2x?xf32>
// CHECK:       diffattn.attention ins(%{{[^,]+}}, %{{[^,]+}}, %{{[^,]+}} :
// CHECK-SAME:  sink(%{{[^ ]+}} : tensor<4xf32>) outs(%
func.func @sums(%q1: tensor<1x4x?x16xbf16>, %q2: tensor<1x2x?x16xbf16>, %l: tensor<f32>, %s: tensor<4xf32>, %s2: tensor<2xbf16>,
                %m: tensor<1x4x?xf32>, %n: tensor<1x2x?xf32>)
    -> (tensor<1x4x?x16xbf16>, tensor<1x4x?xf32>, tensor<1x2x?xf32>, tensor<1x4x?x16xbf16>) {
  %o:3 = diffattn.attention ins(%q1, %q1, %q2, %q2, %q1 : tensor<1x4x?x16xbf16>, tensor<1x4x?x16xbf16>, tensor<1x2x?x16xbf16>,
           tensor<1x2x?x16xbf16>, tensor<1x4x?x16xbf16>) lambda(%l : tensor<f32>) sink(%s : tensor<4xf32>) sink2(%s2 : tensor<2xbf16>)
           outs(%q1 : tensor<1x4x?x16xbf16>) lse1(%m : tensor<1x4x?xf32>) lse2(%n : tensor<1x2x?xf32>) {scale = 0.25 : f32}
           -> tensor<1x4x?x16xbf16>, tensor<1x4x?xf32>, tensor<1x2x?xf32>
  %p = diffattn.attention ins(%q1, %q1, %q1 : tensor<1x4x?x16xbf16>, tensor<1x4x?x16xbf16>, tensor<1x4x?x16xbf16>)
         sink(%s : tensor<4xf32>) outs(%q1 : tensor<1x4x?x16xbf16>) {scale = 0.25 : f32} -> tensor<1x4x?x16xbf16>
  return %o#0, %o#1, %o#2, %p : tensor<1x4x?x16xbf16>, tensor<1x4x?xf32>, tensor<1x2x?xf32>, tensor<1x4x?x16xbf16>
}
