// RUN: diffattn-opt %s --split-input-file --convert-diffattn-gemm-to-runtime="threads=3 isa=amx" | FileCheck %s --check-prefixes=CHECK,TILES
// RUN: diffattn-opt %s --split-input-file --convert-diffattn-gemm-to-runtime="threads=3 isa=amx-emulated" | FileCheck %s --check-prefixes=CHECK,EMULATED
// RUN: not diffattn-opt %s --split-input-file --convert-diffattn-gemm-to-runtime="isa=avx512bf16" 2>&1 | FileCheck %s --check-prefix=WITHOUT
// RUN: not diffattn-opt %s --split-input-file --convert-diffattn-gemm-to-runtime="device" 2>&1 | FileCheck %s --check-prefix=WITHOUT
// WITHOUT: 'diffattn.gated_gemm' op expected operands of bf16 and a CPU with tiles; diffattn-decompose makes products of it for others

module attributes {diffattn.weights = [#diffattn.weight<name = "g.{}", type = tensor<96x64xbf16>, layers = 2>,
                                       #diffattn.weight<name = "u.{}", type = tensor<96x64xbf16>, layers = 2>]} {
// Each weight's slot goes along.
// CHECK-LABEL: func.func @weights(
func.func @weights(%x: memref<?x64xbf16>, %y: memref<?x96xbf16>, %gate: index, %up: index) {
  // CHECK-NOT: scf.if
  // CHECK-DAG: %[[BF16:.+]] = arith.constant 2 : i32
  // Transposed (1), by tiles (8) or as they would (16).
  // TILES-DAG: %[[FLAGS:.+]] = arith.constant 9 : i32
  // EMULATED-DAG: %[[FLAGS:.+]] = arith.constant 17 : i32
  // The sums (1), and silu (16).
  // CHECK-DAG: %[[ROUNDING:.+]] = arith.constant 17 : i32
  // CHECK: %[[GATE:.+]] = llvm.getelementptr
  // CHECK: %[[UP:.+]] = llvm.getelementptr
  // CHECK: %[[THREADS:.+]] = arith.constant 3 : i64
  // CHECK: llvm.call @diffattn_rt_gated_gemm(%[[BF16]], {{.*}}, %[[FLAGS]], %[[ROUNDING]], %{{[^,]+}}, %{{[^,]+}}, %[[GATE]], %[[UP]], %[[THREADS]])
  %g = diffattn.weight %gate : memref<96x64xbf16>
  %u = diffattn.weight %up : memref<96x64xbf16>
  diffattn.gated_gemm ins(%x, %g, %u : memref<?x64xbf16>, memref<96x64xbf16>, memref<96x64xbf16>) outs(%y : memref<?x96xbf16>)
    {rounded = #diffattn.gate_rounding<sums|silu>, transpose_b}
  return
}

// A constant and an argument; columns of a result that do not lie side by side are copied to it.
// CHECK-LABEL: func.func @others(
// CHECK:         %[[COPY:.+]] = memref.alloc() {{.*}} : memref<9x6xf32>
// TILES:         %[[FLAGS:.+]] = arith.constant 8 : i32
// EMULATED:      %[[FLAGS:.+]] = arith.constant 16 : i32
// CHECK:         %[[GATE:.+]] = llvm.mlir.addressof @diffattn_slot_of_kernel
// CHECK:         %[[NONE:.+]] = llvm.mlir.zero : !llvm.ptr
// CHECK:         llvm.call @diffattn_rt_gated_gemm({{.*}}, %[[FLAGS]], {{.*}}, %[[GATE]], %[[NONE]], %{{[^,]+}})
// CHECK:         memref.copy %[[COPY]]
memref.global "private" constant @kernel : memref<8x6xbf16> = dense<1.0>
func.func @others(%x: memref<9x8xbf16>, %u: memref<8x6xbf16>, %y: memref<9x6xf32, strided<[12, 2]>>) {
  %g = memref.get_global @kernel : memref<8x6xbf16>
  diffattn.gated_gemm ins(%x, %g, %u : memref<9x8xbf16>, memref<8x6xbf16>, memref<8x6xbf16>) outs(%y : memref<9x6xf32, strided<[12, 2]>>)
  return
}

// A weight whose rows do not lie side by side is copied, and no longer the one that is packed.
// CHECK-LABEL: func.func @turned(
// CHECK:         memref.copy
// CHECK-COUNT-1: llvm.getelementptr
// CHECK-NOT:     llvm.getelementptr
// CHECK:         llvm.mlir.zero : !llvm.ptr
// CHECK:         llvm.call @diffattn_rt_gated_gemm
func.func @turned(%x: memref<9x64xbf16>, %y: memref<9x64xbf16>, %slot: index) {
  %w = diffattn.weight %slot : memref<64x64xbf16>
  %t = memref.transpose %w (i, j) -> (j, i) : memref<64x64xbf16> to memref<64x64xbf16, strided<[1, 64]>>
  diffattn.gated_gemm ins(%x, %w, %t : memref<9x64xbf16>, memref<64x64xbf16>, memref<64x64xbf16, strided<[1, 64]>>) outs(%y : memref<9x64xbf16>)
  return
}
}
