// Attention joins the loops of a consumer that is tiled over batch, heads and queries, and computes what its tile reads. A row is
// computed as a whole, and so are heads that share keys: where a tile has parts of them, attention stays above the loops.
//
// DEFINE: %{plan} = transform-preload-library{transform-library-paths=%S/Inputs/tile.mlir}
// DEFINE: %{entry} =
// DEFINE: %{fuse} = diffattn-opt %s --pass-pipeline="builtin.module(%{plan},transform-interpreter{entry-point=%{entry}},canonicalize,cse)" -o %t.mlir
// DEFINE: %{alone} = --entry=alone --input=random:2x4x5x3xf32 --input=random:2x4x5x3xf32 --input=random:2x4x7x3xf32 --input=random:2x4x7x5xf32 --no-cache --quiet
// DEFINE: %{grouped} = --entry=grouped --input=random:2x4x5x3xf32 --input=random:2x2x5x3xf32 --input=random:2x2x7x3xf32 --input=random:2x2x7x5xf32 --no-cache --quiet
// DEFINE: %{same} = diffattn-run %t.mlir %{alone} --expected=%t.alone.npy && diffattn-run %t.mlir %{grouped} --expected=%t.grouped.npy
//
// RUN: diffattn-run %s %{alone} --output=%t.alone.npy
// RUN: diffattn-run %s %{grouped} --output=%t.grouped.npy
// REDEFINE: %{entry} = fuse_into_heads
// RUN: %{fuse} && FileCheck %s --check-prefixes=HEADS --input-file=%t.mlir && %{same}
// REDEFINE: %{entry} = fuse_into_queries
// RUN: %{fuse} && FileCheck %s --check-prefixes=QUERIES --input-file=%t.mlir && %{same}
// REDEFINE: %{entry} = fuse_into_values
// RUN: %{fuse} && FileCheck %s --check-prefixes=VALUES --input-file=%t.mlir && %{same}

#same = affine_map<(b, h, t, c) -> (b, h, t, c)>
#rows = affine_map<(b, h, t) -> (b, h, t)>
!q = tensor<2x4x5x3xf32>
!o = tensor<2x4x5x5xf32>

// HEADS-LABEL:   func.func @alone(
// HEADS-NOT:       diffattn.attention
// HEADS:           scf.for %[[B:.+]] = %c0
// HEADS:             scf.for %[[H:.+]] = %c0
// HEADS:               scf.for %[[T:.+]] = %c0
// HEADS-DAG:             %[[Q1:.+]] = tensor.extract_slice %arg0[%[[B]], %[[H]], %[[T]], 0] [1, 1, %{{.+}}, 3]
// HEADS-DAG:             %[[K:.+]] = tensor.extract_slice %arg2[%[[B]], %[[H]], 0, 0] [1, 1, 7, 3]
// HEADS:                 %[[O:.+]] = diffattn.attention ins(%[[Q1]], %[[K]],
// HEADS:                 linalg.generic {{.+}} ins(%[[O]]
// QUERIES-LABEL: func.func @alone(
// QUERIES-NOT:     diffattn.attention
// QUERIES:         scf.for
// QUERIES:           scf.for
// QUERIES:             diffattn.attention {{.*}}tensor<1x4x?x3xf32>
// VALUES-LABEL:  func.func @alone(
// VALUES:          diffattn.attention {{.*}}tensor<2x4x5x3xf32>
// VALUES:          scf.for
func.func @alone(%q1: !q, %q2: !q, %k: tensor<2x4x7x3xf32>, %v: tensor<2x4x7x5xf32>) -> !o {
  %l = arith.constant dense<0.25> : tensor<f32>
  %init = tensor.empty() : !o
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : !q, tensor<2x4x7x3xf32>, !q, tensor<2x4x7x3xf32>, tensor<2x4x7x5xf32>)
         lambda(%l : tensor<f32>) outs(%init : !o) {scale = 0.5 : f32} -> !o
  %y = linalg.generic {indexing_maps = [#same, #same], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%o : !o) outs(%init : !o) {
  ^bb0(%a: f32, %old: f32):
    %square = arith.mulf %a, %a : f32
    linalg.yield %square : f32
  } -> !o
  return %y : !o
}

// HEADS-LABEL:   func.func @grouped(
// HEADS:           diffattn.attention {{.*}}tensor<2x4x5x3xf32>
// HEADS:           scf.for
// QUERIES-LABEL: func.func @grouped(
// QUERIES-NOT:     diffattn.attention
// QUERIES:         scf.for
// QUERIES:           scf.for
// QUERIES:             diffattn.attention {{.*}}tensor<1x4x?x3xf32>, tensor<1x2x7x3xf32>
// VALUES-LABEL:  func.func @grouped(
// VALUES:          diffattn.attention {{.*}}tensor<2x4x5x3xf32>
// VALUES:          scf.for
func.func @grouped(%q1: !q, %q2: tensor<2x2x5x3xf32>, %k: tensor<2x2x7x3xf32>, %v: tensor<2x2x7x5xf32>) -> !o {
  %l = arith.constant dense<0.25> : tensor<f32>
  %init = tensor.empty() : !o
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : !q, tensor<2x2x7x3xf32>, tensor<2x2x5x3xf32>, tensor<2x2x7x3xf32>, tensor<2x2x7x5xf32>)
         lambda(%l : tensor<f32>) outs(%init : !o) {scale = 0.5 : f32} -> !o
  %y = linalg.generic {indexing_maps = [#same, #same], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%o : !o) outs(%init : !o) {
  ^bb0(%a: f32, %old: f32):
    %square = arith.mulf %a, %a : f32
    linalg.yield %square : f32
  } -> !o
  return %y : !o
}

// A tile has one result, so attention that has more stays as it is.

// HEADS-LABEL:   func.func @saved(
// HEADS:           diffattn.attention
// HEADS:           scf.for
// QUERIES-LABEL: func.func @saved(
// QUERIES:         diffattn.attention
// QUERIES:         scf.for
// VALUES-LABEL:  func.func @saved(
// VALUES:          diffattn.attention
// VALUES:          scf.for
func.func @saved(%q1: !q, %q2: !q, %k: tensor<2x4x7x3xf32>, %v: tensor<2x4x7x5xf32>) -> (!o, tensor<2x4x5xf32>) {
  %l = arith.constant dense<0.25> : tensor<f32>
  %init = tensor.empty() : !o
  %logs = tensor.empty() : tensor<2x4x5xf32>
  %o, %lse1, %lse2 = diffattn.attention ins(%q1, %k, %q2, %k, %v : !q, tensor<2x4x7x3xf32>, !q, tensor<2x4x7x3xf32>, tensor<2x4x7x5xf32>)
         lambda(%l : tensor<f32>) outs(%init : !o) lse1(%logs : tensor<2x4x5xf32>) lse2(%logs : tensor<2x4x5xf32>) {scale = 0.5 : f32}
         -> !o, tensor<2x4x5xf32>, tensor<2x4x5xf32>
  %y = linalg.generic {indexing_maps = [#rows, #rows], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%lse1 : tensor<2x4x5xf32>) outs(%logs : tensor<2x4x5xf32>) {
  ^bb0(%a: f32, %old: f32):
    %square = arith.mulf %a, %a : f32
    linalg.yield %square : f32
  } -> tensor<2x4x5xf32>
  return %o, %y : !o, tensor<2x4x5xf32>
}
