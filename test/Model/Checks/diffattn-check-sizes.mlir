// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-check-sizes))" | FileCheck %s
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-check-sizes{device}))" | FileCheck %s --check-prefix=DEVICE

#id = affine_map<(i) -> (i)>

// Facts about arguments are asserted at the start, each once.

// CHECK-LABEL: func.func @operands(
// CHECK-SAME:      %[[A:.+]]: tensor<?xf32>, %[[B:.+]]: tensor<?xf32>
// CHECK-DAG:     %[[M:.+]] = tensor.dim %[[A]]
// CHECK-DAG:     %[[N:.+]] = tensor.dim %[[B]]
// CHECK:         %[[SAME:.+]] = arith.cmpi eq, %[[N]], %[[M]]
// CHECK:         cf.assert %[[SAME]], "argument 1 of 'operands': expected size {1} on axis 0, as on axis 0 of argument 0, but got {0}"
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

// Ops on memrefs have the same rules.

// CHECK-LABEL: func.func @buffers(
// CHECK:         cf.assert %{{.+}}, "argument 1 of 'buffers': expected size {1} on axis 0, as on axis 0 of argument 0, but got {0}"
// CHECK:         cf.assert %{{.+}}, "argument 0 of 'buffers': expected size 4 on axis 0, but got {0}"
// CHECK-NOT:     cf.assert
func.func @buffers(%a: memref<?xf32>, %b: memref<?xf32>, %c: memref<4xf32>) {
  memref.copy %a, %b : memref<?xf32> to memref<?xf32>
  linalg.add ins(%a, %b : memref<?xf32>, memref<?xf32>) outs(%c : memref<4xf32>)
  return
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
  return %x : tensor<?x2x3xf32>
}

// A branch that is not taken demands nothing, and what it asserts is not known behind it.

// CHECK-LABEL: func.func @branch(
// CHECK-NOT:     cf.assert
// CHECK:         scf.if
// CHECK:           cf.assert
// CHECK:           linalg.add
// CHECK:         }
// CHECK:         scf.if
// CHECK:           cf.assert
func.func @branch(%a: tensor<?xf32>, %b: tensor<?xf32>, %take: i1) -> (tensor<?xf32>, tensor<?xf32>) {
  %r = scf.if %take -> tensor<?xf32> {
    %s = linalg.add ins(%a, %b : tensor<?xf32>, tensor<?xf32>) outs(%a : tensor<?xf32>) -> tensor<?xf32>
    scf.yield %s : tensor<?xf32>
  } else {
    scf.yield %a : tensor<?xf32>
  }
  %t = scf.if %take -> tensor<?xf32> {
    %s = linalg.mul ins(%a, %b : tensor<?xf32>, tensor<?xf32>) outs(%a : tensor<?xf32>) -> tensor<?xf32>
    scf.yield %s : tensor<?xf32>
  } else {
    scf.yield %a : tensor<?xf32>
  }
  return %r, %t : tensor<?xf32>, tensor<?xf32>
}

// CHECK-LABEL: func.func @narrowed(
// CHECK:         cf.assert %{{.+}}, "argument 0 of 'narrowed': expected size 10 on axis 0, but got {0}"
// CHECK:         tensor.cast
func.func @narrowed(%a: tensor<?xf32>) -> tensor<10xf32> {
  %c = tensor.cast %a : tensor<?xf32> to tensor<10xf32>
  return %c : tensor<10xf32>
}

// Other facts are asserted before the op; a product that wraps around is none that fits.

// CHECK-LABEL: func.func @expanded(
// CHECK:         %[[SIZE:.+]] = arith.index_cast
// CHECK:         cf.assert %{{.+}}, "expand_shape: expected a size of axis 0 of 0 or more, but got {0}"
// CHECK:         %[[ALL:.+]], %[[HIGH:.+]] = arith.mului_extended
// CHECK:         %[[FITS:.+]] = arith.cmpi eq, %[[HIGH]]
// CHECK:         %[[PRODUCT:.+]] = arith.select %[[FITS]], %[[ALL]]
// CHECK:         arith.cmpi eq, %{{.+}}, %[[PRODUCT]]
// CHECK:         cf.assert %{{.+}}, "argument 0 of 'expanded': expected size {1} on axis 0, but got {0}"
// CHECK:         tensor.expand_shape
func.func @expanded(%a: tensor<?xf32>, %n: i64) -> tensor<?x4xf32> {
  %i = arith.index_cast %n : i64 to index
  %x = tensor.expand_shape %a [[0, 1]] output_shape [%i, 4] : tensor<?xf32> into tensor<?x4xf32>
  return %x : tensor<?x4xf32>
}

