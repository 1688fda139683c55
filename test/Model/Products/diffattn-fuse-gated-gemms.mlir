// RUN: diffattn-opt %s --split-input-file --pass-pipeline="builtin.module(func.func(diffattn-fuse-gated-gemms{isa=amx-emulated}))" | FileCheck %s
// RUN: diffattn-opt %s --split-input-file --pass-pipeline="builtin.module(func.func(diffattn-fuse-gated-gemms{isa=amx}))" | FileCheck %s
// RUN: diffattn-opt %s --split-input-file --pass-pipeline="builtin.module(func.func(diffattn-fuse-gated-gemms{isa=amx batch-invariant=true}))" | FileCheck %s
// Where there are no tiles, and where a library multiplies, nothing changes.
// RUN: diffattn-opt %s --split-input-file --pass-pipeline="builtin.module(func.func(diffattn-fuse-gated-gemms{isa=avx512bf16}))" | FileCheck %s --check-prefix=NONE
// RUN: diffattn-opt %s --split-input-file --pass-pipeline="builtin.module(func.func(diffattn-fuse-gated-gemms{isa=amx batch-invariant=false}))" | FileCheck %s --check-prefix=NONE
// NONE-NOT: diffattn.gated_gemm
// RUN: not diffattn-opt %s --split-input-file --pass-pipeline="builtin.module(func.func(diffattn-fuse-gated-gemms{isa=amx batch-invariant=maybe}))" 2>&1 | FileCheck %s --check-prefix=WRONG
// WRONG: batch-invariant option: expected one of auto, true, false, but got 'maybe'
// RUN: not diffattn-opt %s --split-input-file --pass-pipeline="builtin.module(func.func(diffattn-fuse-gated-gemms{isa=none}))" 2>&1 | FileCheck %s --check-prefix=ISA
// ISA: expected isa to be one of {{.*}}, but got none

// Sums in f32 and one rounding, as our own models have it.
#id = affine_map<(i, j) -> (i, j)>
ml_program.global private @gate(#ml_program.extern<tensor<96x64xbf16>>) : tensor<96x64xbf16>
ml_program.global private @"up.{}"(#ml_program.extern<tensor<96x64xbf16>>) : tensor<96x64xbf16> {diffattn.layers = 2 : i64}
// CHECK-LABEL: func.func @in_f32(
// CHECK-SAME: %[[X:.+]]: tensor<?x64xbf16>, %[[LAYER:.+]]: index, %[[M:.+]]: index)
func.func @in_f32(%x: tensor<?x64xbf16>, %layer: index, %m: index) -> tensor<?x96xbf16> {
  // CHECK-DAG: %[[GATE:.+]] = ml_program.global_load_const @gate
  // CHECK-DAG: %[[UP:.+]] = diffattn.layer_weight @"up.{}"[%[[LAYER]]]
  // CHECK-DAG: %[[INIT:.+]] = tensor.empty(%[[M]]) : tensor<?x96xbf16>
  // CHECK: %[[Y:.+]] = diffattn.gated_gemm ins(%[[X]], %[[GATE]], %[[UP]] : tensor<?x64xbf16>, tensor<96x64xbf16>, tensor<96x64xbf16>) outs(%[[INIT]] : tensor<?x96xbf16>) {transpose_b} -> tensor<?x96xbf16>
  // CHECK-NEXT: return %[[Y]]
  %one = arith.constant 1.0 : f32
  %wg = ml_program.global_load_const @gate : tensor<96x64xbf16>
  %wu = diffattn.layer_weight @"up.{}"[%layer] : tensor<96x64xbf16>
  %sums = tensor.empty(%m) : tensor<?x96xf32>
  %init = tensor.empty(%m) : tensor<?x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<?x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<?x96xf32>) {transpose_b} -> tensor<?x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<?x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<?x96xf32>) {transpose_b} -> tensor<?x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<?x96xf32>, tensor<?x96xf32>) outs(%init : tensor<?x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<?x96xbf16>
  return %y : tensor<?x96xbf16>
}

// -----

