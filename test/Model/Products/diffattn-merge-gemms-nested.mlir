// The weights of the module around another one are none of its: its products stay apart. Alone they become one.
// RUN: diffattn-opt %s --diffattn-merge-gemms | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(builtin.module(diffattn-merge-gemms))" | FileCheck %s --check-prefix=ALONE

// CHECK:     module attributes {diffattn.weights = [#diffattn.weight<name = "q", type = tensor<64x32xbf16>>, #diffattn.weight<name = "k", type = tensor<16x32xbf16>>]}
// CHECK:     module @inner attributes {diffattn.weights = [#diffattn.weight<name = "a", type = tensor<64x32xbf16>>, #diffattn.weight<name = "b", type = tensor<16x32xbf16>>]}
// CHECK-COUNT-2: diffattn.gemm
// ALONE:     follows = "a"
// ALONE:     diffattn.gemm {{.+}} tensor<80x32xbf16>
// ALONE-NOT: diffattn.gemm
module attributes {diffattn.weights = [#diffattn.weight<name = "q", type = tensor<64x32xbf16>>, #diffattn.weight<name = "k", type = tensor<16x32xbf16>>]} {
  module @inner attributes {diffattn.weights = [#diffattn.weight<name = "a", type = tensor<64x32xbf16>>, #diffattn.weight<name = "b", type = tensor<16x32xbf16>>]} {
    func.func @f(%x: tensor<4x32xbf16>) -> (tensor<4x64xf32>, tensor<4x16xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %ma = diffattn.weight %c0 : memref<64x32xbf16>
      %a = bufferization.to_tensor %ma restrict : memref<64x32xbf16> to tensor<64x32xbf16>
      %ea = tensor.empty() : tensor<4x64xf32>
      %ra = diffattn.gemm ins(%x, %a : tensor<4x32xbf16>, tensor<64x32xbf16>) outs(%ea : tensor<4x64xf32>) {transpose_b} -> tensor<4x64xf32>
      %mb = diffattn.weight %c1 : memref<16x32xbf16>
      %b = bufferization.to_tensor %mb restrict : memref<16x32xbf16> to tensor<16x32xbf16>
      %eb = tensor.empty() : tensor<4x16xf32>
      %rb = diffattn.gemm ins(%x, %b : tensor<4x32xbf16>, tensor<16x32xbf16>) outs(%eb : tensor<4x16xf32>) {transpose_b} -> tensor<4x16xf32>
      return %ra, %rb : tensor<4x64xf32>, tensor<4x16xf32>
    }
  }
}
