// RUN: diffattn-opt %s --split-input-file --verify-diagnostics --convert-diffattn-to-vector

#unknown = #diffattn.cpu_prefill<isa = "avx1024", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, two_pass_keys = 16384>

func.func @attention(%q: memref<1x2x64x16xf32>, %l: memref<f32>) {
  // expected-error @below {{'diffattn.attention' op expected the schedule's isa to be known, but got "avx1024"}}
  diffattn.attention ins(%q, %q, %q, %q, %q : memref<1x2x64x16xf32>, memref<1x2x64x16xf32>, memref<1x2x64x16xf32>, memref<1x2x64x16xf32>,
    memref<1x2x64x16xf32>) lambda(%l : memref<f32>) outs(%q : memref<1x2x64x16xf32>) {scale = 0.25 : f32, schedules = [#unknown]}
  return
}

// -----

func.func @gradients(%q: memref<1x2x64x16xf32>, %l: memref<f32>, %d: memref<1x2x64x16xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected the schedule's isa to be known, but got "avx1024"}}
  diffattn.attention_backward ins(%q, %q, %q, %q, %q : memref<1x2x64x16xf32>, memref<1x2x64x16xf32>, memref<1x2x64x16xf32>,
    memref<1x2x64x16xf32>, memref<1x2x64x16xf32>) d_out(%q : memref<1x2x64x16xf32>) lambda(%l : memref<f32>)
    outs(d_v(%d : memref<1x2x64x16xf32>)) {scale = 0.25 : f32, schedules = [#diffattn.cpu_backward<isa = "avx1024", lanes = 8, q_block_size = 16,
      qk_tile = [4, 2, 2], pv_tile = [4, 1, 2], kv_block_size = 16, two_pass_keys = 1024, q_slice_size = 32>]}
  return
}
