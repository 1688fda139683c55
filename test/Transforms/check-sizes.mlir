// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-check-sizes))" | FileCheck %s

#id = affine_map<(i) -> (i)>

// Facts about arguments are asserted at the start, each once.

// CHECK-LABEL: func.func @operands(
// CHECK-SAME:      %[[A:.+]]: tensor<?xf32>, %[[B:.+]]: tensor<?xf32>
// CHECK-DAG:     %[[M:.+]] = tensor.dim %[[A]]
// CHECK-DAG:     %[[N:.+]] = tensor.dim %[[B]]
// CHECK:         %[[SAME:.+]] = arith.cmpi eq, %[[N]], %[[M]]
// CHECK:         cf.assert %[[SAME]], "add: expected equal sizes, but axis 0 of argument 2 and axis 0 of argument 1 differ"
// CHECK-NOT:     cf.assert
// CHECK:         linalg.add
// CHECK:         linalg.mul
func.func @operands(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %a, %c0 : tensor<?xf32>
  %e = tensor.empty(%n) : tensor<?xf32>
  %r = linalg.add ins(%a, %b : tensor<?xf32>, tensor<?xf32>) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  %s = linalg.mul ins(%r, %b : tensor<?xf32>, tensor<?xf32>) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  return %s : tensor<?xf32>
}

// What follows from how tensors were made is not asserted, nor what the graph asserts itself.

// CHECK-LABEL: func.func @known(
// CHECK:         cf.assert %{{.+}}, "by the graph"
// CHECK-NOT:     cf.assert
// CHECK:         return
func.func @known(%a: tensor<?x6xf32>, %b: tensor<?x6xf32>) -> tensor<?x2x3xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %a, %c0 : tensor<?x6xf32>
  %m = tensor.dim %b, %c0 : tensor<?x6xf32>
  %same = arith.cmpi eq, %n, %m : index
  cf.assert %same, "by the graph"
  %e = tensor.empty(%n) : tensor<?x6xf32>
  %r = linalg.add ins(%a, %b : tensor<?x6xf32>, tensor<?x6xf32>) outs(%e : tensor<?x6xf32>) -> tensor<?x6xf32>
  %flat = tensor.collapse_shape %r [[0, 1]] : tensor<?x6xf32> into tensor<?xf32>
  %x = tensor.expand_shape %flat [[0, 1, 2]] output_shape [%n, 2, 3] : tensor<?xf32> into tensor<?x2x3xf32>
  %half = tensor.extract_slice %x[0, 0, 1] [%n, 2, 2] [1, 1, 1] : tensor<?x2x3xf32> to tensor<?x2x2xf32>
  return %x : tensor<?x2x3xf32>
}

// CHECK-LABEL: func.func @narrowed(
// CHECK:         cf.assert %{{.+}}, "cast: expected equal sizes, but axis 0 of argument 1 and 10 differ"
// CHECK:         tensor.cast
func.func @narrowed(%a: tensor<?xf32>) -> tensor<10xf32> {
  %c = tensor.cast %a : tensor<?xf32> to tensor<10xf32>
  return %c : tensor<10xf32>
}

// Other facts are asserted before the op.

// CHECK-LABEL: func.func @expanded(
// CHECK:         %[[SIZE:.+]] = arith.index_cast
// CHECK:         %[[ALL:.+]] = arith.muli %[[SIZE]], %{{.+}} : index
// CHECK:         arith.cmpi eq, %{{.+}}, %[[ALL]]
// CHECK:         cf.assert %{{.+}}, "expand_shape: expected equal sizes
// CHECK:         tensor.expand_shape
func.func @expanded(%a: tensor<?xf32>, %n: i64) -> tensor<?x4xf32> {
  %i = arith.index_cast %n : i64 to index
  %x = tensor.expand_shape %a [[0, 1]] output_shape [%i, 4] : tensor<?xf32> into tensor<?x4xf32>
  return %x : tensor<?x4xf32>
}

