// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-diffattn-alloc-to-runtime)" | FileCheck %s

// CHECK: llvm.func @diffattn_rt_alloc(i64) -> (!llvm.ptr {llvm.noalias})

// CHECK-LABEL: func.func @alloc(
func.func @alloc(%n: index) -> memref<?x2xf32> {
  // CHECK:     llvm.call @diffattn_rt_alloc
  %a = memref.alloc(%n) {alignment = 64 : i64} : memref<?x2xf32>
  // CHECK-NOT: dealloc
  memref.dealloc %a : memref<?x2xf32>
  return %a : memref<?x2xf32>
}
