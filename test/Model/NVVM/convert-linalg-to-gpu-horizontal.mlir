// RUN: diffattn-opt %s -split-input-file --pass-pipeline="builtin.module(convert-linalg-to-gpu{chip=sm_80},func.func(canonicalize,cse))" | FileCheck %s

#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>

// Neither reads what the other one writes: one launch with the blocks of both. The row reduction has a warp a row, in blocks of 128.
// CHECK-LABEL: llvm.func @diffattn_horizontal_0(
// CHECK-SAME: %[[FIRST:.*]]: i32, {{.*}}, %[[SECOND:.*]]: i32
// CHECK: %[[BLOCK:.*]] = nvvm.read.ptx.sreg.ctaid.x
// CHECK: llvm.icmp "ult" %[[BLOCK]], %[[FIRST]]
// CHECK-NOT: sreg.ctaid
// CHECK: nvvm.shfl.sync
// CHECK-LABEL: func.func @independent
// CHECK: %[[SUM:.*]] = arith.addi %[[BLOCKS:.*]], %c2 : index
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_horizontal_0 blocks in (%[[SUM]],
// CHECK-NOT: gpu.launch_func
func.func @independent(%n: index) -> (memref<?x64xf32>, memref<?xf32>) {
  %x = memref.alloc(%n) {alignment = 64 : i64} : memref<?x64xf32>
  %y = memref.alloc(%n) {alignment = 64 : i64} : memref<?x64xf32>
  %s = memref.alloc(%n) {alignment = 64 : i64} : memref<?xf32>
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : memref<?x64xf32>) outs(%y : memref<?x64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.negf %a : f32
    linalg.yield %b : f32
  }
  %other = memref.alloc() {alignment = 64 : i64} : memref<7x64xf32>
  %t = memref.alloc() {alignment = 64 : i64} : memref<7xf32>
  linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%other : memref<7x64xf32>) outs(%t : memref<7xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  }
  %c = memref.cast %t : memref<7xf32> to memref<?xf32>
  return %y, %c : memref<?x64xf32>, memref<?xf32>
}

// -----

// Each reads what the one before it wrote, or stands behind a product: launches in order.
// CHECK-LABEL: func.func @in_order
// CHECK-COUNT-3: gpu.launch_func @diffattn_kernels::@diffattn_elementwise
// CHECK: diffattn.gemm
// CHECK: gpu.launch_func @diffattn_kernels::@diffattn_elementwise
// CHECK-NOT: gpu.launch_func
func.func @in_order(%x: memref<8x8xf32>, %p: memref<8x8xf64>, %q: memref<8x8xf64>) -> memref<8x8xf32> {
  %y = memref.alloc() {alignment = 64 : i64} : memref<8x8xf32>
  %z = memref.alloc() {alignment = 64 : i64} : memref<8x8xf32>
  memref.copy %x, %y : memref<8x8xf32> to memref<8x8xf32>
  linalg.transpose ins(%y : memref<8x8xf32>) outs(%z : memref<8x8xf32>) permutation = [1, 0]
  linalg.transpose ins(%z : memref<8x8xf32>) outs(%y : memref<8x8xf32>) permutation = [1, 0]
  diffattn.gemm ins(%p, %p : memref<8x8xf64>, memref<8x8xf64>) outs(%q : memref<8x8xf64>)
  memref.copy %y, %z : memref<8x8xf32> to memref<8x8xf32>
  return %z : memref<8x8xf32>
}

// -----

// Where an address must be asked about, all are, and else each chooses by itself.
// CHECK-LABEL: func.func @asked
// CHECK: %[[BOTH:.*]] = arith.andi %{{.*}}, %{{.*}} : i1
// CHECK: scf.if %[[BOTH]]
// CHECK-NEXT: gpu.launch_func @diffattn_kernels::@diffattn_horizontal_0
// CHECK: else
// CHECK: scf.if
// CHECK: diffattn_elementwise
// CHECK: diffattn_elementwise
// CHECK: scf.if
// CHECK: diffattn_elementwise
// CHECK: diffattn_elementwise
func.func @asked(%x: memref<?xf32>, %k: memref<?xi32>) -> (memref<?xf32>, memref<?xi32>) {
  %c0 = arith.constant 0 : index
  %n = memref.dim %x, %c0 : memref<?xf32>
  %m = memref.dim %k, %c0 : memref<?xi32>
  %y = memref.alloc(%n) {alignment = 64 : i64} : memref<?xf32>
  %l = memref.alloc(%m) {alignment = 64 : i64} : memref<?xi32>
  memref.copy %x, %y : memref<?xf32> to memref<?xf32>
  memref.copy %k, %l : memref<?xi32> to memref<?xi32>
  return %y, %l : memref<?xf32>, memref<?xi32>
}

// -----

// Threads of a warp's kernel in blocks of a larger one: the others leave it. A kernel with a barrier needs all of a block.
// CHECK-LABEL: llvm.func @diffattn_horizontal_0(
// CHECK-SAME: nvvm.reqntid = array<i32: 256, 1, 1>
// CHECK: nvvm.barrier0
// CHECK: llvm.icmp "ult" %{{.*}}, %{{.*}} : i32
// CHECK-LABEL: func.func @blocks
// CHECK: diffattn_horizontal_0
// CHECK: diffattn_row_reduction
// CHECK-NOT: gpu.launch_func
func.func @blocks(%n: index) -> (memref<?xf32>, memref<f32>, memref<?xf32>) {
  %x = memref.alloc(%n) {alignment = 64 : i64} : memref<?x2048xf32>
  %y = memref.alloc() {alignment = 64 : i64} : memref<32xf32>
  %z = memref.alloc(%n) {alignment = 64 : i64} : memref<?x512xf32>
  %s = memref.alloc(%n) {alignment = 64 : i64} : memref<?xf32>
  %t = memref.alloc() {alignment = 64 : i64} : memref<f32>
  %u = memref.alloc(%n) {alignment = 64 : i64} : memref<?xf32>
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : memref<?x2048xf32>) outs(%s : memref<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  }
  linalg.generic {indexing_maps = [affine_map<(j) -> (j)>, affine_map<(j) -> ()>], iterator_types = ["reduction"]}
      ins(%y : memref<32xf32>) outs(%t : memref<f32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  }
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
      ins(%z : memref<?x512xf32>) outs(%u : memref<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  }
  return %s, %t, %u : memref<?xf32>, memref<f32>, memref<?xf32>
}

// -----

// The only condition is known not to hold where the launches are apart: what reads 16 bytes at a time is part of the joined kernel alone.
// CHECK-NOT: llvm.func @diffattn_elementwise_0(
// CHECK-LABEL: llvm.func @diffattn_horizontal_0(
// CHECK-LABEL: func.func @asked_of_one
// CHECK: scf.if
// CHECK-NEXT: gpu.launch_func @diffattn_kernels::@diffattn_horizontal_0
// CHECK-NEXT: else
// CHECK-NOT: scf.if
// CHECK-COUNT-2: gpu.launch_func @diffattn_kernels::@diffattn_elementwise
func.func @asked_of_one(%x: memref<8xf32>) -> (memref<8xf32>, memref<8xi32>) {
  %k = memref.alloc() {alignment = 64 : i64} : memref<8xi32>
  %y = memref.alloc() {alignment = 64 : i64} : memref<8xf32>
  %l = memref.alloc() {alignment = 64 : i64} : memref<8xi32>
  memref.copy %x, %y : memref<8xf32> to memref<8xf32>
  memref.copy %k, %l : memref<8xi32> to memref<8xi32>
  return %y, %l : memref<8xf32>, memref<8xi32>
}
