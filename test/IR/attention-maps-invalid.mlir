// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

// The numbers of maps and of destinations, under the labels of docs/spec.md,
// and lists of operands and types that the parser refuses.

func.func @attention_c33(%q: tensor<1x2x8x16xf32>, %init: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected all or none of the operands of map 2, but got q2, k2 without lambda}}
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) outs(%init : tensor<1x2x8x16xf32>) {scale = 1.0 : f32}
         -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c33_lambda_alone(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected all or none of the operands of map 2, but got lambda without q2, k2}}
  %o = diffattn.attention ins(%q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>)
         lambda(%l : tensor<f32>) outs(%init : tensor<1x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c33_k2_alone(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected all or none of the operands of map 2, but got k2, lambda without q2}}
  %o = "diffattn.attention"(%q, %q, %q, %q, %l, %init) <{scale = 1.0 : f32,
         operandSegmentSizes = array<i32: 1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0>}>
       : (tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<f32>,
          tensor<1x2x8x16xf32>) -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c34(%q: tensor<1x2x8x16xf32>, %init: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected two maps with integral, but got one}}
  %o = diffattn.attention ins(%q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>)
         outs(%init : tensor<1x2x8x16xf32>) {scale = 1.0 : f32, integral} -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c34_lambda_act(%q: tensor<1x2x8x16xf32>, %init: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lambda_act with a lambda, but got one map}}
  %o = diffattn.attention ins(%q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>)
         outs(%init : tensor<1x2x8x16xf32>) {scale = 1.0 : f32, lambda_act = #diffattn.activation<sigmoid>} -> tensor<1x2x8x16xf32>
  return
}

// -----

// The rules of what is there hold for one map: names, sizes and heads.
func.func @attention_c5_of_one_map(%q: tensor<1x2x8x16xf32>, %k: tensor<2x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected batches of q1 and k1 to match, but got 1 and 2}}
  %o = diffattn.attention ins(%q, %k, %k : tensor<1x2x8x16xf32>, tensor<2x2x8x16xf32>, tensor<2x2x8x16xf32>)
         outs(%q : tensor<1x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c9_of_one_map(%q: tensor<1x2x8x16xf32>, %k: tensor<1x3x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected heads of k1 to divide heads of q1, but got 3 and 2}}
  %o = diffattn.attention ins(%q, %k, %q : tensor<1x2x8x16xf32>, tensor<1x3x8x16xf32>, tensor<1x2x8x16xf32>)
         outs(%q : tensor<1x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>
  return
}

// -----

// A bias is by signal head.
func.func @attention_c12_of_one_map(%q: tensor<1x4x8x16xf32>, %bias: tensor<1x2x8x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected bias of shape [1 or 1, 1 or 4, 1 or 8, 8], but got [1, 2, 8, 8]}}
  %o = diffattn.attention ins(%q, %q, %q : tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>)
         bias(%bias : tensor<1x2x8x8xf32>) outs(%q : tensor<1x4x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x4x8x16xf32>
  return
}

// -----

func.func @attention_c30_of_one_map(%q: tensor<2x2x8x16xf32>, %k: tensor<9x2x4x16xf32>, %v: tensor<8x2x4x16xf32>,
                                    %table: tensor<2x3xi32>, %n: tensor<2xi64>) {
  // expected-error @below {{'diffattn.attention' op expected numbers of pages of k1 and v to match, but got 9 and 8}}
  %o = diffattn.attention ins(%q, %k, %v : tensor<2x2x8x16xf32>, tensor<9x2x4x16xf32>, tensor<8x2x4x16xf32>)
         kv_len(%n : tensor<2xi64>) block_table(%table : tensor<2x3xi32>)
         outs(%q : tensor<2x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<2x2x8x16xf32>
  return
}

// -----

func.func @attention_c35(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected 1 destination, the output, but got 2}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init, %init : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) {scale = 1.0 : f32}
         -> tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c35_none(%q: memref<1x2x8x16xf32>, %l: memref<f32>) {
  // expected-error @below {{'diffattn.attention' op expected 1 destination, the output, but got 0}}
  "diffattn.attention"(%q, %q, %q, %q, %q, %l) <{scale = 1.0 : f32,
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>}>
    : (memref<1x2x8x16xf32>, memref<1x2x8x16xf32>, memref<1x2x8x16xf32>, memref<1x2x8x16xf32>, memref<1x2x8x16xf32>,
       memref<f32>) -> ()
  return
}

// -----

