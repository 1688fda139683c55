// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(convert-diffattn-reshape-to-strided))" | FileCheck %s

// Two dynamic sizes in one group: offset and strides of the source are carried over.
// CHECK-LABEL: func.func @rows(
// CHECK-SAME:    %[[X:[^:]+]]: memref<?x64xf32, strided<[?, 1], offset: ?>>, %[[B:[^:]+]]: index, %[[T:[^:]+]]: index
// CHECK:         %[[BASE:.+]], %[[OFFSET:.+]], %{{.+}}:2, %[[STRIDES:.+]]:2 = memref.extract_strided_metadata %[[X]]
// CHECK:         %[[OUTER:.+]] = affine.apply {{.*}}()[%[[STRIDES]]#0, %[[T]]]
// CHECK:         memref.reinterpret_cast %[[BASE]] to offset: [%[[OFFSET]]], sizes: [%[[B]], %[[T]], 64], strides: [%[[OUTER]], %[[STRIDES]]#0, 1]
func.func @rows(%x: memref<?x64xf32, strided<[?, 1], offset: ?>>, %b: index, %t: index)
    -> memref<?x?x64xf32, strided<[?, ?, 1], offset: ?>> {
  %0 = memref.expand_shape %x [[0, 1], [2]] output_shape [%b, %t, 64]
      : memref<?x64xf32, strided<[?, 1], offset: ?>> into memref<?x?x64xf32, strided<[?, ?, 1], offset: ?>>
  return %0 : memref<?x?x64xf32, strided<[?, ?, 1], offset: ?>>
}

// CHECK-LABEL: func.func @leave(
// CHECK:         memref.expand_shape
func.func @leave(%x: memref<?x64xf32>, %b: index) -> memref<?x4x16xf32> {
  %0 = memref.expand_shape %x [[0], [1, 2]] output_shape [%b, 4, 16] : memref<?x64xf32> into memref<?x4x16xf32>
  return %0 : memref<?x4x16xf32>
}