// CHECK-LABEL: func.func @reshaped(
// CHECK-COUNT-2: "reshape: expected a size of axis {{[01]}} of 0 or more, but got {0}"
// CHECK:         "reshape: expected a number of elements of {1}, but got {0}"
// CHECK:         tensor.reshape
func.func @reshaped(%a: tensor<?x6xf32>, %shape: tensor<2xi64>) -> tensor<?x?xf32> {
  %x = tensor.reshape %a(%shape) : (tensor<?x6xf32>, tensor<2xi64>) -> tensor<?x?xf32>
  return %x : tensor<?x?xf32>
}

// What is copied into a slice has its sizes.

// CHECK-LABEL: func.func @inserted(
// CHECK:         "argument 0 of 'inserted': expected size {1} on axis 0, but got {0}"
// CHECK:         tensor.insert_slice
func.func @inserted(%a: tensor<?xf32>, %b: tensor<8xf32>, %n: index) -> tensor<8xf32> {
  %x = tensor.insert_slice %a into %b[0] [%n] [1] : tensor<?xf32> into tensor<8xf32>
  return %x : tensor<8xf32>
}

// CHECK-LABEL: func.func @joined(
// CHECK:         cf.assert %{{.+}}, "argument 1 of 'joined': expected size {1} on axis 1, as on axis 1 of argument 0, but got {0}"
func.func @joined(%a: tensor<2x?xf32>, %b: tensor<3x?xf32>) -> tensor<5x?xf32> {
  %x = tensor.concat dim(0) %a, %b : (tensor<2x?xf32>, tensor<3x?xf32>) -> tensor<5x?xf32>
  return %x : tensor<5x?xf32>
}

// Padding is not negative, and an axis is there.

// CHECK-LABEL: func.func @padded(
// CHECK:         "pad: expected a low padding of axis 0 of 0 or more, but got {0}"
// CHECK:         "pad: expected a high padding of axis 0 of 0 or more, but got {0}"
// CHECK:         tensor.pad
// CHECK:         "dim: expected an axis from 0 and below 1, but got {0}"
// CHECK:         tensor.dim
func.func @padded(%a: tensor<?xf32>, %low: index, %high: index, %axis: index) -> index {
  %z = arith.constant 0.0 : f32
  %p = tensor.pad %a low[%low] high[%high] {
  ^bb0(%i: index):
    tensor.yield %z : f32
  } : tensor<?xf32> to tensor<?xf32>
  %n = tensor.dim %p, %axis : tensor<?xf32>
  return %n : index
}

// Maps that are more than loops: the ends of what they reach.

