// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

// One case for each constraint of docs/spec.md, under its label; every other
// constraint holds in it.

func.func @attention_backward_c1(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: memref<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected operands that are all tensors or all memrefs, but got 'memref<f32>' and 'tensor<2x2x6x32xf32>'}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : memref<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c1_no_result(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected the number of tensor results (0) to be equal to the number of output tensors (1)}}
  diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
  return
}

// -----

func.func @attention_backward_c1_result_type(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected type of operand #7 ('tensor<2x2x6x32xf32>') to match type of corresponding result ('tensor<2x2x?x32xf32>')}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x?x32xf32>
  return
}

// -----

func.func @attention_backward_c2(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xbf16>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected element type of k2 to be that of q1, 'f32', but got 'bf16'}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xbf16>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c2_d_out(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf16>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected element type of d_out to be that of q1, 'f32', but got 'f16'}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf16>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c2_lambda(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<bf16>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op operand #6 must be ranked tensor or memref of f32, but got 'tensor<bf16>'}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<bf16>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c2_d_lambda(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_lambda: tensor<bf16>) {
  // expected-error @below {{'diffattn.attention_backward' op operand #7 must be ranked tensor or memref of f32, but got 'tensor<bf16>'}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_lambda(%d_lambda : tensor<bf16>)) {scale = 1.0 : f32}
         -> tensor<bf16>
  return
}

// -----

func.func @attention_backward_c3(%q1: tensor<2x4x128xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected q1 of rank 4, but got 'tensor<2x4x128xf32>'}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x128xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c3_d_out(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x256xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected d_out of rank 4, but got 'tensor<2x4x256xf32>'}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x256xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c4_heads(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x0x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected a positive number of heads of k1, but got 0}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x0x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c4_width(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x0xf32>, %d_out: tensor<2x4x8x0xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x0xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected a positive width of v, but got 0}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x0xf32>)
         d_out(%d_out : tensor<2x4x8x0xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x0xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x0xf32>
  return
}

// -----

func.func @attention_backward_c5(%q1: tensor<2x4x8x16xf32>, %k1: tensor<3x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected batches of q1 and k1 to match, but got 2 and 3}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<3x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c6(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x9x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected lengths of q1 and q2 to match, but got 8 and 9}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x9x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c7(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x5x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x5x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected lengths of k1 and v to match, but got 6 and 5}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x5x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x5x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x5x32xf32>
  return
}

// -----

func.func @attention_backward_c8(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x8xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected widths of q1 and k1 to match, but got 16 and 8}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x8xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c9(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x3x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected heads of q2 to divide heads of q1, but got 3 and 4}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x3x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c9_v(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x8x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x8x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected heads of v to divide heads of q1, but got 8 and 4}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x8x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x8x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x8x6x32xf32>
  return
}

// -----

