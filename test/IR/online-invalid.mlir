// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

// One case for each constraint of docs/spec.md, under its label; every other
// constraint holds in it.

func.func @online_attention_c1(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: memref<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected operands that are all tensors or all memrefs, but got 'memref<2x2x6x32xf32>' and 'tensor<2x4x8xf32>'}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, memref<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c1_no_results(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected the number of tensor results (0) to be equal to the number of output tensors (6)}}
  diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
  return
}

// -----

func.func @online_attention_c2(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf16>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected element type of v to be that of q1, 'f32', but got 'f16'}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf16>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c2_state_type(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xbf16>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op operand #5 must be variadic of ranked tensor or memref of f32, but got 'tensor<2x4x8xbf16>'}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xbf16>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xbf16>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c3(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected k2 of rank 4, but got 'tensor<2x6x16xf32>'}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c4_heads(%q1: tensor<2x?x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected a static, positive number of heads of q1, but got ?}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x?x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c4_width(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x0xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x0xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x0xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected a positive width of v, but got 0}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x0xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x0xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x0xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x0xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x0xf32>
  return
}

// -----

func.func @online_attention_c5(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<1x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected batches of q1 and v to match, but got 2 and 1}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<1x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c6(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x7x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected lengths of q1 and q2 to match, but got 8 and 7}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x7x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c7(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x5x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected lengths of k1 and v to match, but got 6 and 5}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x5x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c8(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x8xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected widths of q1 and q2 to match, but got 16 and 8}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x8xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c9(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x3x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected heads of k1 to divide heads of q1, but got 3 and 4}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x3x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c10_rank(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x32xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected max1 of rank 3, but got 'tensor<2x32xf32>'}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x32xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x32xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c10_batch(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<1x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected batches of q1 and sum1 to match, but got 2 and 1}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<1x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<1x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c10_length(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x9xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected lengths of q1 and max2 to match, but got 8 and 9}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x9xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x9xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c10_width(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x16xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected widths of v and acc1 to match, but got 32 and 16}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x16xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x16xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c10_heads(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected 2 heads of acc2, but got 4}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x32xf32>
  return
}

// -----

