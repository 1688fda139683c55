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

// A long sum whose terms may come in any order has parts of 8192 terms, with sums of their own; a
// maximum beside it is carried through them.
// CHECK-LABEL: func.func @long(
// CHECK-SAME:    %[[X:.+]]: memref<10000xf32>
// CHECK:         %[[PART:.+]] = arith.constant 8192 : index
// CHECK:         scf.for %[[FIRST:.+]] = %{{.+}} to %[[N:.+]] step %[[PART]] iter_args(%[[SUM:.+]] = %{{.+}}, %[[MAX:.+]] = %{{.+}})
// CHECK:           %[[NEXT:.+]] = arith.addi %[[FIRST]], %[[PART]] : index
// CHECK:           %[[LAST:.+]] = arith.minsi %[[NEXT]], %[[N]] : index
// CHECK:           %[[ZERO:.+]] = arith.constant -0.000000e+00 : f32
// CHECK:           %[[OF_PART:.+]]:2 = scf.for %{{.+}} = %[[FIRST]] to %[[LAST]] {{.*}} iter_args(%{{.+}} = %[[ZERO]], %{{.+}} = %[[MAX]])
// CHECK:           %[[ADDED:.+]] = arith.addf %[[SUM]], %[[OF_PART]]#0 : f32
// CHECK:           scf.yield %[[ADDED]], %[[OF_PART]]#1
func.func @long(%x: memref<10000xf32>, %s: memref<f32>, %m: memref<f32>) {
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>, affine_map<(i) -> ()>], iterator_types = ["reduction"]}
      ins(%x : memref<10000xf32>) outs(%s, %m : memref<f32>, memref<f32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %r = arith.addf %b, %a fastmath<reassoc> : f32
    %g = arith.maximumf %c, %a : f32
    linalg.yield %r, %g : f32, f32
  }
  return
}

// The parts of a very long loop have parts; of loops in one another each is a part where it has 64
// iterations or more.
// CHECK-LABEL: func.func @very_long(
// CHECK:         scf.for {{.*}} step %{{.+}} iter_args
// CHECK:           scf.for {{.*}} step %{{.+}} iter_args
// CHECK:             scf.for {{.*}} iter_args
// CHECK:               %[[ROW:.+]] = scf.for {{.*}} iter_args(%{{.+}} = %{{cst.*}})
// CHECK:               arith.addf %{{.+}}, %[[ROW]] : f32
func.func @very_long(%x: memref<?x64xf32>, %s: memref<f32>) {
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> ()>], iterator_types = ["reduction", "reduction"]}
      ins(%x : memref<?x64xf32>) outs(%s : memref<f32>) {
  ^bb0(%a: f32, %b: f32):
    %r = arith.addf %b, %a fastmath<reassoc> : f32
    linalg.yield %r : f32
  }
  return
}

// The order that is written is kept where no flag gives it up, and where a term is made of the sum
// so far.
// CHECK-LABEL: func.func @ordered(
// CHECK-COUNT-1: scf.for
// CHECK-NOT:     scf.for
// CHECK-LABEL: func.func @of_itself(
// CHECK-COUNT-1: scf.for
// CHECK-NOT:     scf.for
// CHECK:         return
func.func @ordered(%x: memref<?xf32>, %s: memref<f32>) {
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>], iterator_types = ["reduction"]}
      ins(%x : memref<?xf32>) outs(%s : memref<f32>) {
  ^bb0(%a: f32, %b: f32):
    %r = arith.addf %b, %a : f32
    linalg.yield %r : f32
  }
  return
}
func.func @of_itself(%x: memref<?xf32>, %s: memref<f32>) {
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>], iterator_types = ["reduction"]}
      ins(%x : memref<?xf32>) outs(%s : memref<f32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %b, %a : f32
    %r = arith.addf %b, %p fastmath<reassoc> : f32
    linalg.yield %r : f32
  }
  return
}

