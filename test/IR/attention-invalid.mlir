// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

// One case for each constraint of docs/spec.md, under its label; every other
// constraint holds in it.

func.func @attention_c1(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: memref<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected operands that are all tensors or all memrefs, but got 'memref<f32>' and 'tensor<2x4x8x32xf32>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : memref<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c1_no_result(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected the number of tensor results (0) to be equal to the number of output tensors (1)}}
  diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32}
  return
}

// -----

func.func @attention_c1_result_type(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected type of operand #6 ('tensor<2x4x8x32xf32>') to match type of corresponding result ('tensor<2x4x?x32xf32>')}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x?x32xf32>
  return
}

// -----

func.func @attention_c1_memref_result(%q1: memref<2x4x8x16xf32>, %k1: memref<2x2x6x16xf32>, %q2: memref<2x2x8x16xf32>, %k2: memref<2x1x6x16xf32>, %v: memref<2x2x6x32xf32>, %l: memref<f32>, %init: memref<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected the number of tensor results (1) to be equal to the number of output tensors (0)}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : memref<2x4x8x16xf32>, memref<2x2x6x16xf32>,
         memref<2x2x8x16xf32>, memref<2x1x6x16xf32>, memref<2x2x6x32xf32>) lambda(%l : memref<f32>)
         outs(%init : memref<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c2(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xbf16>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected element type of k2 to be that of q1, 'f32', but got 'bf16'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xbf16>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c2_init(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf16>) {
  // expected-error @below {{'diffattn.attention' op expected element type of init to be that of q1, 'f32', but got 'f16'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf16>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf16>
  return
}

// -----

func.func @attention_c2_init_half(%q1: tensor<2x4x8x16xbf16>, %k1: tensor<2x2x6x16xbf16>, %q2: tensor<2x2x8x16xbf16>, %k2: tensor<2x1x6x16xbf16>, %v: tensor<2x2x6x32xbf16>, %l: tensor<f32>, %init: tensor<2x4x8x32xf16>) {
  // expected-error @below {{'diffattn.attention' op expected element type of init to be that of q1, 'bf16', or 'f32', but got 'f16'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xbf16>, tensor<2x2x6x16xbf16>,
         tensor<2x2x8x16xbf16>, tensor<2x1x6x16xbf16>, tensor<2x2x6x32xbf16>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf16>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf16>
  return
}

// -----

func.func @attention_c2_type(%q1: tensor<2x4x8x16xf64>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op operand #0 must be ranked tensor or memref of f32, f16 or bf16, but got 'tensor<2x4x8x16xf64>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf64>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c2_lambda_type(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<bf16>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op operand #5 must be ranked tensor or memref of f32, but got 'tensor<bf16>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<bf16>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c3(%q1: tensor<2x4x128xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected q1 of rank 4, but got 'tensor<2x4x128xf32>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x128xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c3_init(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x256xf32>) {
  // expected-error @below {{'diffattn.attention' op expected init of rank 4, but got 'tensor<2x4x256xf32>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x256xf32>) {scale = 1.0 : f32} -> tensor<2x4x256xf32>
  return
}

// -----

func.func @attention_c4_heads(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x0x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected a positive number of heads of k1, but got 0}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x0x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c4_width(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x0xf32>, %l: tensor<f32>, %init: tensor<2x4x8x0xf32>) {
  // expected-error @below {{'diffattn.attention' op expected a positive width of v, but got 0}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x0xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x0xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x0xf32>
  return
}

// -----

func.func @attention_c5(%q1: tensor<2x4x8x16xf32>, %k1: tensor<3x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected batches of q1 and k1 to match, but got 2 and 3}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<3x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c6(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x9x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lengths of q1 and q2 to match, but got 8 and 9}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x9x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c7(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x7x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lengths of k1 and k2 to match, but got 6 and 7}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x7x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c7_v(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x5x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lengths of k1 and v to match, but got 6 and 5}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x5x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c8(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x8xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected widths of q1 and k1 to match, but got 16 and 8}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x8xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c9_q2(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x3x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected heads of q2 to divide heads of q1, but got 3 and 4}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x3x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c9_k1(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x3x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected heads of k1 to divide heads of q1, but got 3 and 4}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x3x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c9_k2(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x4x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected heads of k2 to divide heads of q2, but got 4 and 2}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x4x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c9_v(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x8x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected heads of v to divide heads of q1, but got 8 and 4}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x8x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c10_batch(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<1x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected batches of q1 and init to match, but got 2 and 1}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<1x4x8x32xf32>
  return
}

// -----

func.func @attention_c10_heads(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected heads of q1 and init to match, but got 4 and 2}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x2x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x2x8x32xf32>
  return
}

// -----

func.func @attention_c10_length(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x7x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lengths of q1 and init to match, but got 8 and 7}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x7x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x7x32xf32>
  return
}

// -----

