// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(convert-diffattn-subview-to-strided))" | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(convert-diffattn-subview-to-strided,fold-memref-alias-ops,expand-strided-metadata))" -o /dev/null

// Every second row, without one of the axes of 1.
// CHECK-LABEL: func.func @rows(
// CHECK-SAME:    %[[X:[^:]+]]: memref<9x1x1xf32>
// CHECK:         %[[BASE:.+]], %{{.+}}, %{{.+}}:3, %{{.+}}:3 = memref.extract_strided_metadata %[[X]]
// CHECK:         memref.reinterpret_cast %[[BASE]] to offset: [2], sizes: [4, 1], strides: [2, 1]
func.func @rows(%x: memref<9x1x1xf32>) -> memref<4x1xf32, strided<[2, 1], offset: 2>> {
  %0 = memref.subview %x[2, 0, 0] [4, 1, 1] [2, 1, 1] : memref<9x1x1xf32> to memref<4x1xf32, strided<[2, 1], offset: 2>>
  return %0 : memref<4x1xf32, strided<[2, 1], offset: 2>>
}

// The first axis of 1 stays, the second is left out; offset, size and step are known when it runs.
// CHECK-LABEL: func.func @dynamic(
// CHECK-SAME:    %[[X:[^:]+]]: memref<1x1x?x8xf32>, %[[AT:[^:]+]]: index, %[[N:[^:]+]]: index, %[[STEP:[^:]+]]: index
// CHECK:         %[[BASE:.+]], %{{.+}}, %{{.+}}:4, %{{.+}}:4 = memref.extract_strided_metadata %[[X]]
// CHECK-DAG:     %[[OFFSET:.+]] = affine.apply {{.*}}()[%[[AT]]]
// CHECK-DAG:     %[[STRIDE:.+]] = affine.apply {{.*}}()[%[[STEP]]]
// CHECK:         memref.reinterpret_cast %[[BASE]] to offset: [%[[OFFSET]]], sizes: [1, %[[N]], 8], strides: [%{{.+}}, %[[STRIDE]], 1]
func.func @dynamic(%x: memref<1x1x?x8xf32>, %at: index, %n: index, %step: index) -> memref<1x?x8xf32, strided<[?, ?, 1], offset: ?>> {
  %0 = memref.subview %x[0, 0, %at, 0] [1, 1, %n, 8] [1, 1, %step, 1] : memref<1x1x?x8xf32> to memref<1x?x8xf32, strided<[?, ?, 1], offset: ?>>
  return %0 : memref<1x?x8xf32, strided<[?, ?, 1], offset: ?>>
}

// CHECK-LABEL: func.func @leave(
// CHECK-COUNT-2: memref.subview
func.func @leave(%x: memref<9x1x4xf32>) -> (memref<4x4xf32, strided<[8, 1]>>, memref<4x1xf32, strided<[4, 4]>>) {
  %0 = memref.subview %x[0, 0, 0] [4, 1, 4] [2, 1, 1] : memref<9x1x4xf32> to memref<4x4xf32, strided<[8, 1]>>
  %1 = memref.subview %x[0, 0, 0] [4, 1, 1] [1, 1, 1] : memref<9x1x4xf32> to memref<4x1xf32, strided<[4, 4]>>
  return %0, %1 : memref<4x4xf32, strided<[8, 1]>>, memref<4x1xf32, strided<[4, 4]>>
}
