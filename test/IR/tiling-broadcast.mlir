// Sizes of a bias that are known only at run time may be 1, for all that a tile is cut into. With a number of heads that is not
// known the heads are one group, which a tile has as a whole, whatever the size that is asked for.
//
// DEFINE: %{plan} = transform-preload-library{transform-library-paths=%S/Inputs/tile.mlir}
// DEFINE: %{bias} = 1x1x1x7
// DEFINE: %{call} = --input=random:2x4x5x3xf32 --input=random:2x2x5x3xf32 --input=random:2x2x7x3xf32 --input=random:2x2x7x5xf32 --input=random:%{bias}xf32 --no-cache --quiet
// DEFINE: %{whole} = diffattn-run %s %{call} --output=%t.npy
// DEFINE: %{groups} = diffattn-run %t.groups.mlir %{call} --expected=%t.npy
// DEFINE: %{keys} = diffattn-run %t.keys.mlir %{call} --expected=%t.npy
//
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(%{plan},transform-interpreter{entry-point=tile_groups},canonicalize)" -o %t.groups.mlir
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-to-online),%{plan},transform-interpreter{entry-point=tile_heads_and_keys},canonicalize)" -o %t.keys.mlir
// RUN: FileCheck %s --check-prefix=GROUPS --input-file=%t.groups.mlir
// RUN: FileCheck %s --check-prefix=KEYS --input-file=%t.keys.mlir
// RUN: %{whole} && %{groups} && %{keys}
// REDEFINE: %{bias} = 1x2x5x7
// RUN: %{whole} && %{groups} && %{keys}

// GROUPS:      scf.for %[[B:.+]] = %c0
// GROUPS:        scf.for %[[I:.+]] = %c0
// GROUPS:          %[[IS_ONE:.+]] = arith.cmpi eq
// GROUPS:          arith.select %[[IS_ONE]], %c0, %[[B]]
// GROUPS:          %[[IS_ONE:.+]] = arith.cmpi eq
// GROUPS:          arith.select %[[IS_ONE]], %c0, %[[I]]
// GROUPS:          diffattn.attention {{.*}}tensor<1x4x?x3xf32>
// KEYS:        scf.for
// KEYS:          scf.for
// KEYS:            scf.for
// KEYS:              diffattn.online_attention
func.func @main(%q1: tensor<2x4x5x3xf32>, %q2: tensor<2x2x5x3xf32>, %k: tensor<2x2x7x3xf32>, %v: tensor<2x2x7x5xf32>,
                %bias: tensor<?x?x?x7xf32>) -> tensor<2x4x5x5xf32> {
  %l = arith.constant dense<0.25> : tensor<f32>
  %init = tensor.empty() : tensor<2x4x5x5xf32>
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : tensor<2x4x5x3xf32>, tensor<2x2x7x3xf32>, tensor<2x2x5x3xf32>,
           tensor<2x2x7x3xf32>, tensor<2x2x7x5xf32>) lambda(%l : tensor<f32>) bias(%bias : tensor<?x?x?x7xf32>)
         outs(%init : tensor<2x4x5x5xf32>) {scale = 0.5 : f32} -> tensor<2x4x5x5xf32>
  return %o : tensor<2x4x5x5xf32>
}