func.func @attention_c10_width(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected widths of v and init to match, but got 32 and 16}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x16xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x16xf32>
  return
}

// -----

func.func @attention_c10_layout(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected heads of q1 and init to match, but got 4 and 8}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, o_layout = #diffattn.layout<bthd>} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c11_rank1(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<3xf32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lambda of shape [], [4], [2, 8, 4] or [2, 8, 2], but got [3]}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<3xf32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c11_rank2(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<8x4xf32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lambda of shape [], [4], [2, 8, 4] or [2, 8, 2], but got [8, 4]}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<8x4xf32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c11_rank3(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<2x8x3xf32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lambda of shape [], [4], [2, 8, 4] or [2, 8, 2], but got [2, 8, 3]}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<2x8x3xf32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c12_heads(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %bias: tensor<2x4x8x6xi1>) {
  // expected-error @below {{'diffattn.attention' op expected bias of shape [1 or 2, 1 or 2, 1 or 8, 6], but got [2, 4, 8, 6]}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         bias(%bias : tensor<2x4x8x6xi1>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c12_keys(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %bias: tensor<1x1x8x1xf32>) {
  // expected-error @below {{'diffattn.attention' op expected bias of shape [1 or 2, 1 or 2, 1 or 8, 6], but got [1, 1, 8, 1]}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         bias(%bias : tensor<1x1x8x1xf32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c12_rank(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %bias: tensor<8x6xf32>) {
  // expected-error @below {{'diffattn.attention' op expected bias of rank 4, but got 'tensor<8x6xf32>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         bias(%bias : tensor<8x6xf32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c12_type(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %bias: tensor<1x1x8x6xi8>) {
  // expected-error @below {{'diffattn.attention' op operand #6 must be ranked tensor or memref of f32, f16, bf16 or i1, but got 'tensor<1x1x8x6xi8>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         bias(%bias : tensor<1x1x8x6xi8>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c13_width(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %norm_weight: tensor<16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected widths of v and norm_weight to match, but got 32 and 16}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         norm_weight(%norm_weight : tensor<16xf32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, norm = #diffattn.norm<rms>} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c13_rank(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %norm_weight: tensor<4x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected norm_weight of rank 1, but got 'tensor<4x32xf32>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         norm_weight(%norm_weight : tensor<4x32xf32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, norm = #diffattn.norm<rms>} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c13_norm(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %norm_weight: tensor<32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected a norm where norm_weight is given, but got none}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         norm_weight(%norm_weight : tensor<32xf32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c14(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %gate: tensor<2x1x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected heads of q1 and gate to match, but got 4 and 1}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         gate(%gate : tensor<2x1x8x32xf32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c14_rank(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %gate: tensor<2x8x128xf32>) {
  // expected-error @below {{'diffattn.attention' op expected gate of rank 4, but got 'tensor<2x8x128xf32>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         gate(%gate : tensor<2x8x128xf32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c15_kv_len(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %kv_len: tensor<1xi64>) {
  // expected-error @below {{'diffattn.attention' op expected batches of q1 and kv_len to match, but got 2 and 1}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         kv_len(%kv_len : tensor<1xi64>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c15_q_offset(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %q_offset: tensor<i64>) {
  // expected-error @below {{'diffattn.attention' op expected q_offset of rank 1, but got 'tensor<i64>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         q_offset(%q_offset : tensor<i64>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c15_type(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %kv_len: tensor<2xi32>) {
  // expected-error @below {{'diffattn.attention' op operand #6 must be ranked tensor or memref of i64, but got 'tensor<2xi32>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         kv_len(%kv_len : tensor<2xi32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c16(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected scale to be finite, but got +Inf}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 0x7F800000 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c16_nan(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected scale to be finite, but got NaN}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 0x7FC00000 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c16_large(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected scale to be at most 2^64 in magnitude, but got -3.00000001E+38}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = -3.0e38 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c17_count(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected window of two numbers, but got 1}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, window = array<i64: 4>} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c17_reach(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected window of numbers that are at least -1, but got -2}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, window = array<i64: 4, -2>} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c18(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected softcap to be finite and positive, but got 0}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, softcap = 0.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c19(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected norm_eps to be finite and not negative, but got -1}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, norm_eps = -1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c20(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected out_scale to be finite, but got -Inf}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, out_scale = 0xFF800000 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c22_queries(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %qs: tensor<2x6xi64>, %ks: tensor<2x6xi64>) {
  // expected-error @below {{'diffattn.attention' op expected lengths of q1 and q_segments to match, but got 8 and 6}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         q_segments(%qs : tensor<2x6xi64>)
         kv_segments(%ks : tensor<2x6xi64>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c22_keys(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %qs: tensor<2x8xi64>, %ks: tensor<2x8xi64>) {
  // expected-error @below {{'diffattn.attention' op expected lengths of k1 and kv_segments to match, but got 6 and 8}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         q_segments(%qs : tensor<2x8xi64>)
         kv_segments(%ks : tensor<2x8xi64>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c22_batches(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %qs: tensor<2x8xi64>, %ks: tensor<1x6xi64>) {
  // expected-error @below {{'diffattn.attention' op expected batches of q1 and kv_segments to match, but got 2 and 1}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         q_segments(%qs : tensor<2x8xi64>)
         kv_segments(%ks : tensor<1x6xi64>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c22_rank(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %qs: tensor<8xi64>, %ks: tensor<2x6xi64>) {
  // expected-error @below {{'diffattn.attention' op expected q_segments of rank 2, but got 'tensor<8xi64>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         q_segments(%qs : tensor<8xi64>)
         kv_segments(%ks : tensor<2x6xi64>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c22_type(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %qs: tensor<2x8xf32>, %ks: tensor<2x6xf32>) {
  // expected-error @below {{'diffattn.attention' op operand #6 must be ranked tensor or memref of i32 or i64, but got 'tensor<2x8xf32>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         q_segments(%qs : tensor<2x8xf32>)
         kv_segments(%ks : tensor<2x6xf32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c22_width(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %qs: tensor<2x8xi16>, %ks: tensor<2x6xi16>) {
  // expected-error @below {{'diffattn.attention' op operand #6 must be ranked tensor or memref of i32 or i64, but got 'tensor<2x8xi16>'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         q_segments(%qs : tensor<2x8xi16>)
         kv_segments(%ks : tensor<2x6xi16>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c23_queries(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %qs: tensor<2x8xi64>) {
  // expected-error @below {{'diffattn.attention' op expected q_segments and kv_segments together, but got only q_segments}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         q_segments(%qs : tensor<2x8xi64>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c23_keys(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %ks: tensor<2x6xi64>) {
  // expected-error @below {{'diffattn.attention' op expected q_segments and kv_segments together, but got only kv_segments}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         kv_segments(%ks : tensor<2x6xi64>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c23_types(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %qs: tensor<2x8xi64>, %ks: tensor<2x6xi32>) {
  // expected-error @below {{'diffattn.attention' op expected element type of kv_segments to be that of q_segments, 'i64', but got 'i32'}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         q_segments(%qs : tensor<2x8xi64>)
         kv_segments(%ks : tensor<2x6xi32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c25(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no is_causal, window and segments with integral, whose mean is over all queries, but got is_causal}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, integral, is_causal} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c25_window(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no is_causal, window and segments with integral, whose mean is over all queries, but got a window}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, integral, window = array<i64: 3, -1>} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c26(%q1: tensor<2x?x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x?x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected a static, positive number of heads of q1, but got ?}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x?x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x?x8x32xf32>) {scale = 1.0 : f32, integral} -> tensor<2x?x8x32xf32>
  return
}

// -----

func.func @attention_c25_segments(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>, %qs: tensor<2x8xi64>, %ks: tensor<2x6xi64>) {
  // expected-error @below {{'diffattn.attention' op expected no is_causal, window and segments with integral, whose mean is over all queries, but got segments}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         q_segments(%qs : tensor<2x8xi64>) kv_segments(%ks : tensor<2x6xi64>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, integral} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c25_schedules(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention' op expected #diffattn.linalg alone with integral, which no kernel computes, but got #diffattn.gpu_plain<warps = 4>}}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>,
         tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xf32>) {scale = 1.0 : f32, integral, schedules = [#diffattn.gpu_plain<warps = 4>]}
         -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_c32_queries(%q: tensor<1x2x8x16xf32>, %k: tensor<1x2x?x16xf32>, %l: tensor<f32>) {
  // expected-error @below {{'diffattn.attention' op expected at least 9 queries, but got 8}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x8x16xf32>, tensor<1x2x?x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x?x16xf32>, tensor<1x2x?x16xf32>) lambda(%l : tensor<f32>) outs(%q : tensor<1x2x8x16xf32>)
         {scale = 1.0 : f32, size_bounds = #diffattn.size_bounds<min_queries = 9>} -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c32_keys(%q: tensor<1x2x?x16xf32>, %k: tensor<1x6x2x16xf32>, %l: tensor<f32>) {
  // expected-error @below {{'diffattn.attention' op expected at most 5 keys, but got 6}}
  %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x2x?x16xf32>, tensor<1x6x2x16xf32>, tensor<1x2x?x16xf32>,
         tensor<1x6x2x16xf32>, tensor<1x6x2x16xf32>) lambda(%l : tensor<f32>) outs(%q : tensor<1x2x?x16xf32>)
         {scale = 1.0 : f32, k_layout = #diffattn.layout<bthd>, v_layout = #diffattn.layout<bthd>,
          size_bounds = #diffattn.size_bounds<max_queries = 8, min_keys = 1, max_keys = 5>} -> tensor<1x2x?x16xf32>
  return
}