// CHECK-LABEL: func.func @reshaped(
// CHECK:         cf.assert %{{.+}}, "reshape: expected equal sizes
// CHECK:         tensor.reshape
func.func @reshaped(%a: tensor<?x6xf32>, %shape: tensor<2xi64>) -> tensor<?x?xf32> {
  %x = tensor.reshape %a(%shape) : (tensor<?x6xf32>, tensor<2xi64>) -> tensor<?x?xf32>
  return %x : tensor<?x?xf32>
}

// CHECK-LABEL: func.func @sliced(
// CHECK:         arith.cmpi sle
// CHECK:         cf.assert %{{.+}}, "extract_slice: expected a slice inside of its tensor, but it ends behind axis 0"
// CHECK:         tensor.extract_slice
func.func @sliced(%a: tensor<?xf32>) -> tensor<8xf32> {
  %x = tensor.extract_slice %a[0] [8] [1] : tensor<?xf32> to tensor<8xf32>
  return %x : tensor<8xf32>
}

// CHECK-LABEL: func.func @joined(
// CHECK:         cf.assert %{{.+}}, "concat: expected equal sizes, but axis 1 of argument 2 and axis 1 of argument 1 differ"
func.func @joined(%a: tensor<2x?xf32>, %b: tensor<3x?xf32>) -> tensor<5x?xf32> {
  %x = tensor.concat dim(0) %a, %b : (tensor<2x?xf32>, tensor<3x?xf32>) -> tensor<5x?xf32>
  return %x : tensor<5x?xf32>
}

// Keys are as many as values, and the result has as many rows as the queries.

// CHECK-LABEL: func.func @attention(
// CHECK-DAG:     "attention: expected equal sizes, but axis 2 of argument 3 and axis 2 of argument 1 differ"
// CHECK-DAG:     "attention: expected equal sizes, but axis 2 of argument 4 and axis 2 of argument 2 differ"
// CHECK-DAG:     "attention: expected equal sizes, but axis 2 of argument 5 and axis 2 of argument 2 differ"
// CHECK:         diffattn.attention
func.func @attention(%q1: tensor<1x2x?x16xf32>, %k1: tensor<1x2x?x16xf32>, %q2: tensor<1x2x?x16xf32>, %k2: tensor<1x2x?x16xf32>, %v: tensor<1x2x?x32xf32>, %l: tensor<f32>) -> tensor<1x2x?x32xf32> {
  %c2 = arith.constant 2 : index
  %n = tensor.dim %q1, %c2 : tensor<1x2x?x16xf32>
  %e = tensor.empty(%n) : tensor<1x2x?x32xf32>
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<1x2x?x16xf32>, tensor<1x2x?x16xf32>, tensor<1x2x?x16xf32>, tensor<1x2x?x16xf32>, tensor<1x2x?x32xf32>) lambda(%l : tensor<f32>) outs(%e : tensor<1x2x?x32xf32>) {scale = 0.25 : f32} -> tensor<1x2x?x32xf32>
  return %o : tensor<1x2x?x32xf32>
}

// Bodies run for each element: what they state is not asserted there.

// CHECK-LABEL: func.func @bodies(
// CHECK-NOT:     cf.assert
// CHECK:         return
func.func @bodies(%a: tensor<8xf32>, %b: tensor<?xf32>) -> tensor<8xf32> {
  %e = tensor.empty() : tensor<8xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%a : tensor<8xf32>) outs(%e : tensor<8xf32>) {
  ^bb0(%x: f32, %o: f32):
    %c = tensor.cast %b : tensor<?xf32> to tensor<8xf32>
    %i = linalg.index 0 : index
    %y = tensor.extract %c[%i] : tensor<8xf32>
    linalg.yield %y : f32
  } -> tensor<8xf32>
  return %r : tensor<8xf32>
}
