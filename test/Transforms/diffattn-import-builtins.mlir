// RUN: diffattn-opt %s --diffattn-import-builtins --split-input-file | FileCheck %s

// An attention with names for its operands: words are enumerations, the result is as long as q1, and the declaration is gone.

// CHECK-NOT:   func.func private
// CHECK-LABEL: func.func @attention(
// CHECK-SAME:      %[[Q:[^:]+]]: tensor<2x4x?x16xf32>, %[[K:[^:]+]]: tensor<2x4x?x16xf32>, %[[V:[^:]+]]: tensor<2x4x?x32xf32>,
// CHECK-SAME:      %[[L:[^:]+]]: tensor<f32>, %[[LEN:[^:]+]]: tensor<2xi64>)
// CHECK:         %[[NEGATIVE:.+]] = linalg.generic {{.+}} iterator_types = ["reduction"]} ins(%[[LEN]] : tensor<2xi64>)
// CHECK:           arith.cmpi slt, %{{.+}}, %c0_i64
// CHECK:         %[[COUNT:.+]] = tensor.extract %[[NEGATIVE]][]
// CHECK:         %[[FITS:.+]] = arith.cmpi eq, %[[COUNT]], %c0_i64
// CHECK:         cf.assert %[[FITS]], "kv_len: expected 0 to 9223372036854775807, but got a negative number"
// CHECK:         %[[ROWS:.+]] = tensor.dim %[[Q]], %c2
// CHECK:         %[[INIT:.+]] = tensor.empty(%[[ROWS]]) : tensor<2x4x?x32xf32>
// CHECK:         %[[Y:.+]] = diffattn.attention ins(%[[Q]], %[[K]], %[[Q]], %[[K]], %[[V]] :
// CHECK-SAME:        lambda(%[[L]] : tensor<f32>) kv_len(%[[LEN]] : tensor<2xi64>) outs(%[[INIT]] : tensor<2x4x?x32xf32>)
// CHECK-SAME:        {is_causal, lambda_act = #diffattn.activation<sigmoid>, norm = #diffattn.norm<rms>, norm_eps_mode = #diffattn.eps_mode<outside>,
// CHECK-SAME:        scale = 2.500000e-01 : f32, window = array<i64: 8, -1>}
// CHECK:         return %[[Y]]
func.func private @diffattn_attention_0(tensor<2x4x?x32xf32>, tensor<2x4x?x16xf32>, tensor<2x4x?x16xf32>, tensor<2x4x?x16xf32>, tensor<2x4x?x16xf32>,
    tensor<2xi64>, tensor<f32>) -> tensor<2x4x?x32xf32> attributes {diffattn.builtin = "attention", diffattn.options = {
      operands = ["v", "q1", "k1", "q2", "k2", "kv_len", "lambda"], scale = 0.25 : f32, is_causal, window = array<i64: 8, -1>,
      lambda_act = "sigmoid", norm = "rms", norm_eps_mode = "outside"}}
func.func @attention(%q: tensor<2x4x?x16xf32>, %k: tensor<2x4x?x16xf32>, %v: tensor<2x4x?x32xf32>, %l: tensor<f32>, %len: tensor<2xi64>)
    -> tensor<2x4x?x32xf32> {
  %y = call @diffattn_attention_0(%v, %q, %k, %q, %k, %len, %l) : (tensor<2x4x?x32xf32>, tensor<2x4x?x16xf32>, tensor<2x4x?x16xf32>,
    tensor<2x4x?x16xf32>, tensor<2x4x?x16xf32>, tensor<2xi64>, tensor<f32>) -> tensor<2x4x?x32xf32>
  return %y : tensor<2x4x?x32xf32>
}

// -----

// Without names there are six operands. The result's axes are found by the layouts.

// CHECK-LABEL: func.func @layouts(
// CHECK-SAME:      %[[Q:[^:]+]]: tensor<?x?x4x16xf32>
// CHECK-DAG:     %[[B:.+]] = tensor.dim %[[Q]], %c0
// CHECK-DAG:     %[[T:.+]] = tensor.dim %[[Q]], %c1
// CHECK:         tensor.empty(%[[B]], %[[T]]) : tensor<?x4x?x32xf32>
// CHECK:         diffattn.attention
// CHECK-SAME:      {q_layout = #diffattn.layout<bthd>, scale = 1.000000e+00 : f32}
func.func private @f(tensor<?x?x4x16xf32>, tensor<?x4x?x16xf32>, tensor<?x?x4x16xf32>, tensor<?x4x?x16xf32>, tensor<?x4x?x32xf32>, tensor<f32>)
    -> tensor<?x4x?x32xf32> attributes {diffattn.builtin = "attention", diffattn.options = {scale = 1.0 : f32, q_layout = "bthd"}}
func.func @layouts(%q: tensor<?x?x4x16xf32>, %k: tensor<?x4x?x16xf32>, %v: tensor<?x4x?x32xf32>, %l: tensor<f32>) -> tensor<?x4x?x32xf32> {
  %y = call @f(%q, %k, %q, %k, %v, %l) : (tensor<?x?x4x16xf32>, tensor<?x4x?x16xf32>, tensor<?x?x4x16xf32>, tensor<?x4x?x16xf32>,
    tensor<?x4x?x32xf32>, tensor<f32>) -> tensor<?x4x?x32xf32>
  return %y : tensor<?x4x?x32xf32>
}

