// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

// The constraints on ranges of keys, each under its label; every other constraint
// holds.

func.func @online_attention_c20(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<3x2x4x8xf32>, %sum1: tensor<3x2x4x8xf32>, %acc1: tensor<3x2x4x8x32xf32>, %max2: tensor<3x2x2x8xf32>, %sum2: tensor<3x2x2x8xf32>, %acc2: tensor<3x2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected kv_split_size to be positive, but got 0}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<3x2x4x8xf32>, tensor<3x2x4x8xf32>,
         tensor<3x2x4x8x32xf32>, tensor<3x2x2x8xf32>, tensor<3x2x2x8xf32>,
         tensor<3x2x2x8x32xf32>) {scale = 1.0 : f32, kv_split_size = 0}
         -> tensor<3x2x4x8xf32>, tensor<3x2x4x8xf32>,
         tensor<3x2x4x8x32xf32>, tensor<3x2x2x8xf32>, tensor<3x2x2x8xf32>,
         tensor<3x2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c20_k_offset(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<3x2x4x8xf32>, %sum1: tensor<3x2x4x8xf32>, %acc1: tensor<3x2x4x8x32xf32>, %max2: tensor<3x2x2x8xf32>, %sum2: tensor<3x2x2x8xf32>, %acc2: tensor<3x2x2x8x32xf32>, %o: index) {
  // expected-error @below {{'diffattn.online_attention' op expected no k_offset where kv_split_size is given, but got one}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) k_offset(%o)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<3x2x4x8xf32>, tensor<3x2x4x8xf32>,
         tensor<3x2x4x8x32xf32>, tensor<3x2x2x8xf32>, tensor<3x2x2x8xf32>,
         tensor<3x2x2x8x32xf32>) {scale = 1.0 : f32, kv_split_size = 2}
         -> tensor<3x2x4x8xf32>, tensor<3x2x4x8xf32>,
         tensor<3x2x4x8x32xf32>, tensor<3x2x2x8xf32>, tensor<3x2x2x8xf32>,
         tensor<3x2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c21(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<3x2x4x8xf32>, %sum1: tensor<3x2x4x8xf32>, %acc1: tensor<3x2x4x8x32xf32>, %max2: tensor<3x2x2x8xf32>, %sum2: tensor<4x2x2x8xf32>, %acc2: tensor<3x2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected ranges of max1 and sum2 to match, but got 3 and 4}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<3x2x4x8xf32>, tensor<3x2x4x8xf32>,
         tensor<3x2x4x8x32xf32>, tensor<3x2x2x8xf32>, tensor<4x2x2x8xf32>,
         tensor<3x2x2x8x32xf32>) {scale = 1.0 : f32, kv_split_size = 2}
         -> tensor<3x2x4x8xf32>, tensor<3x2x4x8xf32>,
         tensor<3x2x4x8x32xf32>, tensor<3x2x2x8xf32>, tensor<4x2x2x8xf32>,
         tensor<3x2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c21_too_few(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<1x2x4x8xf32>, %sum1: tensor<1x2x4x8xf32>, %acc1: tensor<1x2x4x8x32xf32>, %max2: tensor<1x2x2x8xf32>, %sum2: tensor<1x2x2x8xf32>, %acc2: tensor<1x2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected at least 2 ranges of 5 keys of max1, but got 1}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>,
         tensor<1x2x4x8x32xf32>, tensor<1x2x2x8xf32>, tensor<1x2x2x8xf32>,
         tensor<1x2x2x8x32xf32>) {scale = 1.0 : f32, kv_split_size = 5}
         -> tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>,
         tensor<1x2x4x8x32xf32>, tensor<1x2x2x8xf32>, tensor<1x2x2x8xf32>,
         tensor<1x2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c22(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<3x2x4x8xf32>, %sum1: tensor<3x2x4x8xf32>, %acc1: tensor<3x2x4x8x32xf32>, %max2: tensor<3x2x2x8xf32>, %sum2: tensor<3x2x2x8xf32>, %acc2: tensor<3x2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected kv_split_size of its schedule, 512, but got 2}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<3x2x4x8xf32>, tensor<3x2x4x8xf32>,
         tensor<3x2x4x8x32xf32>, tensor<3x2x2x8xf32>, tensor<3x2x2x8xf32>,
         tensor<3x2x2x8x32xf32>) {scale = 1.0 : f32, kv_split_size = 2,
         schedule = #diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>}
         -> tensor<3x2x4x8xf32>, tensor<3x2x4x8xf32>,
         tensor<3x2x4x8x32xf32>, tensor<3x2x2x8xf32>, tensor<3x2x2x8xf32>,
         tensor<3x2x2x8x32xf32>
  return
}

