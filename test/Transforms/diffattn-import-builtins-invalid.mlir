// RUN: diffattn-opt %s --diffattn-import-builtins --split-input-file --verify-diagnostics

// expected-error @below {{expected diffattn.builtin to be one of argsort, attention, grouped_gemm, write_rows, but got "softmax"}}
func.func private @import_c6(tensor<4xf32>) -> tensor<4xf32> attributes {diffattn.builtin = "softmax"}

// -----

// expected-error @below {{expected diffattn.builtin to be one of argsort, attention, grouped_gemm, write_rows, but got 5 : i64}}
func.func private @import_c6_kind(tensor<4xf32>) -> tensor<4xf32> attributes {diffattn.builtin = 5}

// -----

// expected-error @below {{expected a private function without a body as builtin 'argsort', but got 'import_c6_body'}}
func.func private @import_c6_body(%x: tensor<2x4xf32>) -> tensor<2x4xf32> attributes {diffattn.builtin = "argsort"} {
  return %x : tensor<2x4xf32>
}

// -----

func.func private @import_c6_use(tensor<2x4xf32>) -> tensor<2x4xi64> attributes {diffattn.builtin = "argsort"}
func.func @main() -> ((tensor<2x4xf32>) -> tensor<2x4xi64>) {
  // expected-error @below {{expected builtin 'argsort' to be called, but got it in 'func.constant'}}
  %f = constant @import_c6_use : (tensor<2x4xf32>) -> tensor<2x4xi64>
  return %f : (tensor<2x4xf32>) -> tensor<2x4xi64>
}

// -----

// expected-error @below {{expected diffattn.options to be a dictionary, but got 5 : i64}}
func.func private @import_c7(tensor<2x4xf32>) -> tensor<2x4xi64> attributes {diffattn.builtin = "argsort", diffattn.options = 5}

// -----

