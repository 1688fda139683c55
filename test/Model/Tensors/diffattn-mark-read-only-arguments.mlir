// RUN: diffattn-opt %s --diffattn-mark-read-only-arguments | FileCheck %s

// CHECK: func.func @forward(%arg0: tensor<4xf32> {bufferization.writable = false}, %arg1: tensor<4xf32> {bufferization.writable = true}, %arg2: index)
func.func @forward(%x: tensor<4xf32>, %cache: tensor<4xf32> {bufferization.writable = true}, %i: index) {
  return
}
// CHECK: func.func private @layer(%arg0: tensor<4xf32>)
func.func private @layer(%x: tensor<4xf32>) {
  return
}
