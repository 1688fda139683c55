// RUN: diffattn-opt %s --diffattn-gather-pages --split-input-file | FileCheck %s

// Rows in the order of the table; an entry that is no page is brought into range. Keys of both maps are copied once.

// CHECK:       #[[$ENTRY:.+]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d2)>
// CHECK-LABEL: func.func @tensors(
// CHECK-SAME:      %[[PAGES:[^:]+]]: tensor<?x2x16x8xf32>
// CHECK-SAME:      %[[TABLE:[^:]+]]: tensor<3x4xi32>
// CHECK:         %[[COUNT:.+]] = tensor.dim %[[PAGES]], %c0
// CHECK:         %[[LAST:.+]] = arith.subi %[[COUNT]], %c1
// CHECK:         %[[EMPTY:.+]] = tensor.empty() : tensor<3x2x4x16x8xf32>
// CHECK:         %[[ROWS:.+]] = linalg.generic {indexing_maps = [#[[$ENTRY]], {{.+}}], {{.+}}} ins(%[[TABLE]] : tensor<3x4xi32>)
// CHECK:           %[[PAGE:.+]] = arith.index_cast
// CHECK:           %[[LOW:.+]] = arith.minsi %[[PAGE]], %[[LAST]]
// CHECK:           %[[PLACE:.+]] = arith.maxsi %[[LOW]], %c0
// CHECK:           tensor.extract %[[PAGES]][%[[PLACE]], %{{.+}}, %{{.+}}, %{{.+}}]
// CHECK:         %[[KEYS:.+]] = tensor.collapse_shape %[[ROWS]] {{\[\[}}0], [1], [2, 3], [4]] : tensor<3x2x4x16x8xf32> into tensor<3x2x64x8xf32>
// CHECK:         %[[VALUES:.+]] = tensor.collapse_shape {{.+}} {{\[\[}}0], [1, 2], [3], [4]] : tensor<3x4x16x2x16xf32> into tensor<3x64x2x16xf32>
// CHECK:         diffattn.attention ins(%{{[^ ]+}}, %[[KEYS]], %{{[^ ]+}}, %[[KEYS]], %[[VALUES]] :
// CHECK-NOT:     block_table
// CHECK:         return
func.func @tensors(%q1: tensor<3x2x?x8xf32>, %k1: tensor<?x2x16x8xf32>, %v: tensor<?x16x2x16xf32>, %lambda: tensor<f32>,
    %len: tensor<3xi64>, %table: tensor<3x4xi32>, %init: tensor<3x2x?x16xf32>) -> tensor<3x2x?x16xf32> {
  %0 = diffattn.attention ins(%q1, %k1, %q1, %k1, %v
         : tensor<3x2x?x8xf32>, tensor<?x2x16x8xf32>, tensor<3x2x?x8xf32>, tensor<?x2x16x8xf32>, tensor<?x16x2x16xf32>)
       lambda(%lambda : tensor<f32>) kv_len(%len : tensor<3xi64>) block_table(%table : tensor<3x4xi32>)
       outs(%init : tensor<3x2x?x16xf32>) {scale = 0.5 : f32, v_layout = #diffattn.layout<bthd>} -> tensor<3x2x?x16xf32>
  return %0 : tensor<3x2x?x16xf32>
}

// -----

// On memrefs the copies are freed.

// CHECK-LABEL: func.func @memrefs(
// CHECK:         %[[K:.+]] = memref.alloc(%{{.+}}, %{{.+}}) {alignment = 64 : i64} : memref<?x2x?x16x8xf32>
// CHECK:         %[[V:.+]] = memref.alloc(%{{.+}}, %{{.+}}) {alignment = 64 : i64} : memref<?x2x?x16x16xf32>
// CHECK:         diffattn.attention
// CHECK-NOT:     block_table
// CHECK-DAG:     memref.dealloc %[[K]]
// CHECK-DAG:     memref.dealloc %[[V]]
// CHECK:         return
func.func @memrefs(%q1: memref<?x2x?x8xf32>, %k1: memref<?x2x16x8xf32>, %v: memref<?x2x16x16xf32>, %lambda: memref<f32>,
    %len: memref<?xi64>, %table: memref<?x?xi32>, %init: memref<?x2x?x16xf32>) {
  diffattn.attention ins(%q1, %k1, %q1, %k1, %v
         : memref<?x2x?x8xf32>, memref<?x2x16x8xf32>, memref<?x2x?x8xf32>, memref<?x2x16x8xf32>, memref<?x2x16x16xf32>)
       lambda(%lambda : memref<f32>) kv_len(%len : memref<?xi64>) block_table(%table : memref<?x?xi32>)
       outs(%init : memref<?x2x?x16xf32>) {scale = 0.5 : f32}
  return
}
