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
