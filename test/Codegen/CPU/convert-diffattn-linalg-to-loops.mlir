// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(convert-diffattn-linalg-to-loops))" | FileCheck %s
#id = affine_map<(i, j) -> (i, j)>

// A sum over the innermost dimension is carried by its loop.
// CHECK-LABEL: func.func @rows(
// CHECK-SAME:    %[[X:[^:]+]]: memref<?x8xf32>, %[[S:[^:]+]]: memref<?xf32>
// CHECK:         scf.for %[[I:.+]] =
// CHECK:           %[[AT:.+]] = affine.apply #{{.+}}(%[[I]])
// CHECK:           %[[INIT:.+]] = memref.load %[[S]][%[[AT]]]
// CHECK:           %[[SUM:.+]] = scf.for {{.*}} iter_args(%{{.+}} = %[[INIT]])
// CHECK-NOT:         memref.store
// CHECK:           memref.store %[[SUM]], %[[S]][%[[AT]]]
func.func @rows(%x: memref<?x8xf32>, %s: memref<?xf32>) {
  linalg.generic {indexing_maps = [#id, affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : memref<?x8xf32>) outs(%s : memref<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %r = arith.addf %b, %a : f32
    linalg.yield %r : f32
  }
  return
}

// A sum over an outer dimension runs along the rows, in memory.
// CHECK-LABEL: func.func @columns(
// CHECK-NOT:     iter_args
// CHECK:         memref.store
func.func @columns(%x: memref<?x8xf32>, %s: memref<8xf32>) {
  linalg.generic {indexing_maps = [#id, affine_map<(i, j) -> (j)>], iterator_types = ["reduction", "parallel"]}
      ins(%x : memref<?x8xf32>) outs(%s : memref<8xf32>) {
  ^bb0(%a: f32, %b: f32):
    %r = arith.addf %b, %a : f32
    linalg.yield %r : f32
  }
  return
}

// The largest element and its index: two values are carried, and the index of the loop is read.
// CHECK-LABEL: func.func @argmax(
// CHECK:         scf.for %[[J:.+]] = {{.*}} iter_args(%{{.+}} = %{{.+}}, %{{.+}} = %{{.+}}) -> (f32, i64)
// CHECK:           arith.index_cast %[[J]]
func.func @argmax(%x: memref<?x8xf32>, %m: memref<?xf32>, %at: memref<?xi64>) {
  linalg.generic {indexing_maps = [#id, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : memref<?x8xf32>) outs(%m, %at : memref<?xf32>, memref<?xi64>) {
  ^bb0(%a: f32, %b: f32, %c: i64):
    %j = linalg.index 1 : index
    %k = arith.index_cast %j : index to i64
    %g = arith.cmpf ogt, %a, %b : f32
    %v = arith.select %g, %a, %b : f32
    %w = arith.select %g, %k, %c : i64
    linalg.yield %v, %w : f32, i64
  }
  return
}