// -----

// Rows are inserted one by one, and where they are added, to what is there.

// CHECK-LABEL: func.func @rows(
// CHECK-SAME:      %[[X:[^:]+]]: tensor<?x8x4xf32>, %[[I:[^:]+]]: tensor<?xi64>, %[[S:[^:]+]]: tensor<?x?x4xf32>)
// CHECK:         %[[WRITTEN:.+]] = scf.for %[[N:.+]] = %c0{{.*}} to %{{.+}} step %c1{{.*}} iter_args(%[[C:.+]] = %[[X]])
// CHECK:           %[[AT:.+]] = tensor.extract %[[I]][%[[N]]]
// CHECK:           %[[PLACE:.+]] = arith.index_cast %[[AT]]
// CHECK:           %[[ROW:.+]] = tensor.extract_slice %[[S]][0, %[[N]], 0] [%{{.+}}, 1, 4] [1, 1, 1]
// CHECK-NOT:       linalg.add
// CHECK:           tensor.insert_slice %[[ROW]] into %[[C]][0, %[[PLACE]], 0]
// CHECK:         scf.for {{.+}} iter_args(%[[Y:.+]] = %[[WRITTEN]])
// CHECK:           %[[NEW:.+]] = tensor.extract_slice %[[S]]
// CHECK:           %[[OLD:.+]] = tensor.extract_slice %[[Y]]
// CHECK:           linalg.add ins(%[[OLD]], %[[NEW]] : {{.+}} outs(%[[OLD]]
func.func private @write(tensor<?x8x4xf32>, tensor<?xi64>, tensor<?x?x4xf32>) -> tensor<?x8x4xf32>
  attributes {diffattn.builtin = "write_rows", diffattn.options = {axis = 1, adds = 0}}
func.func private @add(tensor<?x8x4xf32>, tensor<?xi64>, tensor<?x?x4xf32>) -> tensor<?x8x4xf32>
  attributes {diffattn.builtin = "write_rows", diffattn.options = {axis = 1, adds}}
func.func @rows(%x: tensor<?x8x4xf32>, %i: tensor<?xi64>, %s: tensor<?x?x4xf32>) -> tensor<?x8x4xf32> {
  %0 = call @write(%x, %i, %s) : (tensor<?x8x4xf32>, tensor<?xi64>, tensor<?x?x4xf32>) -> tensor<?x8x4xf32>
  %1 = call @add(%0, %i, %s) : (tensor<?x8x4xf32>, tensor<?xi64>, tensor<?x?x4xf32>) -> tensor<?x8x4xf32>
  return %1 : tensor<?x8x4xf32>
}

// -----

// Each group has the rows up to its end, which does not fall and does not lie behind the rows.

// CHECK-LABEL: func.func @groups(
// CHECK-SAME:      %[[X:[^:]+]]: tensor<?x8xbf16>, %[[W:[^:]+]]: tensor<3x5x8xbf16>, %[[ENDS:[^:]+]]: tensor<3xi32>)
// CHECK:         %[[ROWS:.+]] = tensor.dim %[[X]], %c0
// CHECK:         scf.for %[[G:.+]] = {{.+}} iter_args(%[[Y:.+]] = %{{.+}}, %[[BEGIN:.+]] = %c0{{.*}})
// CHECK:           %[[INSIDE:.+]] = arith.minsi %{{.+}}, %[[ROWS]]
// CHECK:           %[[END:.+]] = arith.maxsi %[[INSIDE]], %[[BEGIN]]
// CHECK:           %[[COUNT:.+]] = arith.subi %[[END]], %[[BEGIN]]
// CHECK-DAG:       %[[M:.+]] = tensor.extract_slice %[[W]][%[[G]], 0, 0] [1, 5, 8] [1, 1, 1] : tensor<3x5x8xbf16> to tensor<5x8xbf16>
// CHECK-DAG:       %[[PART:.+]] = tensor.extract_slice %[[X]][%[[BEGIN]], 0] [%[[COUNT]], 8]
// CHECK:           linalg.matmul indexing_maps = {{.+}} ins(%[[PART]], %[[M]] : tensor<?x8xbf16>, tensor<5x8xbf16>)
// CHECK:           scf.yield %{{.+}}, %[[END]]
func.func private @products(tensor<?x8xbf16>, tensor<3x5x8xbf16>, tensor<3xi32>) -> tensor<?x5xf32>
  attributes {diffattn.builtin = "grouped_gemm", diffattn.options = {transposed = 1}}
func.func @groups(%x: tensor<?x8xbf16>, %w: tensor<3x5x8xbf16>, %ends: tensor<3xi32>) -> tensor<?x5xf32> {
  %y = call @products(%x, %w, %ends) : (tensor<?x8xbf16>, tensor<3x5x8xbf16>, tensor<3xi32>) -> tensor<?x5xf32>
  return %y : tensor<?x5xf32>
}

// -----

// Nothing calls it, and it goes.

// CHECK-NOT:   func.func private
// CHECK-LABEL: func.func @main
func.func private @unused(tensor<2x4xf32>) -> tensor<2x4xi64> attributes {diffattn.builtin = "argsort"}
func.func @main() {
  return
}
