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

// The kinds of masks that `getMasks()` lists.
// CHECK-LABEL: func.func private @masks
// CHECK-SAME:  diffattn.m = [#diffattn.length_mask, #diffattn.causal_mask, #diffattn.window_mask<left = 3, right = -1>,
// CHECK-SAME:  #diffattn.boolean_mask, #diffattn.additive_bias]
func.func private @masks() attributes {
  diffattn.m = [#diffattn.length_mask, #diffattn.causal_mask, #diffattn.window_mask<left = 3, right = -1>,
                #diffattn.boolean_mask, #diffattn.additive_bias]}
