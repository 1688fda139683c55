// RUN: diffattn-opt %s --split-input-file --pass-pipeline="builtin.module(func.func(diffattn-fuse-gated-gemms{isa=amx}))" | FileCheck %s --implicit-check-not=gated_gemm

// What is not a gate of two products with weights: in each function one thing differs from what is fused.
#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (0, j)>

// Another op reads the gate.
// CHECK-LABEL: func.func @gate_read_twice(
func.func @gate_read_twice(%x: tensor<4x64xbf16>) -> (tensor<4x96xbf16>, tensor<4x96xf32>) {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y, %g : tensor<4x96xbf16>, tensor<4x96xf32>
}

// Another op reads what is gated.
// CHECK-LABEL: func.func @up_read_twice(
func.func @up_read_twice(%x: tensor<4x64xbf16>) -> (tensor<4x96xbf16>, tensor<4x96xf32>) {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y, %u : tensor<4x96xbf16>, tensor<4x96xf32>
}

// The products have different rows.
// CHECK-LABEL: func.func @other_rows(
func.func @other_rows(%x: tensor<4x64xbf16>, %z: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%z, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// The gate adds to what is there.
// CHECK-LABEL: func.func @adds_up(
func.func @adds_up(%x: tensor<4x64xbf16>, %old: tensor<4x96xf32>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%old : tensor<4x96xf32>) {transpose_b, accumulate} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// A second operand that may change from call to call.
// CHECK-LABEL: func.func @argument(
func.func @argument(%x: tensor<4x64xbf16>, %wu: tensor<96x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  // an argument
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// One row of the gate for all.
// CHECK-LABEL: func.func @broadcast(
func.func @broadcast(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#row, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// The gate gates itself.
// CHECK-LABEL: func.func @gates_itself(
func.func @gates_itself(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %a : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// Another activation.
// CHECK-LABEL: func.func @tanh(
func.func @tanh(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = math.tanh %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// exp(g) instead of exp(-g).
// CHECK-LABEL: func.func @other_sign(
func.func @other_sign(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.addf %a, %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// 2 + exp(-g).
// CHECK-LABEL: func.func @other_term(
func.func @other_term(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %two = arith.constant 2.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %two, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// 2 / (1 + exp(-g)).
// CHECK-LABEL: func.func @other_numerator(
func.func @other_numerator(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %two = arith.constant 2.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %two, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// g / (1 + exp(-g)) rounds once less.
// CHECK-LABEL: func.func @quotient(
func.func @quotient(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %4 = arith.divf %a, %2 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// The sigmoid of one product times the other.
// CHECK-LABEL: func.func @other_gate(
func.func @other_gate(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %b, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// g * (u * sigmoid(g)).
// CHECK-LABEL: func.func @other_order(
func.func @other_order(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %b, %3 : f32
    %5 = arith.mulf %4, %a : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// The sum is rounded in one of its uses alone.
// CHECK-LABEL: func.func @one_use_rounded(
func.func @one_use_rounded(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %r = arith.truncf %a : f32 to bf16
    %w = arith.extf %r : bf16 to f32
    %0 = arith.negf %w : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// The sum of the gate is rounded, and not the other.
// CHECK-LABEL: func.func @one_sum_rounded(
func.func @one_sum_rounded(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %r = arith.truncf %a : f32 to bf16
    %w = arith.extf %r : bf16 to f32
    %0 = arith.negf %w : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %w, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// A rounding to another type.
// CHECK-LABEL: func.func @other_type(
func.func @other_type(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %h = arith.truncf %3 : f32 to f16
    %k = arith.extf %h : f16 to f32
    %4 = arith.mulf %a, %k : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// An op that may be computed in another way.
// CHECK-LABEL: func.func @flags(
func.func @flags(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 fastmath<arcp> : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// What is there is a factor, and not the other product.
// CHECK-LABEL: func.func @times_init(
func.func @times_init(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %w = arith.extf %o : bf16 to f32
    %5 = arith.mulf %4, %w : f32
    %6 = arith.truncf %5 : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}

// The result is rounded and then stored as f32.
// CHECK-LABEL: func.func @widened(
func.func @widened(%x: tensor<4x64xbf16>) -> tensor<4x96xf32> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%sums : tensor<4x96xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %n = arith.truncf %5 : f32 to bf16
    %6 = arith.extf %n : bf16 to f32
    linalg.yield %6 : f32
  } -> tensor<4x96xf32>
  return %y : tensor<4x96xf32>
}

// The result is added to what is there.
// CHECK-LABEL: func.func @adds_init(
func.func @adds_init(%x: tensor<4x64xbf16>) -> tensor<4x96xbf16> {
  %one = arith.constant 1.0 : f32
  %wg = arith.constant dense<1.0> : tensor<96x64xbf16>
  %wu = arith.constant dense<2.0> : tensor<96x64xbf16>
  %sums = tensor.empty() : tensor<4x96xf32>
  %init = tensor.empty() : tensor<4x96xbf16>
  %g = diffattn.gemm ins(%x, %wg : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %u = diffattn.gemm ins(%x, %wu : tensor<4x64xbf16>, tensor<96x64xbf16>) outs(%sums : tensor<4x96xf32>) {transpose_b} -> tensor<4x96xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x96xf32>, tensor<4x96xf32>) outs(%init : tensor<4x96xbf16>) {
  ^bb0(%a: f32, %b: f32, %o: bf16):
    %0 = arith.negf %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %one, %1 : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %w = arith.extf %o : bf16 to f32
    %s = arith.addf %5, %w : f32
    %6 = arith.truncf %s : f32 to bf16
    linalg.yield %6 : bf16
  } -> tensor<4x96xbf16>
  return %y : tensor<4x96xbf16>
}