// -----

func.func @merge_c7(%max: tensor<5x2x2x8xf32>, %sum: tensor<5x2x2x8xf32>, %acc: tensor<4x2x4x8x32xf32>, %max0: tensor<2x2x8xf32>, %sum0: tensor<2x2x8xf32>, %acc0: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.merge' op expected ranges of max and acc to match, but got 5 and 4}}
  %s:3 = diffattn.merge ins(%max, %sum, %acc : tensor<5x2x2x8xf32>, tensor<5x2x2x8xf32>,
         tensor<4x2x4x8x32xf32>) outs(%max0, %sum0, %acc0 : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x32xf32>) -> tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x4x8x32xf32>
  return
}

// -----

func.func @merge_c7_rank(%max: tensor<5x2x2x8xf32>, %sum: tensor<2x2x8xf32>, %acc: tensor<5x2x4x8x32xf32>, %max0: tensor<2x2x8xf32>, %sum0: tensor<2x2x8xf32>, %acc0: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.merge' op expected sum of rank 4, but got 'tensor<2x2x8xf32>'}}
  %s:3 = diffattn.merge ins(%max, %sum, %acc : tensor<5x2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<5x2x4x8x32xf32>) outs(%max0, %sum0, %acc0 : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x32xf32>) -> tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x4x8x32xf32>
  return
}

// -----

func.func @online_attention_c23(%q: memref<1x2x?x16xbf16>, %k: memref<1x2x?x16xbf16>, %bounds: memref<4xi32>, %max: memref<?x1x2x?xf32>, %acc: memref<?x1x2x?x16xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected cu_seqlens_q, cu_seqlens_k and block_table on memrefs with a schedule, but got none}}
  diffattn.online_attention ins(%q, %k, %q, %k, %k : memref<1x2x?x16xbf16>, memref<1x2x?x16xbf16>, memref<1x2x?x16xbf16>, memref<1x2x?x16xbf16>, memref<1x2x?x16xbf16>)
      cu_seqlens_q(%bounds : memref<4xi32>) cu_seqlens_k(%bounds : memref<4xi32>)
      outs(%max, %max, %acc, %max, %max, %acc : memref<?x1x2x?xf32>, memref<?x1x2x?xf32>, memref<?x1x2x?x16xf32>, memref<?x1x2x?xf32>, memref<?x1x2x?xf32>, memref<?x1x2x?x16xf32>)
      {scale = 1.0 : f32, kv_split_size = 16}
  return
}

// -----

func.func @online_attention_c23_forms(%q: memref<1x2x?x16xbf16>, %k: memref<1x2x?x16xbf16>, %bounds: memref<4xi32>, %max: memref<?x1x2x?xf32>, %acc: memref<?x1x2x?x16xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected cu_seqlens_q with either cu_seqlens_k or block_table, but got none}}
  diffattn.online_attention ins(%q, %k, %q, %k, %k : memref<1x2x?x16xbf16>, memref<1x2x?x16xbf16>, memref<1x2x?x16xbf16>, memref<1x2x?x16xbf16>, memref<1x2x?x16xbf16>)
      cu_seqlens_q(%bounds : memref<4xi32>)
      outs(%max, %max, %acc, %max, %max, %acc : memref<?x1x2x?xf32>, memref<?x1x2x?xf32>, memref<?x1x2x?x16xf32>, memref<?x1x2x?xf32>, memref<?x1x2x?xf32>, memref<?x1x2x?x16xf32>)
      {scale = 1.0 : f32, kv_split_size = 16, schedule = #diffattn.gpu_split_kv<warps = 1, kv_split_size = 16>}
  return
}
