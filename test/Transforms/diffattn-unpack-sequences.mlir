// RUN: diffattn-opt %s --diffattn-unpack-sequences --split-input-file | FileCheck %s

// A loop over the sequences, each with the rows of its own; what counts sequences gives one number.

// CHECK-LABEL: func.func @tensors(
// CHECK-SAME:      %[[Q1:[^:]+]]: tensor<1x?x2x8xf32>, %[[K1:[^:]+]]: tensor<1x2x?x8xf32>,
// CHECK-SAME:      %[[BQ:[^:]+]]: tensor<?xi32>, %[[BK:[^:]+]]: tensor<?xi64>, %[[OFFSET:[^:]+]]: tensor<?xi64>, %[[INIT:[^:]+]]: tensor<1x2x?x16xf32>)
// CHECK:         %[[COUNT:.+]] = arith.subi %{{.+}}, %c1
// CHECK:         %[[LOOP:.+]] = scf.for %[[N:.+]] = %c0{{.*}} to %[[COUNT]] step %c1{{.*}} iter_args(%[[OUT:.+]] = %[[INIT]])
// CHECK:           %[[FIRST32:.+]] = tensor.extract %[[BQ]][%[[N]]]
// CHECK:           %[[FIRST:.+]] = arith.index_cast %[[FIRST32]]
// CHECK:           %[[NEXT:.+]] = arith.addi %[[N]]
// CHECK:           %[[END32:.+]] = tensor.extract %[[BQ]][%[[NEXT]]]
// CHECK:           %[[END:.+]] = arith.index_cast %[[END32]]
// CHECK:           %[[ROWS:.+]] = arith.subi %[[END]], %[[FIRST]]
// CHECK:           tensor.extract %[[BK]][%[[N]]]
// CHECK:           %[[KEYS:.+]] = arith.subi
// CHECK:           tensor.extract_slice %[[Q1]][0, %[[FIRST]], 0, 0] [1, %[[ROWS]], 2, 8]
// CHECK:           tensor.extract_slice %[[K1]][0, 0, %{{.+}}, 0] [1, 2, %[[KEYS]], 8]
// CHECK:           tensor.extract_slice %[[OFFSET]][%[[N]]] [1] [1] : tensor<?xi64> to tensor<1xi64>
// CHECK:           %[[INTO:.+]] = tensor.extract_slice %[[OUT]][0, 0, %[[FIRST]], 0] [1, 2, %[[ROWS]], 16]
// CHECK:           %[[ONE:.+]] = diffattn.attention
// CHECK-SAME:        q_offset(%{{.+}} : tensor<1xi64>) outs(%[[INTO]] : tensor<1x2x?x16xf32>)
// CHECK-SAME:        is_causal
// CHECK:           %[[ALL:.+]] = tensor.insert_slice %[[ONE]] into %[[OUT]][0, 0, %[[FIRST]], 0] [1, 2, %[[ROWS]], 16]
// CHECK:           scf.yield %[[ALL]]
// CHECK:         return %[[LOOP]]
func.func @tensors(%q1: tensor<1x?x2x8xf32>, %k1: tensor<1x2x?x8xf32>, %v: tensor<1x2x?x16xf32>, %lambda: tensor<1x?x2xf32>,
    %bq: tensor<?xi32>, %bk: tensor<?xi64>, %offset: tensor<?xi64>, %init: tensor<1x2x?x16xf32>) -> tensor<1x2x?x16xf32> {
  %0 = diffattn.attention ins(%q1, %k1, %q1, %k1, %v
         : tensor<1x?x2x8xf32>, tensor<1x2x?x8xf32>, tensor<1x?x2x8xf32>, tensor<1x2x?x8xf32>, tensor<1x2x?x16xf32>)
       lambda(%lambda : tensor<1x?x2xf32>) q_offset(%offset : tensor<?xi64>)
       cu_seqlens_q(%bq : tensor<?xi32>) cu_seqlens_k(%bk : tensor<?xi64>) outs(%init : tensor<1x2x?x16xf32>)
       {scale = 0.5 : f32, is_causal, q_layout = #diffattn.layout<bthd>} -> tensor<1x2x?x16xf32>
  return %0 : tensor<1x2x?x16xf32>
}

// -----

// Pages stay as they are, with the row of the table that is the sequence's.

// CHECK-LABEL: func.func @paged_memrefs(
// CHECK-SAME:      %[[PAGES:[^:]+]]: memref<?x2x16x8xf32>
// CHECK:         scf.for %[[N:.+]] = %c0{{.*}} to
// CHECK:           %[[LEN:.+]] = memref.subview %{{.+}}[%[[N]]] [1] [1]
// CHECK:           %[[ROW:.+]] = memref.subview %{{.+}}[%[[N]], 0] [1, %{{.+}}] [1, 1]
// CHECK:           diffattn.attention ins(%{{[^ ]+}}, %[[PAGES]], %{{[^ ]+}}, %[[PAGES]], %{{[^ ]+}} :
// CHECK-SAME:        kv_len(%[[LEN]] : memref<1xi64, strided<[1], offset: ?>>)
// CHECK-SAME:        block_table(%[[ROW]] : memref<1x?xi32, strided<[?, 1], offset: ?>>)
// CHECK-NOT:       cu_seqlens
// CHECK:         return
func.func @paged_memrefs(%q1: memref<1x2x?x8xf32>, %k1: memref<?x2x16x8xf32>, %v: memref<?x2x16x16xf32>, %lambda: memref<f32>,
    %len: memref<?xi64>, %bq: memref<?xi32>, %table: memref<?x?xi32>, %init: memref<1x2x?x16xf32>) {
  diffattn.attention ins(%q1, %k1, %q1, %k1, %v
         : memref<1x2x?x8xf32>, memref<?x2x16x8xf32>, memref<1x2x?x8xf32>, memref<?x2x16x8xf32>, memref<?x2x16x16xf32>)
       lambda(%lambda : memref<f32>) kv_len(%len : memref<?xi64>)
       cu_seqlens_q(%bq : memref<?xi32>) block_table(%table : memref<?x?xi32>) outs(%init : memref<1x2x?x16xf32>) {scale = 0.5 : f32}
  return
}

// -----

// Gradients: rows go to their places, and what all sequences share is added up, in f32 if its type is shorter.

// CHECK-LABEL: func.func @gradients(
// CHECK-SAME:      %[[Q:[^:]+]]: tensor<1x2x?x8xbf16>, {{.*}}%[[DW:[^:]+]]: tensor<16xbf16>, %[[DL:[^:]+]]: tensor<f32>)
// CHECK:         %[[PARTL:.+]] = tensor.empty() : tensor<f32>
// CHECK:         %[[ZEROL:.+]] = linalg.fill {{.*}} outs(%[[DL]] : tensor<f32>)
// CHECK:         %[[PARTW:.+]] = tensor.empty() : tensor<16xf32>
// CHECK:         %[[ZEROW:.+]] = linalg.fill {{.*}} : tensor<16xf32>
// CHECK:         %[[LOOP:.+]]:3 = scf.for {{.*}} iter_args(%[[DQ:.+]] = %{{.+}}, %[[SUML:.+]] = %[[ZEROL]], %[[SUMW:.+]] = %[[ZEROW]])
// CHECK:           tensor.extract_slice %[[Q]][0, 0, %[[FIRST:[^,]+]], 0] [1, 2, %[[ROWS:[^,]+]], 8]
// CHECK:           %[[INTO:.+]] = tensor.extract_slice %[[DQ]][0, 0, %[[FIRST]], 0] [1, 2, %[[ROWS]], 8]
// CHECK:           %[[ONE:.+]]:3 = diffattn.attention_backward
// CHECK-SAME:        d_q1(%[[INTO]] : {{[^)]+}}) d_lambda(%[[PARTL]] : {{[^)]+}}) d_norm_weight(%[[PARTW]] :
// CHECK:           %[[ROWSQ:.+]] = tensor.insert_slice %[[ONE]]#0 into %[[DQ]][0, 0, %[[FIRST]], 0] [1, 2, %[[ROWS]], 8]
// CHECK:           %[[NEWL:.+]] = linalg.add ins(%[[SUML]], %[[ONE]]#1 {{.*}} outs(%[[SUML]]
// CHECK:           %[[NEWW:.+]] = linalg.add ins(%[[SUMW]], %[[ONE]]#2 {{.*}} outs(%[[SUMW]]
// CHECK:           scf.yield %[[ROWSQ]], %[[NEWL]], %[[NEWW]]
// CHECK:         %[[ROUNDED:.+]] = linalg.generic {{.*}} ins(%[[LOOP]]#2 : tensor<16xf32>) outs(%[[DW]] : tensor<16xbf16>)
// CHECK:         return %[[LOOP]]#0, %[[LOOP]]#1, %[[ROUNDED]]
func.func @gradients(%q: tensor<1x2x?x8xbf16>, %v: tensor<1x2x?x16xbf16>, %l: tensor<f32>, %w: tensor<16xbf16>, %b: tensor<?xi32>,
    %dq: tensor<1x2x?x8xbf16>, %dw: tensor<16xbf16>, %dl: tensor<f32>) -> (tensor<1x2x?x8xbf16>, tensor<f32>, tensor<16xbf16>) {
  %r:3 = diffattn.attention_backward ins(%q, %q, %q, %q, %v
           : tensor<1x2x?x8xbf16>, tensor<1x2x?x8xbf16>, tensor<1x2x?x8xbf16>, tensor<1x2x?x8xbf16>, tensor<1x2x?x16xbf16>)
         d_out(%v : tensor<1x2x?x16xbf16>) lambda(%l : tensor<f32>) norm_weight(%w : tensor<16xbf16>)
         cu_seqlens_q(%b : tensor<?xi32>) cu_seqlens_k(%b : tensor<?xi32>)
         outs(d_q1(%dq : tensor<1x2x?x8xbf16>) d_lambda(%dl : tensor<f32>) d_norm_weight(%dw : tensor<16xbf16>))
         {scale = 0.5 : f32, norm = #diffattn.norm<rms>} -> tensor<1x2x?x8xbf16>, tensor<f32>, tensor<16xbf16>
  return %r#0, %r#1, %r#2 : tensor<1x2x?x8xbf16>, tensor<f32>, tensor<16xbf16>
}

// -----

// On memrefs parts and sums have memory of their own, which is freed.

// CHECK-LABEL: func.func @gradient_memrefs(
// CHECK-SAME:      %[[DW:[^:]+]]: memref<?xbf16>)
// CHECK:         %[[PART:.+]] = memref.alloc({{.*}}) : memref<?xf32>
// CHECK:         %[[SUM:.+]] = memref.alloc({{.*}}) : memref<?xf32>
// CHECK:         linalg.fill {{.*}} outs(%[[SUM]]
// CHECK:         scf.for
// CHECK:           diffattn.attention_backward {{.*}} d_norm_weight(%[[PART]] :
// CHECK:           linalg.add ins(%[[SUM]], %[[PART]] {{.*}} outs(%[[SUM]]
// CHECK:         linalg.generic {{.*}} ins(%[[SUM]] : memref<?xf32>) outs(%[[DW]] : memref<?xbf16>)
// CHECK-DAG:     memref.dealloc %[[PART]]
// CHECK-DAG:     memref.dealloc %[[SUM]]
// CHECK:         return
func.func @gradient_memrefs(%q: memref<1x2x?x8xbf16>, %v: memref<1x2x?x?xbf16>, %l: memref<f32>, %w: memref<?xbf16>, %b: memref<?xi32>,
    %dw: memref<?xbf16>) {
  diffattn.attention_backward ins(%q, %q, %q, %q, %v
           : memref<1x2x?x8xbf16>, memref<1x2x?x8xbf16>, memref<1x2x?x8xbf16>, memref<1x2x?x8xbf16>, memref<1x2x?x?xbf16>)
         d_out(%v : memref<1x2x?x?xbf16>) lambda(%l : memref<f32>) norm_weight(%w : memref<?xbf16>)
         cu_seqlens_q(%b : memref<?xi32>) cu_seqlens_k(%b : memref<?xi32>)
         outs(d_norm_weight(%dw : memref<?xbf16>)) {scale = 0.5 : f32, norm = #diffattn.norm<rms>}
  return
}
