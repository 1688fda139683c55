// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-elementwise))" | FileCheck %s --check-prefix=FUSE
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-split-destinations))" | FileCheck %s --check-prefix=SPLIT

// A part that is cut out, written and put back is the result's place: fusion keeps it as the init, and its tensor stays one.
// FUSE-LABEL:  func.func @write_parts(
// FUSE:        %[[PART:.+]] = tensor.extract_slice
// FUSE:        linalg.generic {{.*}} outs(%[[PART]] :
// SPLIT-LABEL: func.func @write_parts(
// SPLIT:       %[[WHOLE:.+]] = tensor.empty
// SPLIT-NOT:   tensor.empty
// SPLIT:       tensor.extract_slice %[[WHOLE]]
// SPLIT:       tensor.insert_slice %{{.+}} into %[[WHOLE]]
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

// Any other init that is not read only ties ops together: it is dropped, and empty tensors are not shared.
// FUSE-LABEL:  func.func @overwrite(
// FUSE:        %[[FRESH:.+]] = tensor.empty
// FUSE:        linalg.generic {{.*}} outs(%[[FRESH]] :
// SPLIT-LABEL: func.func @share(
// SPLIT:       %[[A:.+]] = tensor.empty
// SPLIT:       %[[B:.+]] = tensor.empty
// SPLIT-DAG:   linalg.exp {{.*}} outs(%[[A]] :
// SPLIT-DAG:   linalg.exp {{.*}} outs(%[[B]] :
func.func @overwrite(%x: tensor<?x4xf32>, %old: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x4xf32>) outs(%old : tensor<?x4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<?x4xf32>
  return %y : tensor<?x4xf32>
}

func.func @share(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %e = tensor.empty() : tensor<4xf32>
  %a = linalg.exp ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %b = linalg.exp ins(%y : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %a, %b : tensor<4xf32>, tensor<4xf32>
}
