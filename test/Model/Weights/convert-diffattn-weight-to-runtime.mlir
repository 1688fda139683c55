// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-diffattn-weight-to-runtime)" | FileCheck %s

// A slot for each weight; a pattern of layers takes one a layer.

module attributes {diffattn.weights = [#diffattn.weight<name = "a", type = tensor<2xf32>>, #diffattn.weight<name = "b.{}", type = tensor<2xf32>, layers = 3>]} {
// CHECK-DAG: llvm.mlir.global external @diffattn_weights() {{.*}} : !llvm.array<4 x struct<(ptr, ptr, i64, i64, i32, i32)>>

// CHECK-LABEL: func.func @weight(
func.func @weight(%slot: index) -> memref<4x2xf32> {
  // CHECK:     %[[TABLE:.+]] = llvm.mlir.addressof @diffattn_weights
  // CHECK:     %[[SLOT:.+]] = llvm.getelementptr %[[TABLE]]
  // CHECK:     llvm.load %[[SLOT]]
  %w = diffattn.weight %slot : memref<4x2xf32>
  return %w : memref<4x2xf32>
}
}