// CHECK-LABEL: func.func @stepping(
// CHECK:         "argument 0 of 'stepping': expected positions from 0 on axis 0, but got {0}"
// CHECK:         "argument 0 of 'stepping': expected size {1} or more on axis 0, but got {0}"
// CHECK:         linalg.generic
func.func @stepping(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xf32> {
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i * 2 - 1)>, #id], iterator_types = ["parallel"]}
      ins(%a : tensor<?xf32>) outs(%b : tensor<?xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}

// An axis that may have no elements is not read at 0.

// CHECK-LABEL: func.func @first_of_none(
// CHECK:         "argument 0 of 'first_of_none': expected size {1} or more on axis 0, but got {0}"
func.func @first_of_none(%a: tensor<?xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (0)>, #id], iterator_types = ["parallel"]}
      ins(%a : tensor<?xf32>) outs(%b : tensor<4xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<4xf32>
  return %r : tensor<4xf32>
}

// Keys are as many as values, and the result has as many rows as the queries.

// CHECK-LABEL: func.func @attention(
// CHECK-DAG:     "argument 2 of 'attention': expected size {1} on axis 2, as on axis 2 of argument 0, but got {0}"
// CHECK-DAG:     "argument 3 of 'attention': expected size {1} on axis 2, as on axis 2 of argument 1, but got {0}"
// CHECK-DAG:     "argument 4 of 'attention': expected size {1} on axis 2, as on axis 2 of argument 1, but got {0}"
// CHECK:         diffattn.attention
func.func @attention(%q1: tensor<1x2x?x16xf32>, %k1: tensor<1x2x?x16xf32>, %q2: tensor<1x2x?x16xf32>, %k2: tensor<1x2x?x16xf32>, %v: tensor<1x2x?x32xf32>, %l: tensor<f32>) -> tensor<1x2x?x32xf32> {
  %c2 = arith.constant 2 : index
  %n = tensor.dim %q1, %c2 : tensor<1x2x?x16xf32>
  %e = tensor.empty(%n) : tensor<1x2x?x32xf32>
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<1x2x?x16xf32>, tensor<1x2x?x16xf32>, tensor<1x2x?x16xf32>, tensor<1x2x?x16xf32>, tensor<1x2x?x32xf32>) lambda(%l : tensor<f32>) outs(%e : tensor<1x2x?x32xf32>) {scale = 0.25 : f32} -> tensor<1x2x?x32xf32>
  return %o : tensor<1x2x?x32xf32>
}

// What a caller promised is checked where types leave it open.

// CHECK-LABEL: func.func @bounds(
// CHECK:         "argument 0 of 'bounds': expected size 3 or more on axis 2, but got {0}"
// CHECK:         "argument 0 of 'bounds': expected size 8 or less on axis 2, but got {1}"
// CHECK-NOT:     cf.assert
// CHECK:         diffattn.attention
func.func @bounds(%q: memref<1x2x?x16xf32>, %k: memref<1x2x40x16xf32>, %l: memref<f32>) {
  diffattn.attention ins(%q, %k, %q, %k, %k : memref<1x2x?x16xf32>, memref<1x2x40x16xf32>, memref<1x2x?x16xf32>, memref<1x2x40x16xf32>, memref<1x2x40x16xf32>)
    lambda(%l : memref<f32>) outs(%q : memref<1x2x?x16xf32>)
    {scale = 0.25 : f32, size_bounds = #diffattn.size_bounds<min_queries = 3, max_queries = 8, min_keys = 9>}
  return
}

// Every rule of the verifier, on memrefs too: heads are there before they divide others, sizes may be 1, or one of two.

// CHECK-LABEL: func.func @heads(
// CHECK:         "argument 1 of 'heads': expected size 1 or more on axis 1, but got {0}"
// CHECK:         "argument 1 of 'heads': expected size {1} on axis 3, as on axis 3 of argument 0, but got {0}"
// CHECK:         "argument 2 of 'heads': expected a size that divides {1} on axis 1, the size of axis 1 of argument 0, but got {0}"
// CHECK:         "argument 1 of 'heads': expected a size that divides {1} on axis 1, the size of axis 1 of argument 0, but got {0}"
// CHECK:         "argument 4 of 'heads': expected size of axis 1 of argument 0 or {1} on axis 2, as on axis 1 of argument 2, but got {0}"
// CHECK:         "argument 5 of 'heads': expected size 1 or {1} on axis 1, as on axis 1 of argument 2, but got {0}"
// CHECK:         diffattn.attention
func.func @heads(%q1: memref<1x?x8x?xf32>, %k: memref<1x?x8x?xf32>, %q2: memref<1x?x8x?xf32>, %v: memref<1x1x8x16xf32>,
                 %l: memref<1x8x?xf32>, %b: memref<1x?x1x8xf32>, %o: memref<1x?x8x16xf32>) {
  diffattn.attention ins(%q1, %k, %q2, %k, %v : memref<1x?x8x?xf32>, memref<1x?x8x?xf32>, memref<1x?x8x?xf32>, memref<1x?x8x?xf32>, memref<1x1x8x16xf32>)
    lambda(%l : memref<1x8x?xf32>) bias(%b : memref<1x?x1x8xf32>) outs(%o : memref<1x?x8x16xf32>) {scale = 0.25 : f32}
  return
}

// CHECK-LABEL: func.func @states(
// CHECK:         "argument 1 of 'states': expected size {1} on axis 2, as on axis 2 of argument 0, but got {0}"
// CHECK:         "argument 2 of 'states': expected size {1} on axis 2, as on axis 2 of argument 0, but got {0}"
// CHECK:         diffattn.merge
func.func @states(%m: tensor<1x4x?xf32>, %s: tensor<1x4x?xf32>, %a: tensor<1x4x?x8xf32>) -> (tensor<1x4x?xf32>, tensor<1x4x?xf32>, tensor<1x4x?x8xf32>) {
  %r:3 = diffattn.merge ins(%m, %s, %a : tensor<1x4x?xf32>, tensor<1x4x?xf32>, tensor<1x4x?x8xf32>)
           outs(%m, %s, %a : tensor<1x4x?xf32>, tensor<1x4x?xf32>, tensor<1x4x?x8xf32>) -> tensor<1x4x?xf32>, tensor<1x4x?xf32>, tensor<1x4x?x8xf32>
  return %r#0, %r#1, %r#2 : tensor<1x4x?xf32>, tensor<1x4x?xf32>, tensor<1x4x?x8xf32>
}

// CHECK-LABEL: func.func @product(
// CHECK:         "argument 1 of 'product': expected size {1} on axis 1, as on axis 1 of argument 0, but got {0}"
// CHECK:         "argument 2 of 'product': expected size {1} on axis 0, as on axis 0 of argument 0, but got {0}"
// CHECK:         "argument 2 of 'product': expected size {1} on axis 1, as on axis 0 of argument 1, but got {0}"
// CHECK:         diffattn.gemm
func.func @product(%a: memref<?x?xf32>, %b: memref<?x?xf32>, %c: memref<?x?xf32>) {
  diffattn.gemm ins(%a, %b : memref<?x?xf32>, memref<?x?xf32>) outs(%c : memref<?x?xf32>) {transpose_b}
  return
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

// A softmax states that its shapes agree, which is what has to be checked.

// CHECK-LABEL: func.func @softmax_into_known_sizes(
// CHECK:         "argument 0 of 'softmax_into_known_sizes': expected size 5 on axis 1, but got {0}"
func.func @softmax_into_known_sizes(%x: tensor<1x?xf32>, %z: tensor<1x5xf32>) -> tensor<1x5xf32> {
  %r = linalg.softmax dimension(1) ins(%x : tensor<1x?xf32>) outs(%z : tensor<1x5xf32>) -> tensor<1x5xf32>
  return %r : tensor<1x5xf32>
}

// Numbers of segments are as many as queries and keys.

// CHECK-LABEL: func.func @segments(
// CHECK-DAG:     cf.assert %{{.+}}, "argument 3 of 'segments': expected size {1} on axis 1, as on axis 2 of argument 0, but got {0}"
// CHECK-DAG:     cf.assert %{{.+}}, "argument 4 of 'segments': expected size {1} on axis 1, as on axis 2 of argument 1, but got {0}"
// CHECK:         diffattn.attention
func.func @segments(%q: tensor<1x1x?x8xf32>, %k: tensor<1x1x?x8xf32>, %l: tensor<f32>, %qs: tensor<1x?xi64>, %ks: tensor<1x?xi64>,
                    %o: tensor<1x1x?x8xf32>) -> tensor<1x1x?x8xf32> {
  %r = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x1x?x8xf32>, tensor<1x1x?x8xf32>, tensor<1x1x?x8xf32>, tensor<1x1x?x8xf32>,
      tensor<1x1x?x8xf32>) lambda(%l : tensor<f32>) q_segments(%qs : tensor<1x?xi64>) kv_segments(%ks : tensor<1x?xi64>)
      outs(%o : tensor<1x1x?x8xf32>) {scale = 1.0 : f32} -> tensor<1x1x?x8xf32>
  return %r : tensor<1x1x?x8xf32>
}

// What tables of sequences hold, before anything is computed; nothing of it where the host cannot read them.

// CHECK-LABEL: func.func @packed(
// CHECK-SAME:      %[[BQ:[^:,]+]]: tensor<?xi32>, %{{[^:]+}}: tensor<?xi32>
// CHECK:         cf.assert %{{.+}}, "attention: expected q_offset of length {1}, the number of sequences, but got {0}"
// CHECK:         tensor.extract %[[BQ]][%c0{{.*}}]
// CHECK:         cf.assert %{{.+}}, "attention: expected cu_seqlens_q to begin with 0, but got {0}"
// CHECK:         scf.for %[[N:.+]] = %c1
// CHECK:           cf.assert %{{.+}}, "attention: expected cu_seqlens_q not to fall below {1}, but got {0}"
// CHECK:         cf.assert %{{.+}}, "attention: expected cu_seqlens_q to end with {1}, the number of queries, but got {0}"
// CHECK:         cf.assert %{{.+}}, "attention: expected cu_seqlens_k to end with {1}, the number of keys, but got {0}"
// CHECK:         diffattn.attention
// DEVICE-LABEL: func.func @packed(
// DEVICE-NOT:     cf.assert {{.+}}"attention: expected
// DEVICE:         return
func.func @packed(%q: tensor<1x1x?x8xf32>, %k: tensor<1x1x?x8xf32>, %l: tensor<f32>, %off: tensor<?xi64>, %bq: tensor<?xi32>, %bk: tensor<?xi32>,
                  %o: tensor<1x1x?x8xf32>) -> tensor<1x1x?x8xf32> {
  %r = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x1x?x8xf32>, tensor<1x1x?x8xf32>, tensor<1x1x?x8xf32>, tensor<1x1x?x8xf32>,
      tensor<1x1x?x8xf32>) lambda(%l : tensor<f32>) q_offset(%off : tensor<?xi64>)
      cu_seqlens_q(%bq : tensor<?xi32>) cu_seqlens_k(%bk : tensor<?xi32>)
      outs(%o : tensor<1x1x?x8xf32>) {scale = 1.0 : f32} -> tensor<1x1x?x8xf32>
  return %r : tensor<1x1x?x8xf32>
}

// Pages that a length counts.

// CHECK-LABEL: func.func @paged(
// CHECK-SAME:      %[[LEN:[^:]+]]: memref<?xi64>, %[[TABLE:[^:]+]]: memref<?x?xi32>
// CHECK:         scf.for %[[B:.+]] = %c0
// CHECK:           %[[KEYS:.+]] = memref.load %[[LEN]][%[[B]]]
// CHECK:           %[[USED:.+]] = arith.ceildivui
// CHECK:           scf.for %[[M:.+]] = %c0{{.*}} to %[[USED]]
// CHECK:             memref.load %[[TABLE]][%[[B]], %[[M]]]
// CHECK:             cf.assert %{{.+}}, "attention: expected pages from 0 and below {1} in block_table, but got {0}"
// CHECK:         diffattn.attention
// DEVICE-LABEL: func.func @paged(
// DEVICE-NOT:     memref.load
// DEVICE:         return
func.func @paged(%q: memref<?x1x?x8xf32>, %k: memref<?x1x16x8xf32>, %l: memref<f32>, %len: memref<?xi64>, %table: memref<?x?xi32>,
                 %o: memref<?x1x?x8xf32>) {
  diffattn.attention ins(%q, %k, %q, %k, %k : memref<?x1x?x8xf32>, memref<?x1x16x8xf32>, memref<?x1x?x8xf32>, memref<?x1x16x8xf32>,
      memref<?x1x16x8xf32>) lambda(%l : memref<f32>) kv_len(%len : memref<?xi64>) block_table(%table : memref<?x?xi32>)
      outs(%o : memref<?x1x?x8xf32>) {scale = 1.0 : f32}
  return
}
