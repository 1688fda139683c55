// RUN: diffattn-opt %s -split-input-file --pass-pipeline="builtin.module(convert-linalg-to-gpu{chip=sm_80},func.func(canonicalize,cse))" | FileCheck %s

// Up to 4 rows have kernels, one for a row alone; no rows at all and more go to the library. A warp reads a row of 1024.
// CHECK-LABEL: llvm.func @diffattn_small_gemm_0
// CHECK-COUNT-8: llvm.load {{.*}} {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xi32>
// CHECK-NOT: llvm.load {{.*}} vector<4xi32>
// CHECK-NOT: nvvm.barrier0
// CHECK-COUNT-5: nvvm.shfl.sync bfly
// CHECK: llvm.store {{.*}} : f32, !llvm.ptr<1>
// CHECK-LABEL: llvm.func @diffattn_small_gemm_1
// CHECK-COUNT-20: llvm.load {{.*}} {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xi32>
// CHECK-NOT: llvm.load {{.*}} vector<4xi32>
// Lanes share four rows out: two sums are given away, then one, and then each part adds its own up.
// CHECK-COUNT-6: nvvm.shfl.sync bfly
// CHECK-NOT: nvvm.shfl.sync
// CHECK-LABEL: func.func @rows
// CHECK: %[[BEFORE:.*]] = arith.subi %[[ROWS:.*]], %c1
// CHECK: %[[FEW:.*]] = arith.cmpi ult, %[[BEFORE]], %c4
// CHECK: %[[FINE:.*]] = arith.andi %[[FEW]], {{.*}} : i1
// CHECK: scf.if %[[FINE]]
// CHECK: arith.cmpi eq, %[[ROWS]], %c1
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_small_gemm_0 blocks in (%c384
// CHECK: else
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_small_gemm_1 blocks in (%c384
// CHECK: else
// CHECK: diffattn.gemm
func.func @rows(%x: memref<?x1024xbf16>, %w: memref<3072x1024xbf16>, %y: memref<?x3072xf32>) {
  diffattn.gemm ins(%x, %w : memref<?x1024xbf16>, memref<3072x1024xbf16>) outs(%y : memref<?x3072xf32>) {transpose_b}
  return
}

// -----

// Longer rows have several warps, whose sums meet in shared memory; what lies behind a row is zeros.
// CHECK: llvm.mlir.global internal @diffattn_partials_f32_8
// CHECK-LABEL: llvm.func @diffattn_small_gemm_0
// CHECK-COUNT-6: llvm.load {{.*}} -> vector<4xi32>
// CHECK: llvm.select {{.*}} : i1, vector<4xi32>
// CHECK: llvm.store {{.*}} : f32, !llvm.ptr<3>
// CHECK-NEXT: llvm.br
// CHECK: nvvm.barrier0
// CHECK-COUNT-4: llvm.load {{.*}} : !llvm.ptr<3> -> f32
// CHECK: llvm.load {{.*}} : !llvm.ptr<1> -> f32
// CHECK: llvm.store {{.*}} : f32, !llvm.ptr<1>
// CHECK-LABEL: func.func @one_row
// CHECK-NOT: diffattn.gemm
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_small_gemm_0 blocks in (%c512
// CHECK-NEXT: return
func.func @one_row(%y: memref<1x1024xf32>) {
  %x = memref.alloc() {alignment = 64 : i64} : memref<1x2944xbf16>
  %w = memref.alloc() {alignment = 64 : i64} : memref<1024x2944xbf16>
  diffattn.gemm ins(%x, %w : memref<1x2944xbf16>, memref<1024x2944xbf16>) outs(%y : memref<1x1024xf32>) {transpose_b, accumulate}
  return
}

// -----

// What 16 bytes do not divide, what lies the other way, and what has too many rows are the library's.
// CHECK-LABEL: func.func @others
// CHECK-NOT: gpu.launch_func
func.func @others(%x: memref<?x1028xbf16>, %w: memref<64x1028xbf16>, %y: memref<?x64xf32>, %v: memref<1024x64xbf16>, %z: memref<?x1024xbf16>,
                  %many: memref<5x1024xbf16>, %u: memref<64x1024xbf16>, %t: memref<5x64xf32>) {
  diffattn.gemm ins(%x, %w : memref<?x1028xbf16>, memref<64x1028xbf16>) outs(%y : memref<?x64xf32>) {transpose_b}
  diffattn.gemm ins(%z, %v : memref<?x1024xbf16>, memref<1024x64xbf16>) outs(%y : memref<?x64xf32>)
  diffattn.gemm ins(%many, %u : memref<5x1024xbf16>, memref<64x1024xbf16>) outs(%t : memref<5x64xf32>) {transpose_b}
  return
}
