// RUN: rm -rf %t && mkdir -p %t && split-file %s %t
// RUN: diffattn-run %t/graph.mlir --no-cache --quiet --check=oracle --remarks=none | FileCheck %s --check-prefix=GRAPH
// RUN: diffattn-run %t/update.mlir --no-cache --quiet --check=oracle | FileCheck %s --check-prefix=UPDATE
// RUN: not diffattn-run %t/wrong.mlir --no-cache --quiet --check=oracle --input=3xi64=1 --input=i64=9223372036854775807 | FileCheck %s --check-prefix=WRONG
// RUN: not diffattn-run %t/large.mlir --no-cache --quiet --check=oracle 2>&1 | FileCheck %s --check-prefix=LARGE
// RUN: not diffattn-run %t/unknown.mlir --no-cache --quiet --check=oracle --input=2xf32=1 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: not diffattn-run %t/graph.mlir --check=oracel 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not diffattn-run %t/graph.mlir --from=gpu --target=cuda-sim:sm_80 --check=oracle 2>&1 | FileCheck %s --check-prefix=STAGE
// RUN: diffattn-run %t/attention.mlir --no-cache --quiet --check=oracle --target=cuda-sim:sm_80 2>&1 | FileCheck %s --check-prefix=GRAPH
// RUN: diffattn-run %t/integral.mlir --no-cache --quiet --check=oracle --remarks=none | FileCheck %s --check-prefix=GRAPH

// GRAPH: result 0 and the oracle: matches, largest error {{.+}}, 0.{{[0-9]+}} of what is allowed
// UPDATE: result 0 and the oracle: matches
// UPDATE: result 1 and the oracle: matches, largest error 0, 0 of what is allowed
// WRONG: result 0 and the oracle: 3 of 3 elements differ; at [0] expected 0, but got 1
// WRONG-SAME: 'arith.addi': the result of an overflow under nsw or nuw is not defined
// LARGE: error (run): oracle: {{.*}}large.mlir:5:8: 'linalg.matmul': expected at most 4000000000 steps, but the program takes more
// UNKNOWN: error (ir): oracle: {{.*}}unknown.mlir:2:8: 'bufferization.alloc_tensor': expected an op that the interpreter knows
// NAME: error (usage): --check: expected unfused or oracle, but got 'oracel'
// STAGE: error (usage): --check=oracle: expected a module in stage input, which can be interpreted, but got stage gpu

//--- graph.mlir
// One map minus another, both over the same keys: the result is far smaller than what it is made of.
#row = affine_map<(i, j) -> (i, j)>
#of_row = affine_map<(i, j) -> (i)>
func.func @softmax_difference(%x: tensor<16x64xf32>, %y: tensor<16x64xf32>) -> tensor<16x64xf32> {
  %e = tensor.empty() : tensor<16x64xf32>
  %a = linalg.softmax dimension(1) ins(%x : tensor<16x64xf32>) outs(%e : tensor<16x64xf32>) -> tensor<16x64xf32>
  %z = linalg.mul ins(%x, %y : tensor<16x64xf32>, tensor<16x64xf32>) outs(%e : tensor<16x64xf32>) -> tensor<16x64xf32>
  %b = linalg.softmax dimension(1) ins(%z : tensor<16x64xf32>) outs(%e : tensor<16x64xf32>) -> tensor<16x64xf32>
  %r = linalg.sub ins(%a, %b : tensor<16x64xf32>, tensor<16x64xf32>) outs(%e : tensor<16x64xf32>) -> tensor<16x64xf32>
  return %r : tensor<16x64xf32>
}
//--- update.mlir
// The argument that is updated in place is a result, and the oracle sees what it held before.
func.func @step(%cache: tensor<4x8xf32> {bufferization.writable = true}, %x: tensor<1x8xf32>) -> (tensor<8xf32>, tensor<4x8xf32>) {
  %new = tensor.insert_slice %x into %cache[2, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<4x8xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
  %sum = linalg.reduce { arith.addf } ins(%new : tensor<4x8xf32>) outs(%i : tensor<8xf32>) dimensions = [0]
  return %sum, %new : tensor<8xf32>, tensor<4x8xf32>
}
//--- wrong.mlir
// What MLIR does not define is named where results differ.
func.func @f(%x: tensor<3xi64>, %n: i64) -> tensor<3xi64> {
  %one = arith.constant 1 : i64
  %next = arith.addi %n, %one overflow<nsw> : i64
  %above = arith.cmpi sgt, %next, %n : i64
  %y = arith.extui %above : i1 to i64
  %t = tensor.splat %y : tensor<3xi64>
  return %t : tensor<3xi64>
}
//--- large.mlir
func.func @f(%a: tensor<1200x1200xf32>, %b: tensor<1200x1200xf32>) -> tensor<1200x1200xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1200x1200xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<1200x1200xf32>) -> tensor<1200x1200xf32>
  %r = linalg.matmul ins(%a, %b : tensor<1200x1200xf32>, tensor<1200x1200xf32>) outs(%i : tensor<1200x1200xf32>) -> tensor<1200x1200xf32>
  return %r : tensor<1200x1200xf32>
}
//--- unknown.mlir
func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  %r = bufferization.alloc_tensor() copy(%x) : tensor<2xf32>
  return %r : tensor<2xf32>
}
//--- attention.mlir
func.func @f(%q: tensor<1x2x5x16xf16>, %k: tensor<1x2x5x16xf16>, %v: tensor<1x2x5x16xf16>, %l: tensor<f32>) -> tensor<1x2x5x16xf16> {
  %e = tensor.empty() : tensor<1x2x5x16xf16>
  %o = diffattn.attention ins(%q, %k, %k, %q, %v : tensor<1x2x5x16xf16>, tensor<1x2x5x16xf16>, tensor<1x2x5x16xf16>,
         tensor<1x2x5x16xf16>, tensor<1x2x5x16xf16>) lambda(%l : tensor<f32>)
         outs(%e : tensor<1x2x5x16xf16>) {scale = 0.25 : f32, is_causal, norm = #diffattn.norm<rms>} -> tensor<1x2x5x16xf16>
  return %o : tensor<1x2x5x16xf16>
}
//--- integral.mlir
// The reference computes the mean of the rows, compiled code states.
func.func @dint(%q1: tensor<1x4x6x8xf32>, %k: tensor<1x2x9x8xf32>, %q2: tensor<1x2x6x8xf32>, %v: tensor<1x4x9x16xf32>,
                %l: tensor<4xf32>) -> tensor<1x4x6x16xf32> {
  %init = tensor.empty() : tensor<1x4x6x16xf32>
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : tensor<1x4x6x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x6x8xf32>,
         tensor<1x2x9x8xf32>, tensor<1x4x9x16xf32>) lambda(%l : tensor<4xf32>)
         outs(%init : tensor<1x4x6x16xf32>) {scale = 0.25 : f32, integral} -> tensor<1x4x6x16xf32>
  return %o : tensor<1x4x6x16xf32>
}