func.func @online_attention_c10_heads_by_value(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x4x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected 4 heads of acc2, but got 2}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x4x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c11(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %bias: tensor<1x4x8x6xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected bias of shape [1 or 2, 1 or 2, 1 or 8, 6], but got [1, 4, 8, 6]}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         bias(%bias : tensor<1x4x8x6xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c12(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %kv_len: tensor<3xi64>) {
  // expected-error @below {{'diffattn.online_attention' op expected batches of q1 and kv_len to match, but got 2 and 3}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         kv_len(%kv_len : tensor<3xi64>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c13(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected q_offset where is_causal or window is given, but got none}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32, is_causal}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c14(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected scale to be finite, but got NaN}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 0x7FC00000 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c15(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %q_offset: tensor<2xi64>) {
  // expected-error @below {{'diffattn.online_attention' op expected window of numbers that are at least -1, but got -3}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         q_offset(%q_offset : tensor<2xi64>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32, window = array<i64: -3, 0>}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c16(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected softcap to be finite and positive, but got -2}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32, softcap = -2.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @merge_c1(%max: tensor<2x2x8xf32>, %sum: memref<2x2x8xf32>, %acc: tensor<2x4x8x32xf32>, %max0: tensor<2x2x8xf32>, %sum0: tensor<2x2x8xf32>, %acc0: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.merge' op expected operands that are all tensors or all memrefs, but got 'memref<2x2x8xf32>' and 'tensor<2x2x8xf32>'}}
  %s:3 = diffattn.merge ins(%max, %sum, %acc : tensor<2x2x8xf32>, memref<2x2x8xf32>,
         tensor<2x4x8x32xf32>) outs(%max0, %sum0, %acc0 : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x32xf32>) -> tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x4x8x32xf32>
  return
}

// -----

func.func @merge_c2(%max: tensor<2x2x8xf32>, %sum: tensor<2x16xf32>, %acc: tensor<2x4x8x32xf32>, %max0: tensor<2x2x8xf32>, %sum0: tensor<2x2x8xf32>, %acc0: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.merge' op expected sum of rank 3, but got 'tensor<2x16xf32>'}}
  %s:3 = diffattn.merge ins(%max, %sum, %acc : tensor<2x2x8xf32>, tensor<2x16xf32>,
         tensor<2x4x8x32xf32>) outs(%max0, %sum0, %acc0 : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x32xf32>) -> tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x4x8x32xf32>
  return
}

// -----

func.func @merge_c2_acc(%max: tensor<2x2x8xf32>, %sum: tensor<2x2x8xf32>, %acc: tensor<2x4x8x32xf32>, %max0: tensor<2x2x8xf32>, %sum0: tensor<2x2x8xf32>, %acc0: tensor<2x4x256xf32>) {
  // expected-error @below {{'diffattn.merge' op expected init_acc of rank 4, but got 'tensor<2x4x256xf32>'}}
  %s:3 = diffattn.merge ins(%max, %sum, %acc : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x32xf32>) outs(%max0, %sum0, %acc0 : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x256xf32>) -> tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x4x256xf32>
  return
}

// -----

func.func @merge_c3(%max: tensor<2x2x8xf32>, %sum: tensor<2x2x8xf32>, %acc: tensor<2x?x8x32xf32>, %max0: tensor<2x2x8xf32>, %sum0: tensor<2x2x8xf32>, %acc0: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.merge' op expected a static, positive number of heads of acc, but got ?}}
  %s:3 = diffattn.merge ins(%max, %sum, %acc : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x?x8x32xf32>) outs(%max0, %sum0, %acc0 : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x32xf32>) -> tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x4x8x32xf32>
  return
}

// -----

func.func @merge_c4_max(%max: tensor<2x2x8xf32>, %sum: tensor<2x2x8xf32>, %acc: tensor<2x4x8x32xf32>, %max0: tensor<2x2x7xf32>, %sum0: tensor<2x2x8xf32>, %acc0: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.merge' op expected lengths of max and init_max to match, but got 8 and 7}}
  %s:3 = diffattn.merge ins(%max, %sum, %acc : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x32xf32>) outs(%max0, %sum0, %acc0 : tensor<2x2x7xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x32xf32>) -> tensor<2x2x7xf32>, tensor<2x2x8xf32>, tensor<2x4x8x32xf32>
  return
}

// -----

func.func @merge_c4_acc(%max: tensor<2x2x8xf32>, %sum: tensor<2x2x8xf32>, %acc: tensor<2x4x8x32xf32>, %max0: tensor<2x2x8xf32>, %sum0: tensor<2x2x8xf32>, %acc0: tensor<2x4x8x16xf32>) {
  // expected-error @below {{'diffattn.merge' op expected widths of acc and init_acc to match, but got 32 and 16}}
  %s:3 = diffattn.merge ins(%max, %sum, %acc : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x32xf32>) outs(%max0, %sum0, %acc0 : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x4x8x16xf32>) -> tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x4x8x16xf32>
  return
}

// -----

func.func @merge_c4_batch(%max: tensor<2x2x8xf32>, %sum: tensor<2x2x8xf32>, %acc: tensor<1x4x8x32xf32>, %max0: tensor<2x2x8xf32>, %sum0: tensor<2x2x8xf32>, %acc0: tensor<1x4x8x32xf32>) {
  // expected-error @below {{'diffattn.merge' op expected batches of max and acc to match, but got 2 and 1}}
  %s:3 = diffattn.merge ins(%max, %sum, %acc : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<1x4x8x32xf32>) outs(%max0, %sum0, %acc0 : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<1x4x8x32xf32>) -> tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<1x4x8x32xf32>
  return
}

// -----

func.func @merge_c5(%max: tensor<2x2x8xf32>, %sum: tensor<2x2x8xf32>, %acc: tensor<2x3x8x32xf32>, %max0: tensor<2x2x8xf32>, %sum0: tensor<2x2x8xf32>, %acc0: tensor<2x3x8x32xf32>) {
  // expected-error @below {{'diffattn.merge' op expected heads of max to divide heads of acc, but got 2 and 3}}
  %s:3 = diffattn.merge ins(%max, %sum, %acc : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x3x8x32xf32>) outs(%max0, %sum0, %acc0 : tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x3x8x32xf32>) -> tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x3x8x32xf32>
  return
}

// -----

func.func @finalize_c1(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %l: memref<f32>, %init: tensor<2x4x8x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected operands that are all tensors or all memrefs, but got 'memref<f32>' and 'tensor<2x4x8x32xbf16>'}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x2x8xf32>, tensor<2x2x8x32xf32>) lambda(%l : memref<f32>)
         outs(%init : tensor<2x4x8x32xbf16>) -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c2(%sum1: tensor<2x32xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected sum1 of rank 3, but got 'tensor<2x32xf32>'}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x32xf32>, tensor<2x4x8x32xf32>,
         tensor<2x2x8xf32>, tensor<2x2x8x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xbf16>) -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c3(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x?x8xf32>, %acc2: tensor<2x2x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected a static, positive number of heads of sum2, but got ?}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x?x8xf32>, tensor<2x2x8x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xbf16>) -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c3_width(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x?xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected a static, positive width of acc1, but got ?}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x?xf32>,
         tensor<2x2x8xf32>, tensor<2x2x8x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xbf16>) -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c4_batch(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<1x2x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected batches of sum1 and acc2 to match, but got 2 and 1}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x2x8xf32>, tensor<1x2x8x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xbf16>) -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c4_heads(%sum1: tensor<2x2x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected heads of sum1 and acc1 to match, but got 2 and 4}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x2x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x2x8xf32>, tensor<2x2x8x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xbf16>) -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c5_divides(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x3x8xf32>, %acc2: tensor<2x3x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected heads of sum2 to divide heads of sum1, but got 3 and 4}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x3x8xf32>, tensor<2x3x8x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xbf16>) -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c5_acc2(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x1x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected 2 or 4 heads of acc2, but got 1}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x2x8xf32>, tensor<2x1x8x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xbf16>) -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c6(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x7x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected lengths of acc1 and init to match, but got 8 and 7}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x2x8xf32>, tensor<2x2x8x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x7x32xbf16>) -> tensor<2x4x7x32xbf16>
  return
}

