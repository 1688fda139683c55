// RUN: diffattn-opt %s --split-input-file --verify-diagnostics

// Names of attributes that no one reads: without a dialect's prefix, or with that of this dialect.

!t = tensor<1x1x4x16xf32>
func.func @attention_c21(%q: !t, %l: tensor<f32>, %e: !t) {
  // expected-error @below {{'diffattn.attention' op expected a known attribute, but got 'causal'; did you mean 'is_causal'?}}
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>) outs(%e : !t)
    {scale = 0.25 : f32, causal} -> !t
  return
}

// -----

!t = tensor<1x1x4x16xf32>
func.func @attention_c21_window(%q: !t, %l: tensor<f32>, %e: !t) {
  // expected-error @below {{'diffattn.attention' op expected a known attribute, but got 'windw'; did you mean 'window'?}}
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>) outs(%e : !t)
    {scale = 0.25 : f32, windw = array<i64: 1, 1>} -> !t
  return
}

// -----

// The misspelt name is told, not that the right one is missing.
!t = tensor<1x1x4x16xf32>
func.func @attention_c21_required(%q: !t, %l: tensor<f32>, %e: !t) {
  // expected-error @below {{'diffattn.attention' op expected a known attribute, but got 'scal'; did you mean 'scale'?}}
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>) outs(%e : !t)
    {scal = 0.25 : f32} -> !t
  return
}

// -----

