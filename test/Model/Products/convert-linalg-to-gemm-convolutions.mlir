// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(convert-linalg-to-gemm))" --split-input-file | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(convert-linalg-to-gemm{convolutions=false}))" --split-input-file | FileCheck %s --check-prefix=OFF

// The filter is a matrix as it lies; what it meets is copied.
// CHECK: #[[$WINDOW:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d4 * 2 + d2 * 2, d5 + d3 * 3)>
// CHECK-LABEL: @channels_first
// CHECK:         tensor.empty() : tensor<1x3x2x5x7x9xf32>
// CHECK:         linalg.generic {indexing_maps = [#[[$WINDOW]],
// CHECK:         diffattn.gemm ins(%{{.*}}, %{{.*}} : tensor<4x30xf32>, tensor<1x30x63xf32>) outs(%{{.*}} : tensor<1x4x63xf32>) {accumulate}
// CHECK-NOT:     linalg.
// OFF-LABEL:   @channels_first
// OFF:           linalg.conv_2d_nchw_fchw
func.func @channels_first(%x: tensor<1x3x17x21xf32>, %w: tensor<4x3x2x5xf32>, %o: tensor<1x4x7x9xf32>) -> tensor<1x4x7x9xf32> {
  %r = linalg.conv_2d_nchw_fchw {strides = dense<[2, 1]> : tensor<2xi64>, dilations = dense<[2, 3]> : tensor<2xi64>}
    ins(%x, %w : tensor<1x3x17x21xf32>, tensor<4x3x2x5xf32>) outs(%o : tensor<1x4x7x9xf32>) -> tensor<1x4x7x9xf32>
  return %r : tensor<1x4x7x9xf32>
}

// -----

// Rows of the product are places of the image; the filter is B, or lies transposed.
// CHECK-LABEL: @channels_last
// CHECK:         diffattn.gemm ins(%{{.*}}, %{{.*}} : tensor<63x18xbf16>, tensor<18x4xbf16>) outs(%{{.*}} : tensor<63x4xf32>)
// CHECK:         diffattn.gemm ins(%{{.*}}, %{{.*}} : tensor<63x18xbf16>, tensor<4x18xbf16>) outs(%{{.*}} : tensor<63x4xf32>) {{.*}}transpose_b
// CHECK-NOT:     linalg.
func.func @channels_last(%x: tensor<1x9x11x2xbf16>, %w: tensor<3x3x2x4xbf16>, %v: tensor<4x3x3x2xbf16>, %o: tensor<1x7x9x4xf32>) -> (tensor<1x7x9x4xf32>, tensor<1x7x9x4xf32>) {
  %r = linalg.conv_2d_nhwc_hwcf ins(%x, %w : tensor<1x9x11x2xbf16>, tensor<3x3x2x4xbf16>) outs(%o : tensor<1x7x9x4xf32>) -> tensor<1x7x9x4xf32>
  %s = linalg.conv_2d_nhwc_fhwc ins(%x, %v : tensor<1x9x11x2xbf16>, tensor<4x3x3x2xbf16>) outs(%o : tensor<1x7x9x4xf32>) -> tensor<1x7x9x4xf32>
  return %r, %s : tensor<1x7x9x4xf32>, tensor<1x7x9x4xf32>
}

// -----

// A filter of one element meets the input as it is.
// CHECK-LABEL: @one_element
// CHECK-NOT:     linalg.generic
// CHECK:         diffattn.gemm ins(%{{.*}}, %{{.*}} : tensor<4x3xf32>, tensor<1x3x35xf32>)
func.func @one_element(%x: tensor<1x3x5x7xf32>, %w: tensor<4x3x1x1xf32>, %o: tensor<1x4x5x7xf32>) -> tensor<1x4x5x7xf32> {
  %r = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<1x3x5x7xf32>, tensor<4x3x1x1xf32>) outs(%o : tensor<1x4x5x7xf32>) -> tensor<1x4x5x7xf32>
  return %r : tensor<1x4x5x7xf32>
}

// -----

// With steps it does not.
// CHECK-LABEL: @one_element_with_steps
// CHECK:         linalg.generic
// CHECK:         diffattn.gemm
func.func @one_element_with_steps(%x: tensor<1x3x5x7xf32>, %w: tensor<4x3x1x1xf32>, %o: tensor<1x4x3x4xf32>) -> tensor<1x4x3x4xf32> {
  %r = linalg.conv_2d_nchw_fchw {strides = dense<2> : tensor<2xi64>} ins(%x, %w : tensor<1x3x5x7xf32>, tensor<4x3x1x1xf32>) outs(%o : tensor<1x4x3x4xf32>) -> tensor<1x4x3x4xf32>
  return %r : tensor<1x4x3x4xf32>
}

// -----