// Every op in bf16, as importers write it; factors and terms the other way round, inputs too, rows of two axes that each
// product collapses for itself, and weights that are constants, as they lie.
#id = affine_map<(i, j, k) -> (i, j, k)>
// CHECK-LABEL: func.func @in_bf16(
// CHECK-SAME: %[[ROWS:.+]]: tensor<2x3x64xbf16>)
func.func @in_bf16(%rows: tensor<2x3x64xbf16>) -> tensor<2x3x96xbf16> {
  // CHECK-DAG: %[[GATE:.+]] = arith.constant dense<1.000000e+00> : tensor<64x96xbf16>
  // CHECK-DAG: %[[UP:.+]] = arith.constant dense<2.000000e+00> : tensor<64x96xbf16>
  // CHECK-DAG: %[[INIT:.+]] = tensor.empty() : tensor<2x3x96xbf16>
  // CHECK-DAG: %[[X:.+]] = tensor.collapse_shape %[[ROWS]]
  // CHECK: %[[FLAT:.+]] = tensor.collapse_shape %[[INIT]] {{\[}}[0, 1], [2]]
  // CHECK: %[[Y:.+]] = diffattn.gated_gemm ins(%[[X]], %[[GATE]], %[[UP]] : {{.+}}) outs(%[[FLAT]] : tensor<6x96xbf16>) {rounded = #diffattn.gate_rounding<sums|exponential|denominator|sigmoid|silu>} -> tensor<6x96xbf16>
  // CHECK: %[[RESULT:.+]] = tensor.expand_shape %[[Y]] {{\[}}[0, 1], [2]] output_shape [2, 3, 96]
  // CHECK: return %[[RESULT]]
  %one = arith.constant 1.0 : bf16
  %wg = arith.constant dense<1.0> : tensor<64x96xbf16>
  %wu = arith.constant dense<2.0> : tensor<64x96xbf16>
  %sums = tensor.empty() : tensor<6x96xbf16>
  %init = tensor.empty() : tensor<2x3x96xbf16>
  %x = tensor.collapse_shape %rows [[0, 1], [2]] : tensor<2x3x64xbf16> into tensor<6x64xbf16>
  %again = tensor.collapse_shape %rows [[0, 1], [2]] : tensor<2x3x64xbf16> into tensor<6x64xbf16>
  %g2 = diffattn.gemm ins(%x, %wg : tensor<6x64xbf16>, tensor<64x96xbf16>) outs(%sums : tensor<6x96xbf16>) -> tensor<6x96xbf16>
  %u2 = diffattn.gemm ins(%again, %wu : tensor<6x64xbf16>, tensor<64x96xbf16>) outs(%sums : tensor<6x96xbf16>) -> tensor<6x96xbf16>
  %g = tensor.expand_shape %g2 [[0, 1], [2]] output_shape [2, 3, 96] : tensor<6x96xbf16> into tensor<2x3x96xbf16>
  %u = tensor.expand_shape %u2 [[0, 1], [2]] output_shape [2, 3, 96] : tensor<6x96xbf16> into tensor<2x3x96xbf16>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%u, %g : tensor<2x3x96xbf16>, tensor<2x3x96xbf16>) outs(%init : tensor<2x3x96xbf16>) {
  ^bb0(%b: bf16, %a: bf16, %o: bf16):
    %0 = arith.negf %a : bf16
    %1 = math.exp %0 : bf16
    %2 = arith.addf %1, %one : bf16
    %3 = arith.divf %one, %2 : bf16
    %4 = arith.mulf %3, %a : bf16
    %5 = arith.mulf %b, %4 : bf16
    linalg.yield %5 : bf16
  } -> tensor<2x3x96xbf16>
  return %y : tensor<2x3x96xbf16>
}

// -----

// The activation in f32 and rounded, as PyTorch computes it; and a result that is as wide as the sums.
#id = affine_map<(i, j) -> (i, j)>
// CHECK-LABEL: func.func @mixed(
// CHECK: diffattn.gated_gemm {{.+}} {rounded = #diffattn.gate_rounding<sums|silu>, transpose_b} -> tensor<4x96xbf16>
// CHECK: diffattn.gated_gemm {{.+}} {rounded = #diffattn.gate_rounding<sigmoid>, transpose_b} -> tensor<4x96xf32>
func.func @mixed(%x: tensor<4x64xbf16>) -> (tensor<4x96xbf16>, tensor<4x96xf32>) {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %narrow = tensor.empty() : tensor<4x96xbf16>
  %wide = tensor.empty() : tensor<4x96xf32>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%narrow : tensor<4x96xbf16>) {transpose_b} -> tensor<4x96xbf16>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%narrow : tensor<4x96xbf16>) {transpose_b} -> tensor<4x96xbf16>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xbf16>, tensor<4x96xbf16>) outs(%narrow : tensor<4x96xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %o: bf16):
    %w = arith.extf %a : bf16 to f32
    %0 = arith.negf %w : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %1, %one : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %3, %w : f32
    %5 = arith.truncf %4 : f32 to bf16
    %6 = arith.mulf %5, %b : bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  %g32 = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%wide : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u32 = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%wide : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %z = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g32, %u32 : tensor<4x96xf32>, tensor<4x96xf32>) outs(%wide : tensor<4x96xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %1, %one : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.truncf %3 : f32 to bf16
    %5 = arith.extf %4 : bf16 to f32
    %6 = arith.mulf %5, %a : f32
    %7 = arith.mulf %6, %b : f32
    linalg.yield %7 : f32
  } -> tensor<4x96xf32>
  return %y, %z : tensor<4x96xbf16>, tensor<4x96xf32>
}
