func.func @f(%q: tensor<4xf32>, %a: f32) -> tensor<4xf32> {
  %0 = linalg.fill < 1 : i32 > ins(%a : f32) outs(%q : tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
