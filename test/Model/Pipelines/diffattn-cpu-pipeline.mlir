// RUN: diffattn-opt %s --diffattn-cpu-pipeline | FileCheck %s
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="until=bufferized" | FileCheck %s --check-prefix=BUFFER
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="until=loops" | FileCheck %s --check-prefix=LOOPS
// RUN: not diffattn-opt %s --diffattn-cpu-pipeline="until=end" 2>&1 | FileCheck %s --check-prefix=BAD

// RUN: not diffattn-opt %s --diffattn-cpu-pipeline="until=cubin" 2>&1 | FileCheck %s --check-prefix=OTHER

// BAD: until option: expected one of input, imported, raised, {{.*}}, object, but got 'end'
// OTHER: expected until to be a stage of input, imported, raised, scheduled, bufferized, loops, llvm, but got 'cubin'

// The public function gets the C interface; nothing of any other dialect is left.
// CHECK-NOT:   {{(func|memref|scf|arith|linalg|tensor|unrealized)[._]}}
// CHECK:       llvm.func @row_softmax({{.*}}llvm.emit_c_interface
// CHECK:       llvm.call @diffattn_rt_alloc
// CHECK:       llvm.func @_mlir_ciface_row_softmax
// CHECK-NOT:   {{(func|memref|scf|arith|linalg|tensor|unrealized)[._]}}

// BUFFER-LABEL: func.func @row_softmax(%arg0: memref<?x?xf32>
// BUFFER:       linalg.generic

// A row's sum is carried by the loop, not kept in memory.
// LOOPS-LABEL: func.func @row_softmax(
// LOOPS-NOT:   linalg
// LOOPS:       scf.for {{.*}} iter_args
// LOOPS:       arith.addf {{.*}} fastmath<reassoc>
func.func @row_softmax(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m = tensor.dim %x, %c0 : tensor<?x?xf32>
  %n = tensor.dim %x, %c1 : tensor<?x?xf32>
  %init = tensor.empty(%m, %n) : tensor<?x?xf32>
  %y = linalg.softmax dimension(1) ins(%x : tensor<?x?xf32>) outs(%init : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
