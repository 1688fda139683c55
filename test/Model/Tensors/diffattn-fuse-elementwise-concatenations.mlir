// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-elementwise))" | FileCheck %s

#id = affine_map<(h, t, c) -> (h, t, c)>
#token = affine_map<(h, t, c) -> (t, h, c)>
#angle = affine_map<(h, t, c) -> (t, c)>

// A rotary embedding with a transpose before it, as importers write it: one op
// for each half, which reads where the heads lie.

// CHECK-LABEL: func.func @turned(
// CHECK-SAME:      %[[X:[a-z0-9]+]]: tensor<?x4x64xf32>, %[[COS:[a-z0-9]+]]: tensor<?x64xf32>, %[[SIN:[a-z0-9]+]]: tensor<?x64xf32>
// CHECK-DAG:     %[[LOW:.+]] = tensor.extract_slice %[[X]][0, 0, 0] [%{{.+}}, 4, 32]
// CHECK-DAG:     %[[HIGH:.+]] = tensor.extract_slice %[[X]][0, 0, 32] [%{{.+}}, 4, 32]
// CHECK-DAG:     %[[COS_LOW:.+]] = tensor.extract_slice %[[COS]][0, 0] [%{{.+}}, 32]
// CHECK-DAG:     %[[SIN_LOW:.+]] = tensor.extract_slice %[[SIN]][0, 0] [%{{.+}}, 32]
// CHECK:         %[[FIRST:.+]] = linalg.generic {{.+}} ins(%{{.+}}, %[[COS_LOW]], %[[HIGH]], %[[SIN_LOW]] :
// CHECK:           arith.negf
// CHECK:         %[[HALF:.+]] = tensor.insert_slice %[[FIRST]] into %{{.+}}[0, 0, 0] [4, %{{.+}}, 32]
// CHECK-DAG:     %[[COS_HIGH:.+]] = tensor.extract_slice %[[COS]][0, 32] [%{{.+}}, 32]
// CHECK-DAG:     %[[SIN_HIGH:.+]] = tensor.extract_slice %[[SIN]][0, 32] [%{{.+}}, 32]
// CHECK-DAG:     %[[PLACE:.+]] = tensor.extract_slice %[[HALF]][0, 0, 32] [4, %{{.+}}, 32]
// CHECK:         %[[SECOND:.+]] = linalg.generic {{.+}} ins(%{{.+}}, %[[COS_HIGH]], %[[LOW]], %[[SIN_HIGH]] :
// CHECK-SAME:        outs(%[[PLACE]] :
// CHECK-NOT:       arith.negf
// CHECK:         %[[WHOLE:.+]] = tensor.insert_slice %[[SECOND]] into %[[HALF]][0, 0, 32]
// CHECK-NOT:     linalg.generic
// CHECK:         return %[[WHOLE]]
func.func @turned(%x: tensor<?x4x64xf32>, %cos: tensor<?x64xf32>, %sin: tensor<?x64xf32>, %n: index) -> tensor<4x?x64xf32> {
  %e = tensor.empty(%n) : tensor<4x?x64xf32>
  %eh = tensor.empty(%n) : tensor<4x?x32xf32>
  %t = linalg.generic {indexing_maps = [#token, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x : tensor<?x4x64xf32>) outs(%e : tensor<4x?x64xf32>) {
  ^bb0(%a: f32, %o: f32):
    linalg.yield %a : f32
  } -> tensor<4x?x64xf32>
  %low = tensor.extract_slice %t[0, 0, 0] [4, %n, 32] [1, 1, 1] : tensor<4x?x64xf32> to tensor<4x?x32xf32>
  %high = tensor.extract_slice %t[0, 0, 32] [4, %n, 32] [1, 1, 1] : tensor<4x?x64xf32> to tensor<4x?x32xf32>
  %minus = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%high : tensor<4x?x32xf32>) outs(%eh : tensor<4x?x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.negf %a : f32
    linalg.yield %b : f32
  } -> tensor<4x?x32xf32>
  %i0 = tensor.insert_slice %minus into %e[0, 0, 0] [4, %n, 32] [1, 1, 1] : tensor<4x?x32xf32> into tensor<4x?x64xf32>
  %i1 = tensor.insert_slice %low into %i0[0, 0, 32] [4, %n, 32] [1, 1, 1] : tensor<4x?x32xf32> into tensor<4x?x64xf32>
  %r = linalg.generic {indexing_maps = [#id, #angle, #id, #angle, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%t, %cos, %i1, %sin : tensor<4x?x64xf32>, tensor<?x64xf32>, tensor<4x?x64xf32>, tensor<?x64xf32>) outs(%e : tensor<4x?x64xf32>) {
  ^bb0(%a: f32, %c: f32, %b: f32, %s: f32, %o: f32):
    %ac = arith.mulf %a, %c : f32
    %bs = arith.mulf %b, %s : f32
    %y = arith.addf %ac, %bs : f32
    linalg.yield %y : f32
  } -> tensor<4x?x64xf32>
  return %r : tensor<4x?x64xf32>
}

// Who else reads the concatenation needs it whole.

// CHECK-LABEL: func.func @read_twice(
// CHECK:         %[[BOTH:.+]] = tensor.insert_slice %{{.+}} into %{{.+}}[0, 4]
// CHECK:         %[[R:.+]] = linalg.generic {{.+}} ins(%[[BOTH]] : tensor<3x8xf32>)
// CHECK:         return %[[BOTH]], %[[R]]
func.func @read_twice(%a: tensor<3x4xf32>, %b: tensor<3x4xf32>) -> (tensor<3x8xf32>, tensor<3x8xf32>) {
  %e = tensor.empty() : tensor<3x8xf32>
  %i0 = tensor.insert_slice %a into %e[0, 0] [3, 4] [1, 1] : tensor<3x4xf32> into tensor<3x8xf32>
  %i1 = tensor.insert_slice %b into %i0[0, 4] [3, 4] [1, 1] : tensor<3x4xf32> into tensor<3x8xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%i1 : tensor<3x8xf32>) outs(%e : tensor<3x8xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.addf %x, %x : f32
    linalg.yield %y : f32
  } -> tensor<3x8xf32>
  return %i1, %r : tensor<3x8xf32>, tensor<3x8xf32>
}

