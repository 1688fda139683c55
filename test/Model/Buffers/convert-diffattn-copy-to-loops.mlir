// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(convert-diffattn-copy-to-loops))" | FileCheck %s

// CHECK-LABEL: func.func @strided(
// CHECK-NOT:     memref.copy
// CHECK:         linalg.generic
func.func @strided(%x: memref<4x4xf32>, %y: memref<4x4xf32, strided<[8, 1]>>) {
  memref.copy %x, %y : memref<4x4xf32> to memref<4x4xf32, strided<[8, 1]>>
  return
}

// A contiguous copy becomes a memcpy with the other memref ops; a copy to itself is none.
// CHECK-LABEL: func.func @contiguous(
// CHECK-COUNT-1: memref.copy
// CHECK-NOT:     memref.copy
func.func @contiguous(%x: memref<4x4xf32>, %y: memref<4x4xf32>) {
  memref.copy %x, %y : memref<4x4xf32> to memref<4x4xf32>
  memref.copy %x, %x : memref<4x4xf32> to memref<4x4xf32>
  return
}
