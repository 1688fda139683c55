// What bufferization upstream would give one buffer, and what an interpreter would forget: values against the oracle.
// RUN: diffattn-run %s --no-cache --entry=call --input=4xf32=1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=loop --input=4xf32=0.1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=swap --input=4xf32=0.1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=switch --input=4xf32=0.1 --input=i32=1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=switch_of_values --input=4xf32=1 --input=4xf32=2 --input=i32=0 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=switch_of_arguments --input=4xf32=1 --input=4xf32=2 --input=i32=1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=called_choice --input=4xf32=-1 --input=i1=1 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=selection --input=4xi64=1 --input=4xi64=2 --input=i1=1 --check=oracle
// RUN: not diffattn-run %s --no-cache --entry=selection --input=4xi64=1 --input=5xi64=2 --input=i1=1 2>&1 | FileCheck %s --check-prefix=SIZES
// SIZES: argument 1 of 'selection': expected size 4 on axis 0, as on axis 0 of argument 0, but got 5
// RUN: diffattn-run %s --no-cache --entry=every_second --input=4xf32=1,2,3,4 --input=2xf32=10,20 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=from_outside --input=4xi32=1,2,3,4 --input=4xi32=10,20,30,40 --input=4xi32=5 --check=oracle
// RUN: diffattn-run %s --no-cache --entry=near_one --input=12xf64=1e-10,1e-17,-1,-2,1000,-1000,inf,nan,0,-0.0,-1e-9,0.5 --check=oracle | FileCheck %s --check-prefix=NEAR
// NEAR: result 0: {{.*}}[1e-10, 1e-17, -0.632121, -0.864665, inf, -1, inf, nan, ...]
// NEAR: result 1: {{.*}}[1e-10, 1e-17, -inf, {{-?}}nan, 6.90875, {{-?}}nan, inf, nan, ...]
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
func.func @switch_of_values(%a: tensor<4xf32>, %b: tensor<4xf32>, %n: i32) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %k = arith.index_cast %n : i32 to index
  %p = math.exp %a : tensor<4xf32>
  %q = math.exp %b : tensor<4xf32>
  %r = scf.index_switch %k -> tensor<4xf32>
  case 0 {
    scf.yield %p : tensor<4xf32>
  }
  default {
    scf.yield %q : tensor<4xf32>
  }
  %w:2 = call @first_is_nine(%r, %q) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %w#0, %p, %w#1 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
func.func @switch_of_arguments(%a: tensor<4xf32>, %b: tensor<4xf32>, %n: i32) -> (tensor<4xf32>, tensor<4xf32>) {
  %k = arith.index_cast %n : i32 to index
  %r = scf.index_switch %k -> tensor<4xf32>
  case 0 {
    scf.yield %a : tensor<4xf32>
  }
  default {
    scf.yield %b : tensor<4xf32>
  }
  %w:2 = call @first_is_nine(%r, %b) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %w#0, %w#1 : tensor<4xf32>, tensor<4xf32>
}
func.func private @one_of(%x: tensor<4xf32>, %y: tensor<4xf32>, %b: i1) -> (tensor<4xf32>, tensor<4xf32>) {
  %i = scf.if %b -> tensor<4xf32> {
    scf.yield %x : tensor<4xf32>
  } else {
    scf.yield %y : tensor<4xf32>
  }
  return %x, %i : tensor<4xf32>, tensor<4xf32>
}
func.func @called_choice(%x0: tensor<4xf32>, %b: i1) -> (tensor<4xf32>, tensor<4xf32>) {
  %x = arith.addf %x0, %x0 : tensor<4xf32>
  %y = arith.negf %x0 : tensor<4xf32>
  %r:2 = call @one_of(%x, %y, %b) : (tensor<4xf32>, tensor<4xf32>, i1) -> (tensor<4xf32>, tensor<4xf32>)
  %w:2 = call @first_is_nine(%r#0, %r#1) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %w#0, %w#1 : tensor<4xf32>, tensor<4xf32>
}
func.func @selection(%a: tensor<?xi64>, %b: tensor<?xi64>, %k: i1) -> tensor<?xi64> {
  %r = arith.select %k, %a, %b : tensor<?xi64>
  return %r : tensor<?xi64>
}
func.func @every_second(%y: tensor<?xf32>, %z: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %dy = tensor.dim %y, %c0 : tensor<?xf32>
  %dz = tensor.dim %z, %c0 : tensor<?xf32>
  %long = tensor.empty(%dy) : tensor<?xf32>
  %p = linalg.generic {indexing_maps = [affine_map<(i) -> (i floordiv 2)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%y : tensor<?xf32>) outs(%long : tensor<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %n = arith.negf %a : f32
    linalg.yield %n : f32
  } -> tensor<?xf32>
  %short = tensor.empty(%dz) : tensor<?xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i * 2)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%p, %z : tensor<?xf32>, tensor<?xf32>) outs(%short : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @from_outside(%a: tensor<4xi32>, %b: tensor<4xi32>, %c: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>) {
  %true = arith.constant true
  %false = arith.constant false
  %c0 = arith.constant 0 : index
  %n = arith.constant 9 : i32
  %r:2 = scf.while (%go = %true, %x = %c) : (i1, tensor<4xi32>) -> (tensor<4xi32>, i1) {
    %w = tensor.insert %n into %x[%c0] : tensor<4xi32>
    scf.condition(%go) %w, %go : tensor<4xi32>, i1
  } do {
  ^bb0(%y: tensor<4xi32>, %g: i1):
    scf.yield %false, %b : i1, tensor<4xi32>
  }
  return %b, %r#0 : tensor<4xi32>, tensor<4xi32>
}
func.func @near_one(%x: tensor<12xf64>) -> (tensor<12xf64>, tensor<12xf64>) {
  %a = math.expm1 %x : tensor<12xf64>
  %b = math.log1p %x : tensor<12xf64>
  return %a, %b : tensor<12xf64>, tensor<12xf64>
}