func.func @attention_backward_c10_heads(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x2x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected heads of q1 and d_out to match, but got 4 and 2}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x2x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c10_width(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x16xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected widths of v and d_out to match, but got 32 and 16}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x16xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c10_layout(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected heads of q1 and d_out to match, but got 4 and 8}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32, o_layout = #diffattn.layout<bthd>}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c11(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<3xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected lambda of shape [], [4], [2, 8, 4] or [2, 8, 2], but got [3]}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<3xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c12(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %bias: tensor<2x4x8x6xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected bias of shape [1 or 2, 1 or 2, 1 or 8, 6], but got [2, 4, 8, 6]}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) bias(%bias : tensor<2x4x8x6xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c13_norm(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %norm_weight: tensor<32xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected a norm where norm_weight is given, but got none}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) norm_weight(%norm_weight : tensor<32xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c13_width(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %norm_weight: tensor<16xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected widths of v and norm_weight to match, but got 32 and 16}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) norm_weight(%norm_weight : tensor<16xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32, norm = #diffattn.norm<rms>}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c14(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %gate: tensor<2x1x8x32xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected heads of q1 and gate to match, but got 4 and 1}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) gate(%gate : tensor<2x1x8x32xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c15_kv_len(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %kv_len: tensor<1xi64>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected batches of q1 and kv_len to match, but got 2 and 1}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) kv_len(%kv_len : tensor<1xi64>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c15_q_offset(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %q_offset: tensor<i64>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected q_offset of rank 1, but got 'tensor<i64>'}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) q_offset(%q_offset : tensor<i64>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c16(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected scale to be finite, but got +Inf}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 0x7F800000 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c17(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected window of two numbers, but got 1}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32, window = array<i64: 1>}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c18(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected softcap to be finite and positive, but got 0}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32, softcap = 0.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c19(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected norm_eps to be finite and not negative, but got -1}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32, norm_eps = -1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c20(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected out_scale to be finite, but got NaN}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32, out_scale = 0x7FC00000 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c21(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected a known attribute, but got 'causal'; did you mean 'is_causal'?}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32, causal}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c21_integral(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected a known attribute, but got 'integral'; did you mean 'is_causal'?}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32, integral}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c22(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %q_segments: tensor<2x7xi32>, %kv_segments: tensor<2x6xi32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected lengths of q1 and q_segments to match, but got 8 and 7}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) q_segments(%q_segments : tensor<2x7xi32>) kv_segments(%kv_segments : tensor<2x6xi32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c23(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %q_segments: tensor<2x8xi32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected q_segments and kv_segments together, but got only q_segments}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) q_segments(%q_segments : tensor<2x8xi32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c24(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected all or none of the operands of map 2, but got q2, k2 without lambda}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c25(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected lambda_act with a lambda, but got one map}}
  %r = diffattn.attention_backward ins(%q1, %k1, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32, lambda_act = #diffattn.activation<sigmoid>}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c28_of_map_2(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %d_q2: tensor<2x4x8x16xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected no d_q2 without q2, but got one}}
  %r = diffattn.attention_backward ins(%q1, %k1, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>)
         outs(d_q2(%d_q2 : tensor<2x4x8x16xf32>)) {scale = 1.0 : f32}
         -> tensor<2x4x8x16xf32>
  return
}

// -----

func.func @attention_backward_c36(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lse1: tensor<2x4x8xf32>, %lse2: tensor<2x4x8xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected no lse2 with one map, but got one}}
  %r = diffattn.attention_backward ins(%q1, %k1, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lse1(%lse1 : tensor<2x4x8xf32>) lse2(%lse2 : tensor<2x4x8xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c26(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %kv_len: tensor<2xi64>, %block_table: tensor<2x1xi32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected no block_table, whose pages several sequences may share, but got one}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) kv_len(%kv_len : tensor<2xi64>) block_table(%block_table : tensor<2x1xi32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c35(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %cu_seqlens_q: tensor<3xi32>, %cu_seqlens_k: tensor<3xi32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected one batch of q1, in which sequences follow one another, but got 2}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) cu_seqlens_q(%cu_seqlens_q : tensor<3xi32>) cu_seqlens_k(%cu_seqlens_k : tensor<3xi32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c27(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected a destination, but got none}}
  diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs() {scale = 1.0 : f32}
  return
}

// -----

func.func @attention_backward_c28_without(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_gate: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected no d_gate without gate, but got one}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_gate(%d_gate : tensor<2x4x8x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @attention_backward_c28_sizes(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_q2: tensor<2x4x8x16xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected sizes of q2 and d_q2 to match, but got 2 and 4}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_q2(%d_q2 : tensor<2x4x8x16xf32>)) {scale = 1.0 : f32}
         -> tensor<2x4x8x16xf32>
  return
}

// -----

func.func @attention_backward_c28_rank(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_lambda: tensor<4xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected d_lambda of rank 0, but got 'tensor<4xf32>'}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_lambda(%d_lambda : tensor<4xf32>)) {scale = 1.0 : f32}
         -> tensor<4xf32>
  return
}

// -----

func.func @attention_backward_c29(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_v: tensor<2x2x6x32xbf16>) {
  // expected-error @below {{'diffattn.attention_backward' op expected element type of d_v to be that of v, 'f32', but got 'bf16'}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_v(%d_v : tensor<2x2x6x32xbf16>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xbf16>
  return
}

// -----

