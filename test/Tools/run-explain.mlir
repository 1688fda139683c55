// RUN: diffattn-run %s --explain --threads=1 --no-cache | FileCheck %s --check-prefix=TABLE
// RUN: diffattn-run %s --explain=json --threads=1 --no-cache | FileCheck %s --check-prefix=JSON
// RUN: not diffattn-run %s --explain --emit=llvm 2>&1 | FileCheck %s --check-prefix=EMIT
// RUN: not diffattn-run %s --explain --trace=%t.json 2>&1 | FileCheck %s --check-prefix=TRACE
// RUN: not diffattn-run %s --explain --target=cuda-sim:sm_90 2>&1 | FileCheck %s --check-prefix=TARGET
// RUN: not diffattn-run %s --explain=xml 2>&1 | FileCheck %s --check-prefix=FORMAT

// EMIT: error (usage): --explain: expected none with --emit, which calls no function
// TRACE: error (usage): --explain: expected no --trace, because one recording is made at a time
// TARGET: error (usage): --explain: expected a target of CPUs, whose code records its times, but got cuda-sim:sm_90
// FORMAT: Cannot find option named 'xml'!

// One row for each, with the place of the user's line, and no results.
// TABLE-NOT:  result 0
// TABLE:      place function op calls ms GFLOP/s GB/s of roof attention kernels
// TABLE-NEXT: {{.*}}run-explain.mlir:[[@LINE+13]]:8 main gemm 32x64 by 64x16 f32 1 {{[0-9.]+ [0-9.]+ [0-9.]+ [0-9]+}}% of {{compute|memory}}
// TABLE-NEXT: {{.*}}run-explain.mlir:[[@LINE+14]]:8 main attention 1x2x32x16 f32 1 {{.*}} written cpu_prefill
// TABLE-NEXT: all else 1
// TABLE-NEXT: roof of 1 thread: {{[0-9.]+}} GFLOP/s of f32, {{[0-9.]+}} GB/s of memory

// JSON:      [
// JSON:        "op": "product",
// JSON:        "op": "attention",
// JSON:        "op": "other",
func.func @main(%x: tensor<32x64xf32>, %w: tensor<64x16xf32>, %q: tensor<1x2x32x16xf32>) -> (tensor<32x16xf32>, tensor<1x2x32x16xf32>) {
  %i = tensor.empty() : tensor<32x16xf32>
  %c = arith.constant 0.0 : f32
  %f = linalg.fill ins(%c : f32) outs(%i : tensor<32x16xf32>) -> tensor<32x16xf32>
  %y = linalg.matmul ins(%x, %w : tensor<32x64xf32>, tensor<64x16xf32>) outs(%f : tensor<32x16xf32>) -> tensor<32x16xf32>
  %n = tensor.empty() : tensor<1x2x32x16xf32>
  %o = diffattn.attention ins(%q, %q, %q : tensor<1x2x32x16xf32>, tensor<1x2x32x16xf32>, tensor<1x2x32x16xf32>) outs(%n : tensor<1x2x32x16xf32>) {scale = 0.25 : f32, is_causal} -> tensor<1x2x32x16xf32>
  return %y, %o : tensor<32x16xf32>, tensor<1x2x32x16xf32>
}
