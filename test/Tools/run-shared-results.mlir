// What bufferization upstream would give one buffer, and what an interpreter would forget: values against the oracle.
// RUN: diffattn-run %s --no-cache --entry=call --input=4xf32=1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=loop --input=4xf32=0.1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=swap --input=4xf32=0.1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=switch --input=4xf32=0.1 --input=i32=1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=added --input=3xf32=1 --input=3xf32=10 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=rows --input=9x1x1xf32=0,1,2,3,4,5,6,7,8 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=logarithms --input=7xf32=1e-40,0,1e-45,-1e-40,1.1754944e-38,2.5,-0.0 --check=oracle | FileCheck %s
// CHECK: result 0: {{.*}}[-92.1034, -inf, -103.279, nan, -87.3365, 0.916291, -inf]

func.func private @twice(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %y = math.absf %x : tensor<4xf32>
  return %y, %y : tensor<4xf32>, tensor<4xf32>
}
func.func private @first_is_nine(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %c0 = arith.constant 0 : index
  %nine = arith.constant 9.0 : f32
  %w = tensor.insert %nine into %a[%c0] : tensor<4xf32>
  return %w, %b : tensor<4xf32>, tensor<4xf32>
}
func.func @call(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %r:2 = call @twice(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %w:2 = call @first_is_nine(%r#0, %r#1) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %w#0, %w#1 : tensor<4xf32>, tensor<4xf32>
}
func.func @loop(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %y = math.absf %x : tensor<4xf32>
  %r:2 = scf.for %i = %c0 to %c3 step %c1 iter_args(%p = %x, %q = %y) -> (tensor<4xf32>, tensor<4xf32>) {
    %z = math.exp %p : tensor<4xf32>
    scf.yield %z, %z : tensor<4xf32>, tensor<4xf32>
  }
  %w:2 = call @first_is_nine(%r#0, %r#1) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %w#0, %w#1 : tensor<4xf32>, tensor<4xf32>
}
func.func @swap(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %y = math.exp %x : tensor<4xf32>
  %r:2 = scf.for %i = %c0 to %c3 step %c1 iter_args(%p = %x, %q = %y) -> (tensor<4xf32>, tensor<4xf32>) {
    scf.yield %q, %p : tensor<4xf32>, tensor<4xf32>
  }
  return %r#0, %r#1 : tensor<4xf32>, tensor<4xf32>
}
func.func @switch(%x: tensor<4xf32>, %b: i32) -> (tensor<4xf32>, tensor<4xf32>) {
  %k = arith.index_cast %b : i32 to index
  %r:2 = scf.index_switch %k -> tensor<4xf32>, tensor<4xf32>
  case 0 {
    %s = math.sqrt %x : tensor<4xf32>
    scf.yield %x, %s : tensor<4xf32>, tensor<4xf32>
  }
  default {
    %z = math.exp %x : tensor<4xf32>
    scf.yield %z, %z : tensor<4xf32>, tensor<4xf32>
  }
  %w:2 = call @first_is_nine(%r#0, %r#1) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %w#0, %w#1 : tensor<4xf32>, tensor<4xf32>
}
func.func @added(%x: tensor<3xf32>, %acc: tensor<3xf32>) -> (tensor<2x3xf32>, tensor<f32>) {
  %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%x : tensor<3xf32>) outs(%acc : tensor<3xf32>) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<3xf32>
  %e = tensor.empty() : tensor<2x3xf32>
  %r = linalg.broadcast ins(%y : tensor<3xf32>) outs(%e : tensor<2x3xf32>) dimensions = [0]
  %zero = arith.constant dense<0.0> : tensor<f32>
  %sum = linalg.reduce {arith.addf} ins(%r : tensor<2x3xf32>) outs(%zero : tensor<f32>) dimensions = [0, 1]
  return %r, %sum : tensor<2x3xf32>, tensor<f32>
}
func.func @rows(%a: tensor<9x1x1xf32>) -> tensor<4x1xf32> {
  %s = tensor.extract_slice %a[2, 0, 0] [4, 1, 1] [2, 1, 1] : tensor<9x1x1xf32> to tensor<4x1xf32>
  %r = math.exp %s : tensor<4x1xf32>
  return %r : tensor<4x1xf32>
}
func.func @logarithms(%x: tensor<7xf32>) -> (tensor<7xf32>, tensor<7xf32>) {
  %y = math.log %x : tensor<7xf32>
  %z = math.log2 %x : tensor<7xf32>
  return %y, %z : tensor<7xf32>, tensor<7xf32>
}