// Some rows have sums of their own, in a buffer of the stack that is then added to the columns; of
// the terms a condition chooses.
// CHECK-LABEL: func.func @rows_in_parts(
// CHECK-SAME:    %[[X:.+]]: memref<1000x20x30xf32>, %[[S:.+]]: memref<20x30xf32>
// CHECK:         %[[PART:.+]] = memref.alloca() {{.*}} : memref<4096xf32>
// CHECK:         scf.for %[[FIRST:.+]] = %{{.+}} to %{{.+}} step %[[ROWS:.+]] {
// CHECK:           memref.store %{{cst.*}}, %[[PART]]
// CHECK:           %[[LAST:.+]] = arith.minsi
// CHECK:           scf.for %{{.+}} = %[[FIRST]] to %[[LAST]]
// CHECK:             %[[OLD:.+]] = memref.load %[[PART]]
// CHECK:             %[[SUM:.+]] = arith.addf %{{.+}}, %[[OLD]] fastmath<reassoc> : f32
// CHECK:             %[[NEW:.+]] = arith.select %{{.+}}, %[[SUM]], %[[OLD]] : f32
// CHECK:             memref.store %[[NEW]], %[[PART]]
// CHECK:           %[[BEFORE:.+]] = memref.load %[[S]]
// CHECK:           %[[OF_PART:.+]] = memref.load %[[PART]]
// CHECK:           %[[ADDED:.+]] = arith.addf %[[BEFORE]], %[[OF_PART]] : f32
// CHECK:           memref.store %[[ADDED]], %[[S]]
func.func @rows_in_parts(%x: memref<1000x20x30xf32>, %s: memref<20x30xf32>) {
  linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, j, k)>, affine_map<(i, j, k) -> (j, k)>], iterator_types = ["reduction", "parallel", "parallel"]}
      ins(%x : memref<1000x20x30xf32>) outs(%s : memref<20x30xf32>) {
  ^bb0(%a: f32, %b: f32):
    %g = arith.cmpf ord, %a, %a : f32
    %r = arith.addf %a, %b fastmath<reassoc> : f32
    %t = arith.select %g, %r, %b : f32
    linalg.yield %t : f32
  }
  return
}

