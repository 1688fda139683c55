// A gated feed-forward as the models' builders write it. Where there are tiles no sum of the gate or of what it gates is
// in memory; elsewhere both are.
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="isa=amx-emulated until=bufferized" | FileCheck %s --check-prefix=FUSED
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="isa=amx until=llvm" | FileCheck %s --check-prefix=CALL
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="isa=avx512bf16 until=bufferized" | FileCheck %s --check-prefix=APART
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="isa=amx batch-invariant=false until=bufferized" | FileCheck %s --check-prefix=APART

// FUSED-LABEL: func.func @feed_forward(
// FUSED-COUNT-1: memref.alloc
// FUSED-NOT:   memref.alloc
// FUSED:       diffattn.gated_gemm ins(%{{.+}}, %{{.+}}, %{{.+}} : {{.+}}) outs(%[[INNER:.+]] : memref<?x96xbf16>) {transpose_b}
// FUSED-NOT:   memref.alloc
// FUSED-NOT:   linalg.generic
// FUSED:       diffattn.gemm ins(%[[INNER]], {{.+}}) outs({{.+}}) {accumulate, transpose_b}
// FUSED:       return
// CALL:        llvm.call @diffattn_rt_gated_gemm
// CALL:        llvm.call @diffattn_rt_gemm
// APART-LABEL: func.func @feed_forward(
// APART-COUNT-3: memref.alloc
// APART-NOT:   diffattn.gated_gemm
// APART:       math.exp
// APART:       return
#m = affine_map<(i, j, k) -> (i, k)>
#t = affine_map<(i, j, k) -> (j, k)>
#o = affine_map<(i, j, k) -> (i, j)>
#id = affine_map<(i, j) -> (i, j)>
ml_program.global private @gate(#ml_program.extern<tensor<96x64xbf16>>) : tensor<96x64xbf16>
ml_program.global private @up(#ml_program.extern<tensor<96x64xbf16>>) : tensor<96x64xbf16>
ml_program.global private @down(#ml_program.extern<tensor<64x96xbf16>>) : tensor<64x96xbf16>
func.func @feed_forward(%x: tensor<?x64xbf16>, %residual: tensor<?x64xf32> {bufferization.writable = true}) -> tensor<?x64xf32> {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %first = arith.constant 0 : index
  %m = tensor.dim %x, %first : tensor<?x64xbf16>
  %wg = ml_program.global_load_const @gate : tensor<96x64xbf16>
  %wu = ml_program.global_load_const @up : tensor<96x64xbf16>
  %wd = ml_program.global_load_const @down : tensor<64x96xbf16>
  %e = tensor.empty(%m) : tensor<?x96xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x96xf32>) -> tensor<?x96xf32>
  %g = linalg.matmul indexing_maps = [#m, #t, #o] ins(%x, %wg : tensor<?x64xbf16>, tensor<96x64xbf16>) outs(%z : tensor<?x96xf32>) -> tensor<?x96xf32>
  %u = linalg.matmul indexing_maps = [#m, #t, #o] ins(%x, %wu : tensor<?x64xbf16>, tensor<96x64xbf16>) outs(%z : tensor<?x96xf32>) -> tensor<?x96xf32>
  %init = tensor.empty(%m) : tensor<?x96xbf16>
  %inner = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<?x96xf32>, tensor<?x96xf32>) outs(%init : tensor<?x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %c: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<?x96xbf16>
  %y = linalg.matmul indexing_maps = [#m, #t, #o] ins(%inner, %wd : tensor<?x96xbf16>, tensor<64x96xbf16>) outs(%residual : tensor<?x64xf32>) -> tensor<?x64xf32>
  return %y : tensor<?x64xf32>
}
