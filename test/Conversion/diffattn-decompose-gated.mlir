// RUN: diffattn-opt %s --diffattn-decompose | FileCheck %s
// What it is decomposed to is fused again, where there are tiles and weights.
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="isa=amx until=scheduled" | FileCheck %s --check-prefix=AGAIN

// CHECK-DAG: #[[$ROWS:.+]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK-DAG: #[[$COLUMNS:.+]] = affine_map<(d0, d1, d2) -> (d1, d2)>
// CHECK-DAG: #[[$PLAIN:.+]] = affine_map<(d0, d1, d2) -> (d2, d1)>
ml_program.global private @gate(#ml_program.extern<tensor<96x64xbf16>>) : tensor<96x64xbf16>
ml_program.global private @up(#ml_program.extern<tensor<96x64xbf16>>) : tensor<96x64xbf16>
// CHECK-LABEL: func.func @rounded(
// CHECK-NOT:   diffattn.gated_gemm
// CHECK:       %[[G:.+]] = linalg.generic {indexing_maps = [#[[$ROWS]], #[[$COLUMNS]], {{.*}}"reduction"]
// CHECK:       %[[U:.+]] = linalg.generic {indexing_maps = [#[[$ROWS]], #[[$COLUMNS]], {{.*}}"reduction"]
// CHECK:       linalg.generic {{.*}} ins(%[[G]], %[[U]]
// CHECK-NEXT:  ^bb0(%[[A:.+]]: f32, %[[B:.+]]: f32, %{{.+}}: bf16):
// CHECK-NEXT:    %[[A16:.+]] = arith.truncf %[[A]] : f32 to bf16
// CHECK-NEXT:    %[[AR:.+]] = arith.extf %[[A16]]
// CHECK-NEXT:    %[[B16:.+]] = arith.truncf %[[B]] : f32 to bf16
// CHECK-NEXT:    %[[BR:.+]] = arith.extf %[[B16]]
// CHECK:         %[[NEG:.+]] = arith.negf %[[AR]]
// CHECK-NEXT:    %[[EXP:.+]] = math.exp %[[NEG]]
// CHECK-NEXT:    %[[SUM:.+]] = arith.addf %[[EXP]], %[[ONE:.+]] :
// CHECK-NEXT:    %[[SIGMOID:.+]] = arith.divf %[[ONE]], %[[SUM]]
// CHECK-NEXT:    %[[SILU:.+]] = arith.mulf %[[AR]], %[[SIGMOID]]
// CHECK-NEXT:    %[[SILU16:.+]] = arith.truncf %[[SILU]] : f32 to bf16
// CHECK-NEXT:    %[[R:.+]] = arith.extf %[[SILU16]]
// CHECK-NEXT:    %[[Y:.+]] = arith.mulf %[[R]], %[[BR]]
// CHECK-NEXT:    arith.truncf %[[Y]] : f32 to bf16
// AGAIN-LABEL: func.func @rounded(
// AGAIN:       diffattn.gated_gemm {{.*}} {rounded = #diffattn.gate_rounding<sums|silu>, transpose_b}
func.func @rounded(%x: tensor<?x64xbf16>, %y: tensor<?x96xbf16>) -> tensor<?x96xbf16> {
  %g = ml_program.global_load_const @gate : tensor<96x64xbf16>
  %u = ml_program.global_load_const @up : tensor<96x64xbf16>
  %0 = diffattn.gated_gemm ins(%x, %g, %u : tensor<?x64xbf16>, tensor<96x64xbf16>, tensor<96x64xbf16>) outs(%y : tensor<?x96xbf16>)
    {rounded = #diffattn.gate_rounding<sums|silu>, transpose_b} -> tensor<?x96xbf16>
  return %0 : tensor<?x96xbf16>
}

// CHECK-LABEL: func.func @in_f32(
// CHECK-COUNT-2: linalg.generic {indexing_maps = [#[[$ROWS]], #[[$PLAIN]],
// CHECK-NOT:     arith.truncf
// CHECK:         return
// AGAIN-LABEL: func.func @in_f32(
// AGAIN-NOT:   diffattn.gated_gemm
func.func @in_f32(%x: memref<4x64xf32>, %g: memref<64x96xf32>, %u: memref<64x96xf32>, %y: memref<4x96xf32>) {
  diffattn.gated_gemm ins(%x, %g, %u : memref<4x64xf32>, memref<64x96xf32>, memref<64x96xf32>) outs(%y : memref<4x96xf32>)
    {rounded = #diffattn.gate_rounding<sums>}
  return
}