// -----

func.func @finalize_c7(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %l: tensor<5xf32>, %init: tensor<2x4x8x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected lambda of shape [], [4], [2, 8, 4] or [2, 8, 2], but got [5]}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x2x8xf32>, tensor<2x2x8x32xf32>) lambda(%l : tensor<5xf32>)
         outs(%init : tensor<2x4x8x32xbf16>) -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c8(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xbf16>, %norm_weight: tensor<32xf32>) {
  // expected-error @below {{'diffattn.finalize' op expected a norm where norm_weight is given, but got none}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x2x8xf32>, tensor<2x2x8x32xf32>) lambda(%l : tensor<f32>)
         norm_weight(%norm_weight : tensor<32xf32>)
         outs(%init : tensor<2x4x8x32xbf16>) -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c9(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xbf16>, %gate: tensor<2x2x8x32xf32>) {
  // expected-error @below {{'diffattn.finalize' op expected heads of acc1 and gate to match, but got 4 and 2}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x2x8xf32>, tensor<2x2x8x32xf32>) lambda(%l : tensor<f32>)
         gate(%gate : tensor<2x2x8x32xf32>)
         outs(%init : tensor<2x4x8x32xbf16>) -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c10(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected norm_eps to be finite and not negative, but got NaN}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x2x8xf32>, tensor<2x2x8x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xbf16>) {norm_eps = 0x7FC00000 : f32} -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @finalize_c11(%sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %l: tensor<f32>, %init: tensor<2x4x8x32xbf16>) {
  // expected-error @below {{'diffattn.finalize' op expected out_scale to be finite, but got +Inf}}
  %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>,
         tensor<2x2x8xf32>, tensor<2x2x8x32xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<2x4x8x32xbf16>) {out_scale = 0x7F800000 : f32} -> tensor<2x4x8x32xbf16>
  return
}

// -----

func.func @online_attention_c18(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %qs: tensor<2x8xi64>, %ks: tensor<2x5xi64>) {
  // expected-error @below {{'diffattn.online_attention' op expected lengths of k1 and kv_segments to match, but got 6 and 5}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         q_segments(%qs : tensor<2x8xi64>)
         kv_segments(%ks : tensor<2x5xi64>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c19(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %ks: tensor<2x6xi32>) {
  // expected-error @below {{'diffattn.online_attention' op expected q_segments and kv_segments together, but got only kv_segments}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         kv_segments(%ks : tensor<2x6xi32>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c19_types(%q1: tensor<2x4x8x16xf32>, %k1: tensor<2x2x6x16xf32>, %q2: tensor<2x2x8x16xf32>, %k2: tensor<2x1x6x16xf32>, %v: tensor<2x2x6x32xf32>, %max1: tensor<2x4x8xf32>, %sum1: tensor<2x4x8xf32>, %acc1: tensor<2x4x8x32xf32>, %max2: tensor<2x2x8xf32>, %sum2: tensor<2x2x8xf32>, %acc2: tensor<2x2x8x32xf32>, %qs: tensor<2x8xi32>, %ks: tensor<2x6xi64>) {
  // expected-error @below {{'diffattn.online_attention' op expected element type of kv_segments to be that of q_segments, 'i32', but got 'i64'}}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<2x4x8x16xf32>,
         tensor<2x2x6x16xf32>, tensor<2x2x8x16xf32>, tensor<2x1x6x16xf32>, tensor<2x2x6x32xf32>)
         q_segments(%qs : tensor<2x8xi32>)
         kv_segments(%ks : tensor<2x6xi64>)
         outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>) {scale = 1.0 : f32}
         -> tensor<2x4x8xf32>, tensor<2x4x8xf32>,
         tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>,
         tensor<2x2x8x32xf32>
  return
}

// -----

func.func @online_attention_c24(%q: tensor<1x2x8x16xf32>, %m: tensor<1x2x8xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected all or none of the operands of map 2, but got q2 without k2}}
  %s:6 = "diffattn.online_attention"(%q, %q, %q, %q, %m, %m, %q, %m, %m, %q) <{scale = 1.0 : f32,
      operandSegmentSizes = array<i32: 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6>}>
    : (tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x16xf32>)
    -> (tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x16xf32>)
  return
}
