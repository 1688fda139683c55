// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

// Constraints of docs/spec.md on states of one map, each under its label.

func.func @online_attention_c26(%q: tensor<1x2x8x16xf32>, %m: tensor<1x2x8xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected 6 states, three of each map, but got 3}}
  %s:3 = diffattn.online_attention ins(%q, %q, %q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>,
         tensor<1x2x8x16xf32>) outs(%m, %m, %q : tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x16xf32>) {scale = 1.0 : f32}
         -> tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x16xf32>
  return
}

// -----

func.func @online_attention_c26_of_one_map(%q: tensor<1x2x8x16xf32>, %m: tensor<1x2x8xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected 3 states, three of each map, but got 6}}
  %s:6 = diffattn.online_attention ins(%q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>)
         outs(%m, %m, %q, %m, %m, %q : tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x16xf32>) {scale = 1.0 : f32}
         -> tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x16xf32>
  return
}

// -----

func.func @online_attention_c10_of_one_map(%q: tensor<1x2x8x16xf32>, %m: tensor<1x4x8xf32>) {
  // expected-error @below {{'diffattn.online_attention' op expected 2 heads of max1, but got 4}}
  %s:3 = diffattn.online_attention ins(%q, %q, %q : tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>)
         outs(%m, %m, %q : tensor<1x4x8xf32>, tensor<1x4x8xf32>, tensor<1x2x8x16xf32>) {scale = 1.0 : f32}
         -> tensor<1x4x8xf32>, tensor<1x4x8xf32>, tensor<1x2x8x16xf32>
  return
}

// -----

func.func @finalize_c13(%sum: tensor<2x4x8xf32>, %acc: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.finalize' op expected all or none of the operands of map 2, but got sum2, acc2 without lambda}}
  %o = diffattn.finalize ins(%sum, %acc, %sum, %acc : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>, tensor<2x4x8xf32>, tensor<2x4x8x32xf32>)
         outs(%acc : tensor<2x4x8x32xf32>) -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @finalize_c13_lambda_alone(%sum: tensor<2x4x8xf32>, %acc: tensor<2x4x8x32xf32>, %l: tensor<f32>) {
  // expected-error @below {{'diffattn.finalize' op expected all or none of the operands of map 2, but got lambda without sum2, acc2}}
  %o = diffattn.finalize ins(%sum, %acc : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>) lambda(%l : tensor<f32>)
         outs(%acc : tensor<2x4x8x32xf32>) -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @finalize_c14(%sum: tensor<2x4x8xf32>, %acc: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.finalize' op expected lambda_act with a lambda, but got one map}}
  %o = diffattn.finalize ins(%sum, %acc : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>)
         outs(%acc : tensor<2x4x8x32xf32>) {lambda_act = #diffattn.activation<sigmoid>} -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @finalize_c4_of_one_map(%sum: tensor<2x4x7xf32>, %acc: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.finalize' op expected lengths of sum1 and acc1 to match, but got 7 and 8}}
  %o = diffattn.finalize ins(%sum, %acc : tensor<2x4x7xf32>, tensor<2x4x8x32xf32>)
         outs(%acc : tensor<2x4x8x32xf32>) -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @finalize_c15(%sum: tensor<2x4x8xf32>, %acc: tensor<2x4x8x32xf32>, %s: tensor<4xf32>) {
  // expected-error @below {{'diffattn.finalize' op expected two maps with sink2, but got one}}
  %o = diffattn.finalize ins(%sum, %acc : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>) sink2(%s : tensor<4xf32>)
         outs(%acc : tensor<2x4x8x32xf32>) -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @finalize_c16(%sum: tensor<2x4x8xf32>, %acc: tensor<2x4x8x32xf32>, %s: tensor<4xf32>) {
  // expected-error @below {{'diffattn.finalize' op expected max1 with sink, but got none}}
  %o = diffattn.finalize ins(%sum, %acc : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>) sink(%s : tensor<4xf32>)
         outs(%acc : tensor<2x4x8x32xf32>) -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @finalize_c16_alone(%sum: tensor<2x4x8xf32>, %acc: tensor<2x4x8x32xf32>) {
  // expected-error @below {{'diffattn.finalize' op expected sink or lse1 with max1, but got none}}
  %o = diffattn.finalize ins(%sum, %acc : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>) max1(%sum : tensor<2x4x8xf32>)
         outs(%acc : tensor<2x4x8x32xf32>) -> tensor<2x4x8x32xf32>
  return
}

// -----

func.func @finalize_c17(%sum: tensor<2x4x8xf32>, %acc: tensor<2x4x8x32xf32>, %m: tensor<2x4x7xf32>) {
  // expected-error @below {{'diffattn.finalize' op expected lengths of sum1 and lse1 to match, but got 8 and 7}}
  %o:2 = diffattn.finalize ins(%sum, %acc : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>) max1(%sum : tensor<2x4x8xf32>)
         outs(%acc : tensor<2x4x8x32xf32>) lse1(%m : tensor<2x4x7xf32>) -> tensor<2x4x8x32xf32>, tensor<2x4x7xf32>
  return
}

// -----

func.func @finalize_c17_of_map_2(%sum: tensor<2x4x8xf32>, %acc: tensor<2x4x8x32xf32>, %sum2: tensor<2x2x8xf32>, %l: tensor<f32>) {
  // expected-error @below {{'diffattn.finalize' op expected heads of sum2 and max2 to match, but got 2 and 4}}
  %o:2 = diffattn.finalize ins(%sum, %acc, %sum2, %acc : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>, tensor<2x2x8xf32>, tensor<2x4x8x32xf32>)
         lambda(%l : tensor<f32>) max2(%sum : tensor<2x4x8xf32>)
         outs(%acc : tensor<2x4x8x32xf32>) lse2(%sum2 : tensor<2x2x8xf32>) -> tensor<2x4x8x32xf32>, tensor<2x2x8xf32>
  return
}

// -----

func.func @finalize_c18(%sum: tensor<2x4x8xf32>, %acc: tensor<2x4x8x32xf32>, %s: tensor<2xf32>) {
  // expected-error @below {{'diffattn.finalize' op expected heads of sum1 and sink to match, but got 4 and 2}}
  %o = diffattn.finalize ins(%sum, %acc : tensor<2x4x8xf32>, tensor<2x4x8x32xf32>) max1(%sum : tensor<2x4x8xf32>)
         sink(%s : tensor<2xf32>) outs(%acc : tensor<2x4x8x32xf32>) -> tensor<2x4x8x32xf32>
  return
}