// Parts that leave something out, and parts that overlap, are no concatenation.

// CHECK-LABEL: func.func @no_concatenations(
// CHECK-COUNT-2: tensor.insert_slice
// CHECK:         linalg.generic
// CHECK-COUNT-2: tensor.insert_slice
// CHECK:         linalg.generic
// CHECK-NOT:     linalg.generic
// CHECK:         return
func.func @no_concatenations(%a: tensor<2x4xf32>, %b: tensor<3x4xf32>, %c: tensor<3x5xf32>) -> (tensor<3x8xf32>, tensor<3x8xf32>) {
  %e = tensor.empty() : tensor<3x8xf32>
  %i0 = tensor.insert_slice %a into %e[0, 0] [2, 4] [1, 1] : tensor<2x4xf32> into tensor<3x8xf32>
  %i1 = tensor.insert_slice %b into %i0[0, 4] [3, 4] [1, 1] : tensor<3x4xf32> into tensor<3x8xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%i1 : tensor<3x8xf32>) outs(%e : tensor<3x8xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.addf %x, %x : f32
    linalg.yield %y : f32
  } -> tensor<3x8xf32>
  %j0 = tensor.insert_slice %c into %e[0, 0] [3, 5] [1, 1] : tensor<3x5xf32> into tensor<3x8xf32>
  %j1 = tensor.insert_slice %b into %j0[0, 4] [3, 4] [1, 1] : tensor<3x4xf32> into tensor<3x8xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%j1 : tensor<3x8xf32>) outs(%e : tensor<3x8xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.addf %x, %x : f32
    linalg.yield %y : f32
  } -> tensor<3x8xf32>
  return %r, %s : tensor<3x8xf32>, tensor<3x8xf32>
}

// Of the axis that is concatenated, one place is read.

// CHECK-LABEL: func.func @one_place(
// CHECK-COUNT-2: tensor.insert_slice
// CHECK:         %[[R:.+]] = linalg.generic
// CHECK:         return %[[R]]
func.func @one_place(%a: tensor<1x8xf32>, %b: tensor<1x8xf32>) -> tensor<4x8xf32> {
  %e = tensor.empty() : tensor<2x8xf32>
  %i0 = tensor.insert_slice %a into %e[0, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<2x8xf32>
  %i1 = tensor.insert_slice %b into %i0[1, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<2x8xf32>
  %er = tensor.empty() : tensor<4x8xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (0, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%i1 : tensor<2x8xf32>) outs(%er : tensor<4x8xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.addf %x, %x : f32
    linalg.yield %y : f32
  } -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
