// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-trace-ops,canonicalize)" | FileCheck %s
// Code that is not to be traced has nothing of it.
// RUN: diffattn-opt %S/../../../examples/attention.mlir --diffattn-cpu-pipeline | FileCheck %s --check-prefix=WITHOUT
// RUN: diffattn-opt %S/../../../examples/attention.mlir --diffattn-cpu-pipeline="trace=true" | FileCheck %s --check-prefix=WITH
// WITHOUT-NOT: trace
// WITH-LABEL: llvm.func @attention(
// WITH: llvm.call @diffattn_rt_trace_begin
// WITH: llvm.call @diffattn_rt_parallel_for
// WITH: llvm.call @diffattn_rt_trace_end

// Of the module's own file only the line is said.
// CHECK-DAG: llvm.mlir.global internal constant @[[$GEMM:diffattn_span_[0-9_]+]]("product\0Agemm 4x32 by 16x32 f32\0A{{[0-9]+}}:3\0Aproduct\00")
// CHECK-DAG: llvm.mlir.global internal constant @[[$MAPS:diffattn_span_[0-9_]+]]("attention\0Aattention 1x2x5x16 f32\0Apart.py:9:4\0Aattend\00")
// CHECK-DAG: llvm.mlir.global internal constant @[[$VALID:diffattn_span_[0-9_]+]]("attention\0Aattention ?x2x1x16 bf16\0A{{[0-9]+}}:3\0Avalid\00")

// A name that the module has is left to it.
func.func private @diffattn_span_0()

// Operations are twice the sums' products, and bytes those of all three.
// CHECK-LABEL: func.func @product(
// CHECK-DAG:     %[[FLOPS:.+]] = arith.constant 4096 : i64
// CHECK-DAG:     %[[BYTES:.+]] = arith.constant 2816 : i64
// CHECK-DAG:     %[[GLOBAL:.+]] = llvm.mlir.addressof @[[$GEMM]]
// CHECK-DAG:     %[[TEXT:.+]] = llvm.getelementptr %[[GLOBAL]][0, 0]
// CHECK:         llvm.call @diffattn_rt_trace_begin(%[[TEXT]], %[[FLOPS]], %[[BYTES]])
// CHECK-NEXT:    diffattn.gemm
// CHECK-NEXT:    llvm.call @diffattn_rt_trace_end()
func.func @product(%a: memref<4x32xf32>, %b: memref<16x32xf32>, %c: memref<4x16xf32>) {
  diffattn.gemm ins(%a, %b : memref<4x32xf32>, memref<16x32xf32>) outs(%c : memref<4x16xf32>) {transpose_b}
  return
}

// 5 * 7 pairs, of which 10 are hidden; for each the scores of 2 + 2 heads of 16, and 2 heads' values of 8.
// CHECK-LABEL: func.func @attend(
// CHECK-DAG:     %[[FLOPS:.+]] = arith.constant 4000 : i64
// CHECK-DAG:     %[[BYTES:.+]] = arith.constant 3844 : i64
// CHECK-DAG:     %[[GLOBAL:.+]] = llvm.mlir.addressof @[[$MAPS]]
// CHECK-DAG:     %[[TEXT:.+]] = llvm.getelementptr %[[GLOBAL]][0, 0]
// CHECK:         llvm.call @diffattn_rt_trace_begin(%[[TEXT]], %[[FLOPS]], %[[BYTES]])
// CHECK-NEXT:    diffattn.attention
// CHECK-NEXT:    llvm.call @diffattn_rt_trace_end()
func.func @attend(%q: memref<1x2x5x16xf32>, %k: memref<1x2x7x16xf32>, %v: memref<1x2x7x8xf32>, %l: memref<f32>, %o: memref<1x2x5x8xf32>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : memref<1x2x5x16xf32>, memref<1x2x7x16xf32>, memref<1x2x5x16xf32>,
    memref<1x2x7x16xf32>, memref<1x2x7x8xf32>) lambda(%l : memref<f32>) outs(%o : memref<1x2x5x8xf32>)
    {scale = 0.5 : f32, is_causal} loc("part.py":9:4)
  return
}

// How many keys there are is known when it runs.
// CHECK-LABEL: func.func @valid(
// CHECK:         scf.for
// CHECK:           %[[ONE:.+]] = memref.load %{{.+}} : memref<?xi64>
// CHECK:           arith.minsi %[[ONE]]
// CHECK:         llvm.call @diffattn_rt_trace_begin
func.func @valid(%q: memref<?x2x1x16xbf16>, %k: memref<?x2x64x16xbf16>, %v: memref<?x2x64x8xbf16>, %n: memref<?xi64>, %o: memref<?x2x1x8xbf16>) {
  diffattn.attention ins(%q, %k, %v : memref<?x2x1x16xbf16>, memref<?x2x64x16xbf16>, memref<?x2x64x8xbf16>)
    kv_len(%n : memref<?xi64>) outs(%o : memref<?x2x1x8xbf16>) {scale = 0.5 : f32}
  return
}

