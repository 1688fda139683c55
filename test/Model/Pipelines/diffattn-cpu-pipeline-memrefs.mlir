// Functions on buffers of any strides, as callers with arrays of their own want them.
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="until=loops" | FileCheck %s
// RUN: diffattn-opt %s --diffattn-cpu-pipeline -o /dev/null

// No copy of an operand is made: the kernel and the product get the strides.
// CHECK-LABEL: func.func @attend(
// CHECK-NOT:   memref.alloc
// CHECK-NOT:   memref.copy
// CHECK:       diffattn_rt_parallel_for
// CHECK-NOT:   memref.copy
// CHECK:       return
!t = memref<?x2x?x16xf32, strided<[?, ?, ?, ?], offset: ?>>
func.func @attend(%q1: !t, %k1: !t, %q2: !t, %k2: !t, %v: !t, %l: memref<f32>, %o: !t) {
  diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !t, !t, !t, !t, !t) lambda(%l : memref<f32>)
    outs(%o : !t) {scale = 0.25 : f32, is_causal}
  return
}

// CHECK-LABEL: func.func @product(
// CHECK-NOT:   memref.alloc
// CHECK:       llvm.call @diffattn_rt_gemm
func.func @product(%a: memref<?x?xf32, strided<[?, 1], offset: ?>>, %b: memref<?x?xf32, strided<[1, ?], offset: ?>>,
                   %c: memref<?x?xf32, strided<[?, 1], offset: ?>>) {
  linalg.matmul ins(%a, %b : memref<?x?xf32, strided<[?, 1], offset: ?>>, memref<?x?xf32, strided<[1, ?], offset: ?>>)
    outs(%c : memref<?x?xf32, strided<[?, 1], offset: ?>>)
  return
}

// What upstream's deallocation of buffers writes. (Memory goes back when the call ends.)
// CHECK-LABEL: func.func @deallocated(
func.func @deallocated(%a: memref<?xf32>, %i: index) -> f32 {
  %true = arith.constant true
  %copy = bufferization.clone %a : memref<?xf32> to memref<?xf32>
  %r = memref.load %copy[%i] : memref<?xf32>
  bufferization.dealloc (%copy : memref<?xf32>) if (%true)
  return %r : f32
}