// A few MiB of copies at a time: 9 x 64 x 256 floats a row of the image, of which 6 divide 48.
// CHECK-LABEL: @tiles
// CHECK:         scf.for
// CHECK:           scf.for
// CHECK:             tensor.empty() : tensor<1x64x3x3x6x256xf32>
// CHECK:             linalg.generic
// CHECK:             diffattn.gemm {{.*}} outs(%{{.*}} : tensor<1x8x1536xf32>)
func.func @tiles(%x: tensor<?x64x50x258xf32>, %w: tensor<8x64x3x3xf32>, %o: tensor<?x8x48x256xf32>) -> tensor<?x8x48x256xf32> {
  %r = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<?x64x50x258xf32>, tensor<8x64x3x3xf32>) outs(%o : tensor<?x8x48x256xf32>) -> tensor<?x8x48x256xf32>
  return %r : tensor<?x8x48x256xf32>
}

// -----

// A row of the image with 9 x 2^20 x 64 floats of copies is too long.
// CHECK-LABEL: @long_rows
// CHECK:         linalg.conv_2d_nchw_fchw
func.func @long_rows(%x: tensor<1x64x3x1048578xf32>, %w: tensor<8x64x3x3xf32>, %o: tensor<1x8x1x1048576xf32>) -> tensor<1x8x1x1048576xf32> {
  %r = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<1x64x3x1048578xf32>, tensor<8x64x3x3xf32>) outs(%o : tensor<1x8x1x1048576xf32>) -> tensor<1x8x1x1048576xf32>
  return %r : tensor<1x8x1x1048576xf32>
}

// -----

// One product for each group, of its matrix of the filter.
// CHECK-LABEL: @groups
// CHECK:         scf.for %[[N:[^ ]+]] =
// CHECK:           scf.for %[[G:[^ ]+]] =
// CHECK:             %[[W:.+]] = tensor.extract_slice %{{.+}}[%[[G]], 0, 0, 0, 0]
// CHECK:             tensor.empty() : tensor<1x4x3x3x5x5xf32>
// CHECK:             diffattn.gemm ins(%{{.*}}, %{{.*}} : tensor<8x36xf32>, tensor<1x36x25xf32>) outs(%{{.*}} : tensor<1x8x25xf32>) {accumulate}
func.func @groups(%x: tensor<2x3x4x7x7xf32>, %w: tensor<3x8x4x3x3xf32>, %o: tensor<2x3x8x5x5xf32>) -> tensor<2x3x8x5x5xf32> {
  %r = linalg.conv_2d_ngchw_gfchw ins(%x, %w : tensor<2x3x4x7x7xf32>, tensor<3x8x4x3x3xf32>) outs(%o : tensor<2x3x8x5x5xf32>) -> tensor<2x3x8x5x5xf32>
  return %r : tensor<2x3x8x5x5xf32>
}

// -----

// Groups of few channels are windows.
// CHECK-LABEL: @small_groups
// CHECK:         linalg.conv_2d_ngchw_gfchw
func.func @small_groups(%x: tensor<2x3x4x7x7xf32>, %w: tensor<3x4x4x3x3xf32>, %o: tensor<2x3x4x5x5xf32>) -> tensor<2x3x4x5x5xf32> {
  %r = linalg.conv_2d_ngchw_gfchw ins(%x, %w : tensor<2x3x4x7x7xf32>, tensor<3x4x4x3x3xf32>) outs(%o : tensor<2x3x4x5x5xf32>) -> tensor<2x3x4x5x5xf32>
  return %r : tensor<2x3x4x5x5xf32>
}

// -----

// Channels by themselves, integers and images of unknown sizes are loops.
// CHECK-LABEL: @others
// CHECK:         linalg.depthwise_conv_2d_nchw_chw
// CHECK:         linalg.conv_2d_nchw_fchw
// CHECK:         linalg.conv_2d_nchw_fchw
func.func @others(%x: tensor<1x3x5x5xf32>, %w: tensor<3x3x3xf32>, %o: tensor<1x3x3x3xf32>, %i: tensor<1x3x5x5xi32>, %f: tensor<4x3x3x3xi32>, %p: tensor<1x4x3x3xi32>,
                  %d: tensor<1x3x?x?xf32>, %g: tensor<4x3x3x3xf32>, %q: tensor<1x4x?x?xf32>) -> (tensor<1x3x3x3xf32>, tensor<1x4x3x3xi32>, tensor<1x4x?x?xf32>) {
  %r = linalg.depthwise_conv_2d_nchw_chw ins(%x, %w : tensor<1x3x5x5xf32>, tensor<3x3x3xf32>) outs(%o : tensor<1x3x3x3xf32>) -> tensor<1x3x3x3xf32>
  %s = linalg.conv_2d_nchw_fchw ins(%i, %f : tensor<1x3x5x5xi32>, tensor<4x3x3x3xi32>) outs(%p : tensor<1x4x3x3xi32>) -> tensor<1x4x3x3xi32>
  %t = linalg.conv_2d_nchw_fchw ins(%d, %g : tensor<1x3x?x?xf32>, tensor<4x3x3x3xf32>) outs(%q : tensor<1x4x?x?xf32>) -> tensor<1x4x?x?xf32>
  return %r, %s, %t : tensor<1x3x3x3xf32>, tensor<1x4x3x3xi32>, tensor<1x4x?x?xf32>
}