// Keys of a sequence lie in pages, 4 * 16 of them at most; queries follow one another.
// CHECK-LABEL: func.func @paged(
// CHECK-DAG:     %[[MOST:.+]] = arith.constant 64 : i64
// CHECK:         %[[SUMS:.+]]:2 = scf.for
// CHECK:           memref.load %[[BOUNDS:.+]][%{{.+}}] : memref<4xi32>
// CHECK:           memref.load %[[BOUNDS]][%{{.+}}] : memref<4xi32>
// CHECK:           %[[QUERIES:.+]] = arith.subi
// CHECK:           %[[LENGTH:.+]] = memref.load %{{.+}} : memref<3xi64>
// CHECK:           %[[KEYS:.+]] = arith.minsi %[[LENGTH]], %[[MOST]]
// CHECK:           arith.minsi %[[QUERIES]], %[[KEYS]]
// CHECK:         arith.muli %[[SUMS]]#0
// CHECK:         arith.muli %[[SUMS]]#1
// CHECK:         llvm.call @diffattn_rt_trace_begin
func.func @paged(%q: memref<1x2x9x16xf32>, %k: memref<8x2x16x16xf32>, %v: memref<8x2x16x8xf32>, %n: memref<3xi64>, %s: memref<4xi32>,
                 %t: memref<3x4xi32>, %o: memref<1x2x9x8xf32>) {
  diffattn.attention ins(%q, %k, %v : memref<1x2x9x16xf32>, memref<8x2x16x16xf32>, memref<8x2x16x8xf32>) kv_len(%n : memref<3xi64>)
    cu_seqlens_q(%s : memref<4xi32>) block_table(%t : memref<3x4xi32>) outs(%o : memref<1x2x9x8xf32>) {scale = 0.5 : f32, is_causal}
  return
}

// 5 * 7 pairs; for each the scores of 2 + 2 heads of 16, their gradients times keys for both queries, and of 2 heads' values of 8
// the gradient of the maps' weights.
// CHECK-LABEL: func.func @gradients(
// CHECK-DAG:     %[[FLOPS:.+]] = arith.constant 10080 : i64
// CHECK-DAG:     %[[BYTES:.+]] = arith.constant 5124 : i64
// CHECK:         llvm.call @diffattn_rt_trace_begin(%{{.+}}, %[[FLOPS]], %[[BYTES]])
// CHECK-NEXT:    diffattn.attention_backward
func.func @gradients(%q: memref<1x2x5x16xf32>, %k: memref<1x2x7x16xf32>, %v: memref<1x2x7x8xf32>, %l: memref<f32>, %d: memref<1x2x5x8xf32>,
                     %a: memref<1x2x5x16xf32>, %b: memref<1x2x5x16xf32>) {
  diffattn.attention_backward ins(%q, %k, %q, %k, %v : memref<1x2x5x16xf32>, memref<1x2x7x16xf32>, memref<1x2x5x16xf32>,
    memref<1x2x7x16xf32>, memref<1x2x7x8xf32>) d_out(%d : memref<1x2x5x8xf32>) lambda(%l : memref<f32>)
    outs(d_q1(%a : memref<1x2x5x16xf32>) d_q2(%b : memref<1x2x5x16xf32>)) {scale = 0.5 : f32}
  return
}

// One key for both maps has the gradient of both, and only the values' gradient needs no gradient of the weights.
// CHECK-LABEL: func.func @gradients_of_keys(
// CHECK-DAG:     arith.constant 10080 : i64
// CHECK:         diffattn.attention_backward
// CHECK-LABEL: func.func @gradients_of_values(
// CHECK-DAG:     arith.constant 5600 : i64
// CHECK:         diffattn.attention_backward
func.func @gradients_of_keys(%q: memref<1x2x5x16xf32>, %k: memref<1x2x7x16xf32>, %v: memref<1x2x7x8xf32>, %l: memref<f32>,
                             %d: memref<1x2x5x8xf32>, %a: memref<1x2x7x16xf32>) {
  diffattn.attention_backward ins(%q, %k, %q, %k, %v : memref<1x2x5x16xf32>, memref<1x2x7x16xf32>, memref<1x2x5x16xf32>,
    memref<1x2x7x16xf32>, memref<1x2x7x8xf32>) d_out(%d : memref<1x2x5x8xf32>) lambda(%l : memref<f32>)
    outs(d_k1(%a : memref<1x2x7x16xf32>)) {scale = 0.5 : f32}
  return
}
func.func @gradients_of_values(%q: memref<1x2x5x16xf32>, %k: memref<1x2x7x16xf32>, %v: memref<1x2x7x8xf32>, %l: memref<f32>,
                               %d: memref<1x2x5x8xf32>, %a: memref<1x2x7x8xf32>) {
  diffattn.attention_backward ins(%q, %k, %q, %k, %v : memref<1x2x5x16xf32>, memref<1x2x7x16xf32>, memref<1x2x5x16xf32>,
    memref<1x2x7x16xf32>, memref<1x2x7x8xf32>) d_out(%d : memref<1x2x5x8xf32>) lambda(%l : memref<f32>)
    outs(d_v(%a : memref<1x2x7x8xf32>)) {scale = 0.5 : f32}
  return
}
