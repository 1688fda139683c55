// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

func.func @attention_c28_keys_alone(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %bk: tensor<3xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected cu_seqlens_q with cu_seqlens_k, but got none}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         cu_seqlens_k(%bk : tensor<3xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c28_queries_alone(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %bq: tensor<3xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected cu_seqlens_q with either cu_seqlens_k or block_table, but got none}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         cu_seqlens_q(%bq : tensor<3xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c28_both(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %len: tensor<2xi64>, %bq: tensor<3xi32>, %bk: tensor<3xi32>, %table: tensor<2x4xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected cu_seqlens_q with either cu_seqlens_k or block_table, but got both}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         kv_len(%len : tensor<2xi64>) cu_seqlens_q(%bq : tensor<3xi32>) cu_seqlens_k(%bk : tensor<3xi32>) block_table(%table : tensor<2x4xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c28_no_lengths(%q: tensor<1x2x6x8xf32>, %k: tensor<5x2x7x8xf32>, %l: tensor<f32>, %table: tensor<1x4xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected kv_len with block_table, but got none}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<5x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<5x2x7x8xf32>, tensor<5x2x7x8xf32>) lambda(%l : tensor<f32>)
         block_table(%table : tensor<1x4xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c28_lengths(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %len: tensor<2xi64>, %bq: tensor<3xi32>, %bk: tensor<3xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no kv_len with cu_seqlens_k, which says how many keys there are}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         kv_len(%len : tensor<2xi64>) cu_seqlens_q(%bq : tensor<3xi32>) cu_seqlens_k(%bk : tensor<3xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c29_bias(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %m: tensor<1x2x6x7xi1>, %bq: tensor<3xi32>, %bk: tensor<3xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no bias, segments and integral with cu_seqlens_q and block_table, but got a bias}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         bias(%m : tensor<1x2x6x7xi1>) cu_seqlens_q(%bq : tensor<3xi32>) cu_seqlens_k(%bk : tensor<3xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c29_segments(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %len: tensor<1xi64>, %qs: tensor<1x6xi32>, %ks: tensor<1x7xi32>, %table: tensor<1x4xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no bias, segments and integral with cu_seqlens_q and block_table, but got segments}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         kv_len(%len : tensor<1xi64>) q_segments(%qs : tensor<1x6xi32>) kv_segments(%ks : tensor<1x7xi32>) block_table(%table : tensor<1x4xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c29_integral(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %bq: tensor<3xi32>, %bk: tensor<3xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no bias, segments and integral with cu_seqlens_q and block_table, but got integral}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         cu_seqlens_q(%bq : tensor<3xi32>) cu_seqlens_k(%bk : tensor<3xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32, integral} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c30_bounds_rank(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %bq: tensor<1x3xi32>, %bk: tensor<3xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected cu_seqlens_q of rank 1, but got 'tensor<1x3xi32>'}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         cu_seqlens_q(%bq : tensor<1x3xi32>) cu_seqlens_k(%bk : tensor<3xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c30_bounds_none(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %bq: tensor<0xi32>, %bk: tensor<0xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected a positive length of cu_seqlens_q, but got 0}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         cu_seqlens_q(%bq : tensor<0xi32>) cu_seqlens_k(%bk : tensor<0xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c30_bounds_lengths(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %bq: tensor<3xi32>, %bk: tensor<4xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lengths of cu_seqlens_q and cu_seqlens_k to match, but got 3 and 4}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         cu_seqlens_q(%bq : tensor<3xi32>) cu_seqlens_k(%bk : tensor<4xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c30_batches(%q: tensor<2x2x6x8xf32>, %k: tensor<2x2x7x8xf32>, %l: tensor<f32>, %bq: tensor<3xi32>, %bk: tensor<3xi32>, %init: tensor<2x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected one batch of q1, in which sequences follow one another, but got 2}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<2x2x6x8xf32>, tensor<2x2x7x8xf32>, tensor<2x2x6x8xf32>,
         tensor<2x2x7x8xf32>, tensor<2x2x7x8xf32>) lambda(%l : tensor<f32>)
         cu_seqlens_q(%bq : tensor<3xi32>) cu_seqlens_k(%bk : tensor<3xi32>)
         outs(%init : tensor<2x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<2x2x6x8xf32>
  return
}

// -----

func.func @attention_c30_offsets(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %off: tensor<3xi64>, %bq: tensor<3xi32>, %bk: tensor<3xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected q_offset of length 2, the number of sequences, but got 3}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         q_offset(%off : tensor<3xi64>) cu_seqlens_q(%bq : tensor<3xi32>) cu_seqlens_k(%bk : tensor<3xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c30_table_rank(%q: tensor<1x2x6x8xf32>, %k: tensor<5x2x7x8xf32>, %l: tensor<f32>, %len: tensor<1xi64>, %table: tensor<4xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected block_table of rank 2, but got 'tensor<4xi32>'}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<5x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<5x2x7x8xf32>, tensor<5x2x7x8xf32>) lambda(%l : tensor<f32>)
         kv_len(%len : tensor<1xi64>) block_table(%table : tensor<4xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c30_table_rows(%q: tensor<1x2x6x8xf32>, %k: tensor<5x2x7x8xf32>, %l: tensor<f32>, %len: tensor<1xi64>, %table: tensor<2x4xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected batches of q1 and block_table to match, but got 1 and 2}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<5x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<5x2x7x8xf32>, tensor<5x2x7x8xf32>) lambda(%l : tensor<f32>)
         kv_len(%len : tensor<1xi64>) block_table(%table : tensor<2x4xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c30_table_sequences(%q: tensor<1x2x6x8xf32>, %k: tensor<5x2x7x8xf32>, %l: tensor<f32>, %len: tensor<2xi64>, %bq: tensor<3xi32>, %table: tensor<1x4xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected block_table of length 2, the number of sequences, but got 1}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<5x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<5x2x7x8xf32>, tensor<5x2x7x8xf32>) lambda(%l : tensor<f32>)
         kv_len(%len : tensor<2xi64>) cu_seqlens_q(%bq : tensor<3xi32>) block_table(%table : tensor<1x4xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c30_page_rows(%q: tensor<1x2x6x8xf32>, %k: tensor<5x2x0x8xf32>, %l: tensor<f32>, %len: tensor<1xi64>, %table: tensor<1x4xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected a positive number of keys in a page of k1, but got 0}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<5x2x0x8xf32>, tensor<1x2x6x8xf32>,
         tensor<5x2x0x8xf32>, tensor<5x2x0x8xf32>) lambda(%l : tensor<f32>)
         kv_len(%len : tensor<1xi64>) block_table(%table : tensor<1x4xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c30_pages(%q: tensor<1x2x6x8xf32>, %k: tensor<0x2x4x8xf32>, %l: tensor<f32>, %len: tensor<1xi64>, %table: tensor<1x4xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected a positive number of pages of k1, but got 0}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<0x2x4x8xf32>, tensor<1x2x6x8xf32>,
         tensor<0x2x4x8xf32>, tensor<0x2x4x8xf32>) lambda(%l : tensor<f32>)
         kv_len(%len : tensor<1xi64>) block_table(%table : tensor<1x4xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c31_packed(%q: tensor<1x2x6x8xf32>, %k: tensor<1x2x7x8xf32>, %l: tensor<f32>, %bq: tensor<3xi32>, %bk: tensor<3xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no size_bounds with cu_seqlens_q}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) lambda(%l : tensor<f32>)
         cu_seqlens_q(%bq : tensor<3xi32>) cu_seqlens_k(%bk : tensor<3xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32, size_bounds = #diffattn.size_bounds<max_keys = 9>} -> tensor<1x2x6x8xf32>
  return
}

// -----

func.func @attention_c31_pages(%q: tensor<1x2x6x8xf32>, %k: tensor<5x2x7x8xf32>, %l: tensor<f32>, %len: tensor<1xi64>, %table: tensor<1x4xi32>, %init: tensor<1x2x6x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no size_bounds with block_table}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x6x8xf32>, tensor<5x2x7x8xf32>, tensor<1x2x6x8xf32>,
         tensor<5x2x7x8xf32>, tensor<5x2x7x8xf32>) lambda(%l : tensor<f32>)
         kv_len(%len : tensor<1xi64>) block_table(%table : tensor<1x4xi32>)
         outs(%init : tensor<1x2x6x8xf32>) {scale = 1.0 : f32, size_bounds = #diffattn.size_bounds<max_queries = 9>} -> tensor<1x2x6x8xf32>
  return
}
