// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-diffattn-alloc-to-runtime)" | FileCheck %s

// CHECK-DAG: llvm.func @diffattn_rt_alloc(i64) -> (!llvm.ptr {llvm.noalias})
// CHECK-DAG: llvm.func @diffattn_rt_alloc_result(i64) -> (!llvm.ptr {llvm.noalias})

// CHECK-LABEL: func.func @inside(
func.func @inside(%n: index) -> f32 {
  // CHECK:     llvm.call @diffattn_rt_alloc(
  %a = memref.alloc(%n) {alignment = 64 : i64} : memref<?x2xf32>
  %zero = arith.constant 0 : index
  %first = memref.load %a[%zero, %zero] : memref<?x2xf32>
  // CHECK-NOT: dealloc
  memref.dealloc %a : memref<?x2xf32>
  return %first : f32
}

// What a caller may keep.
// CHECK-LABEL: func.func @returned(
func.func @returned(%n: index) -> memref<?x2xf32> {
  // CHECK:     llvm.call @diffattn_rt_alloc_result(
  %a = memref.alloc(%n) {alignment = 64 : i64} : memref<?x2xf32>
  return %a : memref<?x2xf32>
}

// CHECK-LABEL: func.func @returned_view(
func.func @returned_view() -> (memref<4xf32>, memref<4xf32>) {
  // CHECK:     llvm.call @diffattn_rt_alloc_result(
  %a = memref.alloc() : memref<2x2xf32>
  %flat = memref.collapse_shape %a [[0, 1]] : memref<2x2xf32> into memref<4xf32>
  // CHECK:     llvm.call @diffattn_rt_alloc_result(
  %b = memref.alloc() : memref<4xf32>
  return %flat, %b : memref<4xf32>, memref<4xf32>
}

// Nobody outside sees what it returns.
// CHECK-LABEL: func.func private @between(
func.func private @between() -> memref<4xf32> {
  // CHECK:     llvm.call @diffattn_rt_alloc(
  %a = memref.alloc() : memref<4xf32>
  return %a : memref<4xf32>
}