func.func @attention_c36(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected schedules of attention, not of its gradients, but got #diffattn.cpu_backward}}
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>) outs(%init : tensor<1x2x8x16xf32>)
         {scale = 1.0 : f32, schedules = [#diffattn.cpu_backward<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 96, two_pass_keys = 16384, q_slice_size = 960>]}
         -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c37(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %x: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no x without a norm or a gate, because it is the output then, but got one}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) x(%x : tensor<1x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c38(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %x: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no x with integral}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) x(%x : tensor<1x2x8x16xf32>) {scale = 1.0 : f32, integral, norm = #diffattn.norm<rms>} -> tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c38_paged(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %n: tensor<1xi64>, %t: tensor<1x1xi32>, %init: tensor<1x2x8x16xf32>, %x: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no x with block_table}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>) kv_len(%n : tensor<1xi64>) block_table(%t : tensor<1x1xi32>)
         outs(%init : tensor<1x2x8x16xf32>) x(%x : tensor<1x2x8x16xf32>) {scale = 1.0 : f32, norm = #diffattn.norm<rms>} -> tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c39(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %x: tensor<1x2x8x16xbf16>) {
  // expected-error @below {{'diffattn.attention' op expected element type of x to be that of q1, 'f32', but got 'bf16'}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) x(%x : tensor<1x2x8x16xbf16>) {scale = 1.0 : f32, norm = #diffattn.norm<rms>} -> tensor<1x2x8x16xf32>, tensor<1x2x8x16xbf16>
  return
}

// -----

func.func @attention_c39_shape(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %x: tensor<1x2x9x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lengths of q1 and x to match, but got 8 and 9}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) x(%x : tensor<1x2x9x16xf32>) {scale = 1.0 : f32, norm = #diffattn.norm<rms>} -> tensor<1x2x8x16xf32>, tensor<1x2x9x16xf32>
  return
}

// -----

func.func @attention_c40(%q: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected two maps with a schedule that shares them out to warps, but got one with #diffattn.gpu_forward<placement = pair, warps = 8, kv_block_size = 16>}}
  %o = diffattn.attention ins(%q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>)
         outs(%q : tensor<1x2x8x16xf32>) {scale = 1.0 : f32, schedules = [#diffattn.gpu_forward<placement = pair, warps = 8, kv_block_size = 16>]} -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c40_wgmma(%q: tensor<1x2x8x16xbf16>) {
  // expected-error @below {{'diffattn.attention' op expected two maps with a schedule that shares them out to warps, but got one with #diffattn.when<tensor_maps = true : #diffattn.gpu_wgmma<placement = apart, kv_block_size = 64, stages = 6>>}}
  %o = diffattn.attention ins(%q, %q, %q : tensor<1x2x8x16xbf16>, tensor<1x2x8x16xbf16>, tensor<1x2x8x16xbf16>)
         outs(%q : tensor<1x2x8x16xbf16>) {scale = 1.0 : f32, schedules = [#diffattn.when<tensor_maps = true : #diffattn.gpu_wgmma<placement = apart, kv_block_size = 64, stages = 6>>]} -> tensor<1x2x8x16xbf16>
  return
}

// -----

func.func @of_four_inputs(%q: tensor<1x2x8x16xf32>) {
  // expected-error @below {{expected q1, k1, q2, k2 and v, or q1, k1 and v of one map, but got 4 operands}}
  %o = diffattn.attention ins(%q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>) outs(%q : tensor<1x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @of_too_few_types(%q: tensor<1x2x8x16xf32>) {
  // expected-error @below {{expected 5 types, one of each operand, but got 3}}
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>)
         outs(%q : tensor<1x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c41(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %s: tensor<3xf32>) {
  // expected-error @below {{'diffattn.attention' op expected heads of q1 and sink to match, but got 2 and 3}}
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>) sink(%s : tensor<3xf32>)
         outs(%init : tensor<1x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c41_rank(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %s: tensor<1x2xf32>) {
  // expected-error @below {{'diffattn.attention' op expected sink of rank 1, but got 'tensor<1x2xf32>'}}
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>) sink(%s : tensor<1x2xf32>)
         outs(%init : tensor<1x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c41_type(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %s: tensor<2xbf16>) {
  // expected-error @below {{'diffattn.attention' op expected element type of sink to be that of q1, 'f32', but got 'bf16'}}
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>) sink(%s : tensor<2xbf16>)
         outs(%init : tensor<1x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>
  return
}

// -----

// Heads of map 2 are noise heads.
func.func @attention_c41_noise_heads(%q: tensor<1x4x8x16xf32>, %q2: tensor<1x2x8x16xf32>, %l: tensor<f32>, %s: tensor<4xf32>, %init: tensor<1x4x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected heads of q2 and sink2 to match, but got 2 and 4}}
  %o = diffattn.attention ins(%q, %q, %q2, %q2, %q : tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x4x8x16xf32>) lambda(%l : tensor<f32>) sink(%s : tensor<4xf32>) sink2(%s : tensor<4xf32>)
         outs(%init : tensor<1x4x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x4x8x16xf32>
  return
}

// -----

func.func @attention_c42(%q: tensor<1x2x8x16xf32>, %init: tensor<1x2x8x16xf32>, %s: tensor<2xf32>) {
  // expected-error @below {{'diffattn.attention' op expected two maps with sink2, but got one}}
  %o = diffattn.attention ins(%q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) sink2(%s : tensor<2xf32>)
         outs(%init : tensor<1x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c42_lse(%q: tensor<1x2x8x16xf32>, %init: tensor<1x2x8x16xf32>, %m: tensor<1x2x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected two maps with lse2, but got one}}
  %o:2 = diffattn.attention ins(%q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>)
         outs(%init : tensor<1x2x8x16xf32>) lse2(%m : tensor<1x2x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>, tensor<1x2x8xf32>
  return
}

// -----

func.func @attention_c43(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %s: tensor<2xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no sink with integral}}
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>) sink(%s : tensor<2xf32>)
         outs(%init : tensor<1x2x8x16xf32>) {scale = 1.0 : f32, integral} -> tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c43_lse(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %m: tensor<1x2x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no lse2 with integral}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) lse2(%m : tensor<1x2x8xf32>) {scale = 1.0 : f32, integral} -> tensor<1x2x8x16xf32>, tensor<1x2x8xf32>
  return
}

// -----

func.func @attention_c44(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %m: tensor<1x2x8xbf16>) {
  // expected-error @below {{'diffattn.attention' op expected element type of lse1 to be 'f32', but got 'bf16'}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) lse1(%m : tensor<1x2x8xbf16>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>, tensor<1x2x8xbf16>
  return
}

// -----

func.func @attention_c44_heads(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %m: tensor<1x4x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected heads of q2 and lse2 to match, but got 2 and 4}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) lse2(%m : tensor<1x4x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>, tensor<1x4x8xf32>
  return
}

// -----

func.func @attention_c44_lengths(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %m: tensor<1x2x7xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lengths of q1 and lse1 to match, but got 8 and 7}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) lse1(%m : tensor<1x2x7xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>, tensor<1x2x7xf32>
  return
}

// -----

func.func @attention_c44_rank(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %m: tensor<2x8xf32>) {
  // expected-error @below {{'diffattn.attention' op expected lse1 of rank 3, but got 'tensor<2x8xf32>'}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) lse1(%m : tensor<2x8xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>, tensor<2x8xf32>
  return
}

// -----

func.func @attention_c45(%q: memref<1x2x8x16xbf16>, %l: memref<f32>) {
  // expected-error @below {{'diffattn.attention' op expected no x with gpu_split_kv, whose kernels do not write it, but got #diffattn.gpu_split_kv}}
  diffattn.attention ins(%q, %q, %q, %q, %q : memref<1x2x8x16xbf16>, memref<1x2x8x16xbf16>, memref<1x2x8x16xbf16>,
         memref<1x2x8x16xbf16>, memref<1x2x8x16xbf16>) lambda(%l : memref<f32>) outs(%q : memref<1x2x8x16xbf16>)
         x(%q : memref<1x2x8x16xbf16>) {scale = 1.0 : f32, norm = #diffattn.norm<rms>, schedules = [#diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>]}
  return
}

// -----

func.func @attention_c38_o2(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no o2 with integral}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) o2(%q : tensor<1x2x8x16xf32>) {scale = 1.0 : f32, integral} -> tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c39_o2(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>, %o2: tensor<1x2x8x16xf16>) {
  // expected-error @below {{'diffattn.attention' op expected element type of o2 to be that of q1, 'f32', but got 'f16'}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) o2(%o2 : tensor<1x2x8x16xf16>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>, tensor<1x2x8x16xf16>
  return
}

// -----

func.func @attention_c46(%q: tensor<1x2x8x16xf32>, %init: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected two maps with o2, but got one}}
  %o:2 = diffattn.attention ins(%q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>)
         outs(%init : tensor<1x2x8x16xf32>) o2(%q : tensor<1x2x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>
  return
}

// -----

func.func @attention_c47(%q: tensor<1x2x8x16xf32>, %l: tensor<f32>, %init: tensor<1x2x8x16xf32>) {
  // expected-error @below {{'diffattn.attention' op expected no o2 with a schedule of CPUs, whose kernels do not write it, but got #diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 96, two_pass_keys = 16384>}}
  %o:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) lambda(%l : tensor<f32>)
         outs(%init : tensor<1x2x8x16xf32>) o2(%q : tensor<1x2x8x16xf32>) {scale = 1.0 : f32, schedules = [#diffattn.cpu_prefill<isa = "avx2", lanes = 8, q_block_size = 48, qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 96, two_pass_keys = 16384>]} -> tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>
  return
}
