// RUN: diffattn-opt %s --diffattn-decompose=all | FileCheck %s
// RUN: diffattn-opt %s --diffattn-decompose | FileCheck %s --check-prefix=KEPT
// RUN: not diffattn-opt %s --diffattn-select-gpu-schedule="chip=sm_80" 2>&1 | FileCheck %s --check-prefix=GPU
// GPU: error: 'diffattn.quantized_gemm' op expected a CPU as the target, but got a GPU, for which no kernel multiplies with quantized weights

// The integers are read by their places in bytes, and the scales by their groups.
// CHECK-DAG: #[[$BYTES:.+]] = affine_map<(d0, d1) -> (d0, d1 floordiv 2)>
// CHECK-DAG: #[[$GROUPS:.+]] = affine_map<(d0, d1) -> (d0, d1 floordiv 32)>
// CHECK-LABEL: func.func @int4(
// CHECK-NOT:   diffattn.quantized_gemm
// CHECK:       linalg.generic {indexing_maps = [#[[$BYTES]], #[[$GROUPS]],
// CHECK:         arith.shrsi
// CHECK:         arith.sitofp %{{.+}} : i8 to f32
// CHECK:       linalg.generic {{.*}}"reduction"
// CHECK:       arith.truncf
// KEPT-LABEL:  func.func @int4(
// KEPT:        diffattn.quantized_gemm
func.func @int4(%x: tensor<?x64xbf16>, %w: tensor<96x32xi8>, %s: tensor<96x2xf32>, %y: tensor<?x96xbf16>) -> tensor<?x96xbf16> {
  %0 = diffattn.quantized_gemm ins(%x, %w, %s : tensor<?x64xbf16>, tensor<96x32xi8>, tensor<96x2xf32>) outs(%y : tensor<?x96xbf16>)
    {bits = 4 : i64, accumulate} -> tensor<?x96xbf16>
  return %0 : tensor<?x96xbf16>
}
