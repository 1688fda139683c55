// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-elementwise))" | FileCheck %s
#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>

// A chain becomes one loop, and what is filled becomes a scalar.
// CHECK-LABEL: func.func @chain(
// CHECK:         linalg.generic
// CHECK:           math.exp
// CHECK:           arith.mulf
// CHECK-NOT:     linalg.generic
func.func @chain(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %two = arith.constant 2.0 : f32
  %e = tensor.empty() : tensor<4x8xf32>
  %f = linalg.fill ins(%two : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
  %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%p: f32, %o: f32):
    %v = math.exp %p : f32
    linalg.yield %v : f32
  } -> tensor<4x8xf32>
  %b = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]} ins(%a, %f : tensor<4x8xf32>, tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %v = arith.mulf %p, %q : f32
    linalg.yield %v : f32
  } -> tensor<4x8xf32>
  return %b : tensor<4x8xf32>
}

// A root for each row is not computed again for each element.
// CHECK-LABEL: func.func @broadcast_root(
// CHECK:         linalg.generic
// CHECK:           math.rsqrt
// CHECK:         linalg.generic
// CHECK:           arith.mulf
func.func @broadcast_root(%x: tensor<4x8xf32>, %s: tensor<4xf32>) -> tensor<4x8xf32> {
  %e0 = tensor.empty() : tensor<4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%s : tensor<4xf32>) outs(%e0 : tensor<4xf32>) {
  ^bb0(%p: f32, %o: f32):
    %v = math.rsqrt %p : f32
    linalg.yield %v : f32
  } -> tensor<4xf32>
  %e = tensor.empty() : tensor<4x8xf32>
  %b = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]} ins(%x, %r : tensor<4x8xf32>, tensor<4xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %v = arith.mulf %p, %q : f32
    linalg.yield %v : f32
  } -> tensor<4x8xf32>
  return %b : tensor<4x8xf32>
}

// A value with two readers is computed once; a destination that is a slice of a cache stays that.
// CHECK-LABEL: func.func @keep(
// CHECK-SAME:    %{{.+}}: tensor<4x8xf32>, %[[CACHE:[^:]+]]: tensor<2x4x8xf32>
// CHECK:         linalg.generic
// CHECK:           math.exp
// CHECK:         %[[PART:.+]] = tensor.extract_slice %[[CACHE]]
// CHECK:         linalg.generic {{.*}} outs(%[[PART]]
func.func @keep(%x: tensor<4x8xf32>, %cache: tensor<2x4x8xf32>) -> (tensor<4x8xf32>, tensor<2x4x8xf32>) {
  %e = tensor.empty() : tensor<4x8xf32>
  %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%p: f32, %o: f32):
    %v = math.exp %p : f32
    linalg.yield %v : f32
  } -> tensor<4x8xf32>
  %part = tensor.extract_slice %cache[1, 0, 0] [1, 4, 8] [1, 1, 1] : tensor<2x4x8xf32> to tensor<4x8xf32>
  %b = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<4x8xf32>) outs(%part : tensor<4x8xf32>) {
  ^bb0(%p: f32, %o: f32):
    %v = arith.negf %p : f32
    linalg.yield %v : f32
  } -> tensor<4x8xf32>
  %c = tensor.insert_slice %b into %cache[1, 0, 0] [1, 4, 8] [1, 1, 1] : tensor<4x8xf32> into tensor<2x4x8xf32>
  return %a, %c : tensor<4x8xf32>, tensor<2x4x8xf32>
}

// What is left of a fused op on one element is its assertion, which needs no op around it.
// CHECK-LABEL: func.func @assertion_of_one_element(
// CHECK:         tensor.extract
// CHECK:         cf.assert
// CHECK:         linalg.generic {indexing_maps = [#{{.+}}], iterator_types = []} outs(
// CHECK-NOT:     linalg.generic
// CHECK:         return
func.func @assertion_of_one_element(%x: tensor<i64>) -> tensor<f32> {
  %zero = arith.constant 0 : i64
  %e = tensor.empty() : tensor<f32>
  %a = linalg.generic {indexing_maps = [affine_map<() -> ()>, affine_map<() -> ()>], iterator_types = []} ins(%x : tensor<i64>) outs(%e : tensor<f32>) {
  ^bb0(%p: i64, %o: f32):
    %some = arith.cmpi ne, %p, %zero : i64
    cf.assert %some, "expected no zero"
    %v = arith.sitofp %p : i64 to f32
    linalg.yield %v : f32
  } -> tensor<f32>
  %b = linalg.generic {indexing_maps = [affine_map<() -> ()>, affine_map<() -> ()>], iterator_types = []} ins(%a : tensor<f32>) outs(%e : tensor<f32>) {
  ^bb0(%p: f32, %o: f32):
    %v = arith.mulf %p, %p : f32
    linalg.yield %v : f32
  } -> tensor<f32>
  return %b : tensor<f32>
}

// What an op reads of its init is an input of the fused one: as an init it would be added to in every row.
// CHECK-LABEL: func.func @accumulated(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<8xf32>, %[[ACC:[^:]+]]: tensor<8xf32>
// CHECK:         %[[EMPTY:.+]] = tensor.empty() : tensor<4x8xf32>
// CHECK:         linalg.generic {{.*}} ins(%[[X]], %[[ACC]] : {{.*}}) outs(%[[EMPTY]] :
// CHECK-NOT:     linalg.generic
func.func @accumulated(%x: tensor<8xf32>, %acc: tensor<8xf32>) -> tensor<4x8xf32> {
  %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%acc : tensor<8xf32>) {
  ^bb0(%p: f32, %o: f32):
    %v = arith.addf %p, %o : f32
    linalg.yield %v : f32
  } -> tensor<8xf32>
  %e = tensor.empty() : tensor<4x8xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (j)>, #id], iterator_types = ["parallel", "parallel"]} ins(%y : tensor<8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%p: f32, %o: f32):
    linalg.yield %p : f32
  } -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}

// Nothing reads the sum here, so it stays where it is.
// CHECK-LABEL: func.func @in_place(
// CHECK-SAME:    %[[X:[^:]+]]: tensor<8xf32>, %[[ACC:[^:]+]]: tensor<8xf32>
// CHECK:         linalg.generic {{.*}} ins(%[[X]] : tensor<8xf32>) outs(%[[ACC]] :
func.func @in_place(%x: tensor<8xf32>, %acc: tensor<8xf32>) -> tensor<8xf32> {
  %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%acc : tensor<8xf32>) {
  ^bb0(%p: f32, %o: f32):
    %v = arith.addf %p, %o : f32
    linalg.yield %v : f32
  } -> tensor<8xf32>
  return %y : tensor<8xf32>
}
