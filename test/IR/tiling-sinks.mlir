// Tiles of heads and queries of an op with sinks, of which each tile has those of its heads: what it is whole.
//
// DEFINE: %{plan} = transform-preload-library{transform-library-paths=%S/Inputs/tile.mlir}
// DEFINE: %{call} = --input=random:2x4x5x3xf32 --input=random:2x2x7x3xf32 --input=random:2x2x7x5xf32 --input=f32=0.4 --input=random:4xf32 --input=random:2xf32 --no-cache --quiet
//
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(%{plan},transform-interpreter{entry-point=tile_attention},canonicalize)" -o %t.tiled.mlir
// RUN: FileCheck %s --input-file=%t.tiled.mlir
// RUN: diffattn-run %s %{call} --output=%t.npy
// RUN: diffattn-run %t.tiled.mlir %{call} --expected=%t.npy

// CHECK-DAG:   %[[SINK:.+]] = tensor.extract_slice %{{.+}}[%{{.+}}] [2] [1] : tensor<4xf32> to tensor<2xf32>
// CHECK-DAG:   %[[SINK2:.+]] = tensor.extract_slice %{{.+}}[%{{.+}}] [1] [1] : tensor<2xf32> to tensor<1xf32>
// CHECK:       diffattn.attention
// CHECK-SAME:    sink(%[[SINK]] : tensor<2xf32>) sink2(%[[SINK2]] : tensor<1xf32>) outs(
func.func @main(%q: tensor<2x4x5x3xf32>, %k: tensor<2x2x7x3xf32>, %v: tensor<2x2x7x5xf32>, %l: tensor<f32>, %s: tensor<4xf32>, %s2: tensor<2xf32>)
    -> tensor<2x4x5x5xf32> {
  %q2 = tensor.extract_slice %q[0, 0, 0, 0] [2, 2, 5, 3] [1, 2, 1, 1] : tensor<2x4x5x3xf32> to tensor<2x2x5x3xf32>
  %init = tensor.empty() : tensor<2x4x5x5xf32>
  %o = diffattn.attention ins(%q, %k, %q2, %k, %v : tensor<2x4x5x3xf32>, tensor<2x2x7x3xf32>, tensor<2x2x5x3xf32>, tensor<2x2x7x3xf32>,
         tensor<2x2x7x5xf32>) lambda(%l : tensor<f32>) sink(%s : tensor<4xf32>) sink2(%s2 : tensor<2xf32>) outs(%init : tensor<2x4x5x5xf32>)
         {scale = 0.5 : f32, is_causal} -> tensor<2x4x5x5xf32>
  return %o : tensor<2x4x5x5xf32>
}
