// One map in tiles of heads and queries, and of its three states in tiles of heads, queries and keys: what it is whole.
//
// DEFINE: %{plan} = transform-preload-library{transform-library-paths=%S/Inputs/tile.mlir}
// DEFINE: %{call} = --input=random:2x4x5x3xf32 --input=random:2x2x7x3xf32 --input=random:2x2x7x5xf32 --input=random:2x4x5x7xf32 --no-cache --quiet
//
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(%{plan},transform-interpreter{entry-point=tile_groups},canonicalize)" -o %t.groups.mlir
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-to-online),%{plan},transform-interpreter{entry-point=tile_heads_and_keys},canonicalize)" -o %t.keys.mlir
// RUN: FileCheck %s --check-prefix=GROUPS --input-file=%t.groups.mlir
// RUN: FileCheck %s --check-prefix=KEYS --input-file=%t.keys.mlir
// RUN: diffattn-run %s %{call} --output=%t.npy
// RUN: diffattn-run %t.groups.mlir %{call} --expected=%t.npy
// RUN: diffattn-run %t.keys.mlir %{call} --expected=%t.npy

// GROUPS:      diffattn.attention ins(%{{[^,]+}}, %{{[^,]+}}, %{{[^,]+}} : tensor<1x4x?x3xf32>, tensor<1x2x7x3xf32>, tensor<1x2x7x5xf32>)
// GROUPS-SAME:   bias(%{{.+}} : tensor<1x4x?x7xf32>)
// KEYS:        diffattn.online_attention ins(%{{[^,]+}}, %{{[^,]+}}, %{{[^,]+}} :
// KEYS-SAME:     k_offset(
// KEYS:        diffattn.finalize ins(%{{[^,]+}}, %{{[^,]+}} :
func.func @main(%q: tensor<2x4x5x3xf32>, %k: tensor<2x2x7x3xf32>, %v: tensor<2x2x7x5xf32>, %bias: tensor<2x4x5x7xf32>)
    -> tensor<2x4x5x5xf32> {
  %init = tensor.empty() : tensor<2x4x5x5xf32>
  %o = diffattn.attention ins(%q, %k, %v : tensor<2x4x5x3xf32>, tensor<2x2x7x3xf32>, tensor<2x2x7x5xf32>)
         bias(%bias : tensor<2x4x5x7xf32>) outs(%init : tensor<2x4x5x5xf32>)
         {scale = 0.5 : f32, is_causal, norm = #diffattn.norm<rms>} -> tensor<2x4x5x5xf32>
  return %o : tensor<2x4x5x5xf32>
}