// expected-error @below {{expected options of MLIR's own attributes and private functions, but got #diffattn.norm<rms>}}
func.func private @import_c7_own(tensor<2x4xf32>) -> tensor<2x4xi64>
  attributes {diffattn.builtin = "attention", diffattn.options = {norm = #diffattn.norm<rms>}}

// -----

// expected-error @below {{expected options of MLIR's own attributes and private functions, but got @main}}
func.func private @import_c7_symbol(tensor<2x4xf32>) -> tensor<2x4xi64>
  attributes {diffattn.builtin = "attention", diffattn.options = {score = @main}}
func.func @main() {
  return
}

// -----

// expected-error @below {{builtin 'argsort': expected options of first, descending, but got 'last'}}
func.func private @import_c7_other(tensor<2x4xf32>) -> tensor<2x4xi64>
  attributes {diffattn.builtin = "argsort", diffattn.options = {last = 1}}
func.func @main(%x: tensor<2x4xf32>) {
  %0 = call @import_c7_other(%x) : (tensor<2x4xf32>) -> tensor<2x4xi64>
  return
}

// -----

// expected-error @below {{builtin 'argsort': expected a tensor of rank 2 as operand 0, but got 'tensor<4xf32>'}}
func.func private @import_c8(tensor<4xf32>) -> tensor<4xi64> attributes {diffattn.builtin = "argsort"}
func.func @main(%x: tensor<4xf32>) {
  %0 = call @import_c8(%x) : (tensor<4xf32>) -> tensor<4xi64>
  return
}

// -----

// expected-error @below {{builtin 'argsort': expected a tensor of rank 2 as the result, but got 'tensor<4xi64>'}}
func.func private @import_c8_result(tensor<2x4xf32>) -> tensor<4xi64> attributes {diffattn.builtin = "argsort"}
func.func @main(%x: tensor<2x4xf32>) {
  %0 = call @import_c8_result(%x) : (tensor<2x4xf32>) -> tensor<4xi64>
  return
}

// -----

// expected-error @below {{builtin 'argsort': expected rows of floats or integers and places of i64, but got 'tensor<2x4xf32>' and 'tensor<2x4xi32>'}}
func.func private @import_c8_places(tensor<2x4xf32>) -> tensor<2x4xi32> attributes {diffattn.builtin = "argsort"}
func.func @main(%x: tensor<2x4xf32>) {
  %0 = call @import_c8_places(%x) : (tensor<2x4xf32>) -> tensor<2x4xi32>
  return
}

// -----

// expected-error @below {{builtin 'argsort': expected 3 places in each row, but got 'tensor<2x4xi64>'}}
func.func private @import_c8_first(tensor<2x4xf32>) -> tensor<2x4xi64>
  attributes {diffattn.builtin = "argsort", diffattn.options = {first = 3}}
func.func @main(%x: tensor<2x4xf32>) {
  %0 = call @import_c8_first(%x) : (tensor<2x4xf32>) -> tensor<2x4xi64>
  return
}

// -----

// expected-error @below {{builtin 'argsort': expected 1 operands and one result, but got 0 and 1}}
func.func private @import_c8_operands() -> tensor<2x4xi64> attributes {diffattn.builtin = "argsort"}
func.func @main() {
  %0 = call @import_c8_operands() : () -> tensor<2x4xi64>
  return
}

// -----

// expected-error @below {{builtin 'write_rows': expected x, index and source, but got 1 operands}}
func.func private @import_c8_rows(tensor<2x4xf32>) -> tensor<2x4xf32> attributes {diffattn.builtin = "write_rows"}
func.func @main(%x: tensor<2x4xf32>) {
  %0 = call @import_c8_rows(%x) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return
}

// -----

// expected-error @below {{builtin 'write_rows': expected integers as index, and a source and result of x's elements, but got 'tensor<2xi64>', 'tensor<2x4xf16>' and 'tensor<2x4xf32>'}}
func.func private @import_c8_source(tensor<2x4xf32>, tensor<2xi64>, tensor<2x4xf16>) -> tensor<2x4xf32> attributes {diffattn.builtin = "write_rows"}
func.func @main(%x: tensor<2x4xf32>, %i: tensor<2xi64>, %s: tensor<2x4xf16>) {
  %0 = call @import_c8_source(%x, %i, %s) : (tensor<2x4xf32>, tensor<2xi64>, tensor<2x4xf16>) -> tensor<2x4xf32>
  return
}

// -----

// expected-error @below {{builtin 'grouped_gemm': expected rows and matrices of one type of floats, and integers as ends}}
func.func private @import_c8_groups(tensor<4x8xf32>, tensor<2x8x3xf16>, tensor<2xi32>) -> tensor<4x3xf32> attributes {diffattn.builtin = "grouped_gemm"}
func.func @main(%x: tensor<4x8xf32>, %w: tensor<2x8x3xf16>, %e: tensor<2xi32>) {
  %0 = call @import_c8_groups(%x, %w, %e) : (tensor<4x8xf32>, tensor<2x8x3xf16>, tensor<2xi32>) -> tensor<4x3xf32>
  return
}

// -----

// expected-error @below {{builtin 'attention': expected q1, v and one result of rank 4}}
func.func private @import_c8_attention(tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  attributes {diffattn.builtin = "attention", diffattn.options = {operands = ["q1", "v"]}}
func.func @main(%x: tensor<4xf32>) {
  %0 = call @import_c8_attention(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

// expected-error @below {{builtin 'attention': expected operands to list the names of 1 operands, but got ["q1", "k1"]}}
func.func private @import_c9(tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  attributes {diffattn.builtin = "attention", diffattn.options = {operands = ["q1", "k1"]}}
func.func @main(%x: tensor<1x1x2x4xf32>) {
  %0 = call @import_c9(%x) : (tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  return
}

// -----

// expected-error @below {{builtin 'attention': expected each operand once, of q1, k1, q2, k2, v, lambda, bias, norm_weight, gate, kv_len, q_offset, q_segments, kv_segments, cu_seqlens_q, cu_seqlens_k, block_table, sink, sink2, but got "q1"}}
func.func private @import_c9_twice(tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  attributes {diffattn.builtin = "attention", diffattn.options = {operands = ["q1", "q1"]}}
func.func @main(%x: tensor<1x1x2x4xf32>) {
  %0 = call @import_c9_twice(%x, %x) : (tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  return
}

// -----

// expected-error @below {{builtin 'attention': expected 6 operands without operands that names them, but got 1}}
func.func private @import_c9_default(tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32> attributes {diffattn.builtin = "attention"}
func.func @main(%x: tensor<1x1x2x4xf32>) {
  %0 = call @import_c9_default(%x) : (tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  return
}

// -----

// expected-error @below {{builtin 'argsort': expected first to be an i64 from 0, but got -1 : i64}}
func.func private @import_c10(tensor<2x4xf32>) -> tensor<2x4xi64>
  attributes {diffattn.builtin = "argsort", diffattn.options = {first = -1}}
func.func @main(%x: tensor<2x4xf32>) {
  %0 = call @import_c10(%x) : (tensor<2x4xf32>) -> tensor<2x4xi64>
  return
}

// -----

// expected-error @below {{builtin 'argsort': expected descending to be 0 or 1, but got 2}}
func.func private @import_c10_flag(tensor<2x4xf32>) -> tensor<2x4xi64>
  attributes {diffattn.builtin = "argsort", diffattn.options = {descending = 2}}
func.func @main(%x: tensor<2x4xf32>) {
  %0 = call @import_c10_flag(%x) : (tensor<2x4xf32>) -> tensor<2x4xi64>
  return
}

// -----

// expected-error @below {{builtin 'write_rows': expected an axis below 2, but got 2}}
func.func private @import_c10_axis(tensor<2x4xf32>, tensor<2xi64>, tensor<2x4xf32>) -> tensor<2x4xf32>
  attributes {diffattn.builtin = "write_rows", diffattn.options = {axis = 2}}
func.func @main(%x: tensor<2x4xf32>, %i: tensor<2xi64>) {
  %0 = call @import_c10_axis(%x, %i, %x) : (tensor<2x4xf32>, tensor<2xi64>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return
}

// -----

// expected-error @below {{builtin 'attention': expected options that diffattn.attention has, but got 'schedules'}}
func.func private @import_c10_schedules(tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  attributes {diffattn.builtin = "attention", diffattn.options = {operands = ["q1", "v"], schedules = []}}
func.func @main(%x: tensor<1x1x2x4xf32>) {
  %0 = call @import_c10_schedules(%x, %x) : (tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  return
}

// -----

// expected-error @below {{builtin 'attention': expected another value as norm, but got "layer"}}
func.func private @import_c10_word(tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  attributes {diffattn.builtin = "attention", diffattn.options = {operands = ["q1", "v"], norm = "layer"}}
func.func @main(%x: tensor<1x1x2x4xf32>) {
  %0 = call @import_c10_word(%x, %x) : (tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  return
}

// -----

// expected-error @below {{builtin 'attention': attribute 'window' failed to satisfy constraint: i64 dense array attribute}}
func.func private @import_c10_type(tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  attributes {diffattn.builtin = "attention", diffattn.options = {operands = ["q1", "v"], window = 5}}
func.func @main(%x: tensor<1x1x2x4xf32>) {
  %0 = call @import_c10_type(%x, %x) : (tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  return
}

// -----

// expected-error @below {{builtin 'argsort': expected one size on axis 0 of 'tensor<2x4xf32>' and axis 0 of 'tensor<3x4xi64>'}}
func.func private @import_c8_sorted(tensor<2x4xf32>) -> tensor<3x4xi64> attributes {diffattn.builtin = "argsort"}
func.func @main(%x: tensor<2x4xf32>) {
  %0 = call @import_c8_sorted(%x) : (tensor<2x4xf32>) -> tensor<3x4xi64>
  return
}

// -----

// expected-error @below {{builtin 'grouped_gemm': expected one size on axis 1 of 'tensor<4x8xf32>' and axis 1 of 'tensor<2x9x3xf32>'}}
func.func private @import_c8_depth(tensor<4x8xf32>, tensor<2x9x3xf32>, tensor<2xi32>) -> tensor<4x3xf32> attributes {diffattn.builtin = "grouped_gemm"}
func.func @main(%x: tensor<4x8xf32>, %w: tensor<2x9x3xf32>, %e: tensor<2xi32>) {
  %0 = call @import_c8_depth(%x, %w, %e) : (tensor<4x8xf32>, tensor<2x9x3xf32>, tensor<2xi32>) -> tensor<4x3xf32>
  return
}

// -----

// expected-error @below {{builtin 'write_rows': expected one size on axis 0 of 'tensor<3x4xf32>' and axis 0 of 'tensor<2xi64>'}}
func.func private @import_c8_places_of_rows(tensor<5x4xf32>, tensor<2xi64>, tensor<3x4xf32>) -> tensor<5x4xf32> attributes {diffattn.builtin = "write_rows"}
func.func @main(%x: tensor<5x4xf32>, %i: tensor<2xi64>, %s: tensor<3x4xf32>) {
  %0 = call @import_c8_places_of_rows(%x, %i, %s) : (tensor<5x4xf32>, tensor<2xi64>, tensor<3x4xf32>) -> tensor<5x4xf32>
  return
}
