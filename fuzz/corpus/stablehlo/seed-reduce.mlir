func.func @main(%x: tensor<2x4xi32>) -> tensor<2xi32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1] : (tensor<2x4xi32>, tensor<i32>) -> tensor<2xi32>
  %1 = call @f(%0) : (tensor<2xi32>) -> tensor<2xi32>
  return %1 : tensor<2xi32>
}
func.func private @f(%x: tensor<2xi32>) -> tensor<2xi32> {
  %0 = stablehlo.abs %x : tensor<2xi32>
  return %0 : tensor<2xi32>
}
