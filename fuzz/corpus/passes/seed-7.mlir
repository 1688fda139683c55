diffattn-merge-gemms
ml_program.global private @w(#ml_program.extern<tensor<3x4xf32>>) : tensor<3x4xf32> {diffattn.source = "x"}
func.func @forward(%x: tensor<?x4xf32>) -> tensor<?x3xf32> {
  %c0 = arith.constant 0 : index
  %z = arith.constant 0.0 : f32
  %w = ml_program.global_load_const @w : tensor<3x4xf32>
  %n = tensor.dim %x, %c0 : tensor<?x4xf32>
  %e = tensor.empty(%n) : tensor<?x3xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x3xf32>) -> tensor<?x3xf32>
  %m = linalg.matmul indexing_maps=[affine_map<(m,n,k)->(m,k)>, affine_map<(m,n,k)->(n,k)>, affine_map<(m,n,k)->(m,n)>]
         ins(%x, %w : tensor<?x4xf32>, tensor<3x4xf32>) outs(%f : tensor<?x3xf32>) -> tensor<?x3xf32>
  return %m : tensor<?x3xf32>
}