func.func @attention_backward_c29_boolean(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %bias: tensor<1x1x8x6xi1>, %d_bias: tensor<1x1x8x6xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected no d_bias of a boolean bias, but got one}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) bias(%bias : tensor<1x1x8x6xi1>)
         outs(d_bias(%d_bias : tensor<1x1x8x6xf32>)) {scale = 1.0 : f32}
         -> tensor<1x1x8x6xf32>
  return
}

// -----

func.func @attention_backward_c30(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %d_k2: tensor<2x2x6x16xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected no d_k2 where k2 is k1, whose d_k1 is the gradient of both, but got one}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k1, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>)
         outs(d_k2(%d_k2 : tensor<2x2x6x16xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x16xf32>
  return
}

// -----

func.func @attention_backward_c31(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %lse1: tensor<2x4x8xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected lse1 and lse2 together, but got lse1 alone}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) lse1(%lse1 : tensor<2x4x8xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c31_heads(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %lse1: tensor<2x4x8xf32>, %lse2: tensor<2x4x8xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected heads of q2 and lse2 to match, but got 2 and 4}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) lse1(%lse1 : tensor<2x4x8xf32>) lse2(%lse2 : tensor<2x4x8xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c32(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %x: tensor<2x4x7x32xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected lengths of q1 and x to match, but got 8 and 7}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) x(%x : tensor<2x4x7x32xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32, norm = #diffattn.norm<rms>}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c33(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %o2: tensor<2x4x8x32xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected o2 with x, or without a norm and a gate, but got it alone}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) o2(%o2 : tensor<2x4x8x32xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32, norm = #diffattn.norm<rms>}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c33_shape(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %d_out: tensor<2x4x8x32xf32>, %lambda: tensor<f32>, %o2: tensor<2x4x8x16xf32>, %d_v: tensor<2x2x6x32xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected widths of v and o2 to match, but got 32 and 16}}
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>, tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         d_out(%d_out : tensor<2x4x8x32xf32>) lambda(%lambda : tensor<f32>) o2(%o2 : tensor<2x4x8x16xf32>)
         outs(d_v(%d_v : tensor<2x2x6x32xf32>)) {scale = 1.0 : f32}
         -> tensor<2x2x6x32xf32>
  return
}

// -----

func.func @attention_backward_c34(%q: tensor<1x1x4x8xf32>, %l: tensor<f32>, %d: tensor<1x1x4x8xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected schedules to hold #diffattn.linalg or schedules of gradients, but got #diffattn.cpu_prefill}}
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %q : tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>)
         d_out(%d : tensor<1x1x4x8xf32>) lambda(%l : tensor<f32>) outs(d_v(%d : tensor<1x1x4x8xf32>))
         {scale = 1.0 : f32, schedules = [#diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 96, two_pass_keys = 16384>]} -> tensor<1x1x4x8xf32>
  return
}

// -----

func.func @attention_backward_c34_no_schedule(%q: tensor<1x1x4x8xf32>, %l: tensor<f32>, %d: tensor<1x1x4x8xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected schedules to hold #diffattn.linalg or schedules of gradients, but got 7 : i64}}
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %q : tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>)
         d_out(%d : tensor<1x1x4x8xf32>) lambda(%l : tensor<f32>) outs(d_v(%d : tensor<1x1x4x8xf32>))
         {scale = 1.0 : f32, schedules = [7]} -> tensor<1x1x4x8xf32>
  return
}

// -----

func.func @attention_backward_c34_behind(%q: tensor<1x1x4x8xf32>, %l: tensor<f32>, %d: tensor<1x1x4x8xf32>) {
  // expected-error @below {{'diffattn.attention_backward' op expected no schedule behind one for every call, but got #diffattn.cpu_backward}}
  %r = diffattn.attention_backward ins(%q, %q, %q, %q, %q : tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>)
         d_out(%d : tensor<1x1x4x8xf32>) lambda(%l : tensor<f32>) outs(d_v(%d : tensor<1x1x4x8xf32>))
         {scale = 1.0 : f32, schedules = [#diffattn.linalg, #diffattn.cpu_backward<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 96, two_pass_keys = 16384, q_slice_size = 960>]} -> tensor<1x1x4x8xf32>
  return
}
