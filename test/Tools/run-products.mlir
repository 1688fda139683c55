// What looks like a product of matrices and is none, and a reduction of nothing: values against the oracle.
// RUN: diffattn-run %s --no-cache --entry=reduced_broadcast --input=4xf32=1,2,3,4 --input=2x4xf32=1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=batch_reduced --input=3x4xf32=1 --input=4x2xf32=1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=reduced_beside --input=random:3x4xf32 --input=random:4x2xf32 --input=random:3x2xf32 --input=5xf32=0 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=nothing_to_reduce --input=random:2x0xf32 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=diagonals --input=3x3xf32=1 --input=2x3x3xf32=1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=diagonals_in_rows --input=3x4x4xf32=1 --input=4x4x2xf32=1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=square --input=random:3x4xf32 --check=oracle

func.func @reduced_broadcast(%x: tensor<4xf32>, %b: tensor<2x4xf32>) -> tensor<2xf32> {
  %e = tensor.empty() : tensor<3x4xf32>
  %a = linalg.broadcast ins(%x : tensor<4xf32>) outs(%e : tensor<3x4xf32>) dimensions = [0]
  %c0 = arith.constant 0.0 : f32
  %o = tensor.empty() : tensor<2xf32>
  %f = linalg.fill ins(%c0 : f32) outs(%o : tensor<2xf32>) -> tensor<2xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(n, i, k) -> (i, k)>, affine_map<(n, i, k) -> (n, k)>, affine_map<(n, i, k) -> (n)>],
      iterator_types = ["parallel", "reduction", "reduction"]} ins(%a, %b : tensor<3x4xf32>, tensor<2x4xf32>) outs(%f : tensor<2xf32>) {
  ^bb0(%p: f32, %q: f32, %s: f32):
    %m = arith.mulf %p, %q : f32
    %t = arith.addf %s, %m : f32
    linalg.yield %t : f32
  } -> tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func @batch_reduced(%x: tensor<3x4xf32>, %y: tensor<4x2xf32>) -> tensor<3x2xf32> {
  %e = tensor.empty() : tensor<5x3x4xf32>
  %a = linalg.broadcast ins(%x : tensor<3x4xf32>) outs(%e : tensor<5x3x4xf32>) dimensions = [0]
  %g = tensor.empty() : tensor<5x4x2xf32>
  %b = linalg.broadcast ins(%y : tensor<4x2xf32>) outs(%g : tensor<5x4x2xf32>) dimensions = [0]
  %c0 = arith.constant 0.0 : f32
  %o = tensor.empty() : tensor<3x2xf32>
  %f = linalg.fill ins(%c0 : f32) outs(%o : tensor<3x2xf32>) -> tensor<3x2xf32>
  %r = linalg.batch_reduce_matmul ins(%a, %b : tensor<5x3x4xf32>, tensor<5x4x2xf32>) outs(%f : tensor<3x2xf32>) -> tensor<3x2xf32>
  return %r : tensor<3x2xf32>
}
func.func @reduced_beside(%a: tensor<3x4xf32>, %b: tensor<4x2xf32>, %c0: tensor<3x2xf32>, %z: tensor<5xf32>) -> tensor<3x2xf32> {
  %e = tensor.empty() : tensor<5x3x4xf32>
  %aa = linalg.broadcast ins(%a : tensor<3x4xf32>) outs(%e : tensor<5x3x4xf32>) dimensions = [0]
  %r = linalg.generic {indexing_maps = [affine_map<(m, n, k, f) -> (f, m, k)>, affine_map<(m, n, k, f) -> (k, n)>, affine_map<(m, n, k, f) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%aa, %b : tensor<5x3x4xf32>, tensor<4x2xf32>) outs(%c0 : tensor<3x2xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %m = arith.mulf %x, %y : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<3x2xf32>
  return %r : tensor<3x2xf32>
}
func.func @nothing_to_reduce(%a: tensor<2x?xf32>) -> tensor<2xf32> {
  %c = arith.constant 7.0 : f32
  %e = tensor.empty() : tensor<2xf32>
  %i = linalg.fill ins(%c : f32) outs(%e : tensor<2xf32>) -> tensor<2xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%a : tensor<2x?xf32>) outs(%i : tensor<2xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func @diagonals(%a: tensor<3x3xf32>, %b: tensor<2x3x3xf32>) -> tensor<2xf32> {
  %c = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2xf32>
  %i = linalg.fill ins(%c : f32) outs(%e : tensor<2xf32>) -> tensor<2xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(n, k) -> (k, k)>, affine_map<(n, k) -> (n, k, k)>, affine_map<(n, k) -> (n)>], iterator_types = ["parallel", "reduction"]} ins(%a, %b : tensor<3x3xf32>, tensor<2x3x3xf32>) outs(%i : tensor<2xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %m = arith.mulf %x, %y : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func @diagonals_in_rows(%a: tensor<3x4x4xf32>, %b: tensor<4x4x2xf32>) -> tensor<3x2xf32> {
  %c = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x2xf32>
  %i = linalg.fill ins(%c : f32) outs(%e : tensor<3x2xf32>) -> tensor<3x2xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k, k)>, affine_map<(m, n, k) -> (k, k, n)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<3x4x4xf32>, tensor<4x4x2xf32>) outs(%i : tensor<3x2xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %m = arith.mulf %x, %y : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<3x2xf32>
  return %r : tensor<3x2xf32>
}
func.func @square(%a: tensor<3x4xf32>) -> (tensor<3xf32>, tensor<3x3xf32>) {
  %c = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3xf32>
  %i = linalg.fill ins(%c : f32) outs(%e : tensor<3xf32>) -> tensor<3xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m)>], iterator_types = ["parallel", "reduction"]} ins(%a, %a : tensor<3x4xf32>, tensor<3x4xf32>) outs(%i : tensor<3xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %m = arith.mulf %x, %x : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<3xf32>
  %e2 = tensor.empty() : tensor<3x3xf32>
  %i2 = linalg.fill ins(%c : f32) outs(%e2 : tensor<3x3xf32>) -> tensor<3x3xf32>
  %q = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %a : tensor<3x4xf32>, tensor<3x4xf32>) outs(%i2 : tensor<3x3xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %m = arith.mulf %x, %x : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<3x3xf32>
  return %r, %q : tensor<3xf32>, tensor<3x3xf32>
}
