// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-elementwise))" | FileCheck %s

// A part that is cut out, written and put back is the result's place: fusion keeps it as the init.
// CHECK-LABEL:  func.func @write_parts(
// CHECK:        %[[PART:.+]] = tensor.extract_slice
// CHECK:        linalg.generic {{.*}} outs(%[[PART]] :
#id = affine_map<(i, j) -> (i, j)>
func.func @write_parts(%x: tensor<?x4xf32>, %n: index) -> tensor<?x8xf32> {
  %whole = tensor.empty(%n) : tensor<?x8xf32>
  %part = tensor.extract_slice %whole[0, 4] [%n, 4] [1, 1] : tensor<?x8xf32> to tensor<?x4xf32>
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x4xf32>) outs(%part : tensor<?x4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<?x4xf32>
  %r = tensor.insert_slice %y into %whole[0, 4] [%n, 4] [1, 1] : tensor<?x4xf32> into tensor<?x8xf32>
  return %r : tensor<?x8xf32>
}

// Any other init that is not read only ties ops together: it is dropped.
// CHECK-LABEL:  func.func @overwrite(
// CHECK:        %[[FRESH:.+]] = tensor.empty
// CHECK:        linalg.generic {{.*}} outs(%[[FRESH]] :
func.func @overwrite(%x: tensor<?x4xf32>, %old: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x4xf32>) outs(%old : tensor<?x4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<?x4xf32>
  return %y : tensor<?x4xf32>
}