!t = tensor<1x1x4x16xf32>
func.func @attention_c21_prefix(%q: !t, %l: tensor<f32>, %e: !t) {
  // expected-error @below {{'diffattn.attention' op expected a known attribute, but got 'diffattn.schedules'; did you mean 'schedules'?}}
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>) outs(%e : !t)
    {scale = 0.25 : f32, diffattn.schedules = [#diffattn.linalg]} -> !t
  return
}

// -----

// Written in the generic form.
func.func @attention_c21_generic(%q: memref<1x1x4x16xf32>, %l: memref<f32>) {
  // expected-error @below {{'diffattn.attention' op expected a known attribute, but got 'softcapp'; did you mean 'softcap'?}}
  "diffattn.attention"(%q, %q, %q, %q, %q, %l, %q)
    <{operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0>, scale = 1.0 : f32}> {softcapp = 3.0 : f32}
    : (memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<f32>,
       memref<1x1x4x16xf32>) -> ()
  return
}

// -----

!q = memref<1x2x8x4xf32>
!k = memref<1x2x6x4xf32>
!m = memref<1x2x8xf32>
func.func @online_attention_c17(%q: !q, %k: !k, %m: !m, %acc: !q) {
  // expected-error @below {{'diffattn.online_attention' op expected a known attribute, but got 'is_casual'; did you mean 'is_causal'?}}
  diffattn.online_attention ins(%q, %k, %q, %k, %k : !q, !k, !q, !k, !k)
    outs(%m, %m, %acc, %m, %m, %acc : !m, !m, !q, !m, !m, !q) {scale = 1.0 : f32, is_casual}
  return
}

// -----

!m = memref<1x2x8xf32>
!a = memref<1x2x8x4xf32>
func.func @merge_c6(%m: !m, %a: !a) {
  // expected-error @below {{'diffattn.merge' op expected only attributes of other dialects, but got 'layout'}}
  diffattn.merge ins(%m, %m, %a : !m, !m, !a) outs(%m, %m, %a : !m, !m, !a) {layout}
  return
}

// -----

!s = memref<1x2x8xf32>
!a = memref<1x2x8x4xf32>
func.func @finalize_c12(%s: !s, %a: !a, %l: memref<f32>) {
  // expected-error @below {{'diffattn.finalize' op expected a known attribute, but got 'outscale'; did you mean 'out_scale'?}}
  diffattn.finalize ins(%s, %a, %s, %a : !s, !a, !s, !a) lambda(%l : memref<f32>) outs(%a : !a) {outscale = 0.5 : f32}
  return
}

// -----

ml_program.global private @"w.{}"(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32>
func.func @layer_weight_c4(%layer: index) {
  // expected-error @below {{'diffattn.layer_weight' op expected a known attribute, but got 'patern'; did you mean 'pattern'?}}
  %w = diffattn.layer_weight @"w.{}"[%layer] {patern} : tensor<2xf32>
  return
}

// -----

func.func @gemm(%a: memref<2x3xf32>, %b: memref<4x3xf32>, %c: memref<2x4xf32>) {
  // expected-error @below {{'diffattn.gemm' op expected a known attribute, but got 'transposed_b'; did you mean 'transpose_b'?}}
  diffattn.gemm ins(%a, %b : memref<2x3xf32>, memref<4x3xf32>) outs(%c : memref<2x4xf32>) {transposed_b}
  return
}

// -----

// The generated code would drop properties with unknown names in silence.
func.func @attention_c21_property(%q: memref<1x1x4x16xf32>, %l: memref<f32>) {
  // expected-error @below {{expected a known property, but got 'softcapp'; did you mean 'softcap'?}}
  "diffattn.attention"(%q, %q, %q, %q, %q, %l, %q)
    <{operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0>, scale = 1.0 : f32, softcapp = 3.0 : f32}>
    : (memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<f32>,
       memref<1x1x4x16xf32>) -> ()
  return
}

// -----

// Nor is what other dialects name a property of ours.
func.func @attention_c21_property_of_others(%q: memref<1x1x4x16xf32>, %l: memref<f32>) {
  // expected-error @below {{expected a known property, but got 'llvm.scale'; did you mean 'out_scale'?}}
  "diffattn.attention"(%q, %q, %q, %q, %q, %l, %q)
    <{operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0>, scale = 1.0 : f32, llvm.scale = 3.0 : f32}>
    : (memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<1x1x4x16xf32>, memref<f32>,
       memref<1x1x4x16xf32>) -> ()
  return
}

// -----

!q = memref<1x2x8x4xf32>
!k = memref<1x2x6x4xf32>
!m = memref<1x2x8xf32>
func.func @online_attention_c17_property(%q: !q, %k: !k, %m: !m, %acc: !q) {
  // expected-error @below {{expected a known property, but got 'is_casual'; did you mean 'is_causal'?}}
  "diffattn.online_attention"(%q, %k, %q, %k, %k, %m, %m, %acc, %m, %m, %acc)
    <{operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1>, scale = 1.0 : f32, is_casual}>
    : (!q, !k, !q, !k, !k, !m, !m, !q, !m, !m, !q) -> ()
  return
}

// -----

!m = memref<1x2x8xf32>
!a = memref<1x2x8x4xf32>
func.func @merge_c6_property(%m: !m, %a: !a) {
  // expected-error @below {{this operation does not support properties}}
  "diffattn.merge"(%m, %m, %a, %m, %m, %a) <{layout}> : (!m, !m, !a, !m, !m, !a) -> ()
  return
}

// -----

!s = memref<1x2x8xf32>
!a = memref<1x2x8x4xf32>
func.func @finalize_c12_property(%s: !s, %a: !a, %l: memref<f32>) {
  // expected-error @below {{expected a known property, but got 'outscale'; did you mean 'out_scale'?}}
  "diffattn.finalize"(%s, %a, %s, %a, %l, %a) <{operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0>, outscale = 0.5 : f32}>
    : (!s, !a, !s, !a, memref<f32>, !a) -> ()
  return
}

// -----

ml_program.global private @"w.{}"(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32>
func.func @layer_weight_c4_property(%layer: index) {
  // expected-error @below {{expected a known property, but got 'patern'; did you mean 'pattern'?}}
  %w = "diffattn.layer_weight"(%layer) <{patern = @"w.{}"}> : (index) -> tensor<2xf32>
  return
}

// -----

func.func @gemm_property(%a: memref<2x3xf32>, %b: memref<4x3xf32>, %c: memref<2x4xf32>) {
  // expected-error @below {{expected a known property, but got 'transposed_b'; did you mean 'transpose_b'?}}
  "diffattn.gemm"(%a, %b, %c) <{transposed_b}> : (memref<2x3xf32>, memref<4x3xf32>, memref<2x4xf32>) -> ()
  return
}