// Long columns are cut too, and every op of a function uses one buffer.
// CHECK-LABEL: func.func @wide(
// CHECK-COUNT-1: memref.alloca
// CHECK-NOT:     memref.alloca
// CHECK:         scf.for %[[CHUNK:.+]] = %{{.+}} to %{{.+}} step %{{.+}} {
// CHECK:           scf.for %{{.+}} = %{{.+}} to %{{.+}} step %{{.+}} {
// CHECK:             arith.subi %{{.+}}, %[[CHUNK]] : index
func.func @wide(%x: memref<1024x?xf32>, %s: memref<?xf32>, %t: memref<?xf32>) {
  linalg.generic {indexing_maps = [#id, affine_map<(i, j) -> (j)>], iterator_types = ["reduction", "parallel"]}
      ins(%x : memref<1024x?xf32>) outs(%s : memref<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %r = arith.addf %b, %a fastmath<reassoc> : f32
    linalg.yield %r : f32
  }
  linalg.generic {indexing_maps = [#id, affine_map<(i, j) -> (j)>], iterator_types = ["reduction", "parallel"]}
      ins(%x : memref<1024x?xf32>) outs(%t : memref<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %r = arith.addf %b, %a fastmath<reassoc> : f32
    linalg.yield %r : f32
  }
  return
}

// Rows of a table at given places: the place is read, and asserted about, once
// for each row.
// CHECK-LABEL: func.func @gather(
// CHECK-SAME:    %[[AT:[^:]+]]: memref<?xi64>, %[[T:[^:]+]]: memref<100x8xf32>
// CHECK:         scf.for %[[I:.+]] =
// CHECK:           %[[N:.+]] = memref.load %[[AT]][%[[I]]]
// CHECK:           cf.assert
// CHECK:           scf.for %[[J:.+]] =
// CHECK-NOT:         cf.assert
// CHECK:             memref.load %[[T]][%{{.+}}, %[[J]]]
func.func @gather(%at: memref<?xi64>, %t: memref<100x8xf32>, %r: memref<?x8xf32>) {
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, #id], iterator_types = ["parallel", "parallel"]}
      ins(%at : memref<?xi64>) outs(%r : memref<?x8xf32>) {
  ^bb0(%a: i64, %b: f32):
    %n = arith.index_cast %a : i64 to index
    %j = linalg.index 1 : index
    %c100 = arith.constant 100 : index
    %fits = arith.cmpi ult, %n, %c100 : index
    cf.assert %fits, "index must be smaller than dim size"
    %v = memref.load %t[%n, %j] : memref<100x8xf32>
    linalg.yield %v : f32
  }
  return
}

// Where there may be no columns, nothing is asserted about the rows; nor is
// read before what the op itself writes.
// CHECK-LABEL: func.func @kept_inside(
// CHECK:         %[[FIRST:.+]] = memref.subview
// CHECK:         scf.for
// CHECK-NOT:       memref.load %[[FIRST]]
// CHECK-NOT:       cf.assert
// CHECK:           scf.for
// CHECK:             memref.load %[[FIRST]]
// CHECK:             cf.assert
func.func @kept_inside(%x: memref<4x?xf32>, %at: memref<4xi1>) {
  %first = memref.subview %x[0, 0] [4, 1] [1, 1] : memref<4x?xf32> to memref<4xf32, strided<[?]>>
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i)>, #id], iterator_types = ["parallel", "parallel"]}
      ins(%first, %at : memref<4xf32, strided<[?]>>, memref<4xi1>) outs(%x : memref<4x?xf32>) {
  ^bb0(%a: f32, %t: i1, %b: f32):
    cf.assert %t, "expected true"
    %v = arith.addf %a, %b : f32
    linalg.yield %v : f32
  }
  return
}

// A transposition goes by tiles, whose last ones may be smaller.
// CHECK-LABEL: func.func @transpose(
// CHECK:         scf.for %[[I:.+]] = %{{.+}} to %{{.+}} step %c32
// CHECK:           scf.for %[[J:.+]] = %{{.+}} to %{{.+}} step %c8
// CHECK:             scf.for %{{.+}} = %[[I]]
// CHECK:               arith.minsi
// CHECK:               scf.for %{{.+}} = %[[J]]
func.func @transpose(%x: memref<100x64xf32>, %r: memref<64x100xf32>) {
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : memref<100x64xf32>) outs(%r : memref<64x100xf32>) {
  ^bb0(%a: f32, %b: f32):
    linalg.yield %a : f32
  }
  return
}

// A window that neighbours read side by side: each element adds up its three in
// their order, and is written once.
// CHECK-LABEL: func.func @window(
// CHECK-SAME:    %[[X:[^:]+]]: memref<4x66xf32>
// CHECK:         scf.for
// CHECK:           scf.for %[[J:.+]] =
// CHECK-NOT:         scf.for
// CHECK:             %[[A:.+]] = arith.addf %{{.+}}, %{{.+}} : f32
// CHECK:             memref.load %[[X]]
// CHECK:             %[[B:.+]] = arith.addf %{{.+}}, %[[A]] : f32
// CHECK:             memref.load %[[X]]
// CHECK:             %[[C:.+]] = arith.addf %{{.+}}, %[[B]] : f32
// CHECK:             memref.store %[[C]]
func.func @window(%x: memref<4x66xf32>, %x3: memref<3xf32>, %s: memref<4x64xf32>) {
  linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, j + k)>, affine_map<(i, j, k) -> (k)>, affine_map<(i, j, k) -> (i, j)>],
                  iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %x3 : memref<4x66xf32>, memref<3xf32>) outs(%s : memref<4x64xf32>) {
  ^bb0(%a: f32, %w: f32, %b: f32):
    %r = arith.addf %a, %b fastmath<reassoc> : f32
    linalg.yield %r : f32
  }
  return
}

// A product of integers: rows of the second matrix are added to a row.
// CHECK-LABEL: func.func @product(
// CHECK-SAME:    %[[A:[^:]+]]: memref<4x100xi32>, %[[B:[^:]+]]: memref<100x8xi32>
// CHECK:         scf.for %[[I:.+]] =
// CHECK:           scf.for %[[K:.+]] =
// CHECK:             memref.load %[[A]][%[[I]], %[[K]]]
// CHECK:             scf.for %[[J:.+]] =
// CHECK:               memref.load %[[B]][%[[K]], %[[J]]]
// CHECK:               memref.store
func.func @product(%a: memref<4x100xi32>, %b: memref<100x8xi32>, %c: memref<4x8xi32>) {
  linalg.matmul ins(%a, %b : memref<4x100xi32>, memref<100x8xi32>) outs(%c : memref<4x8xi32>)
  return
}
