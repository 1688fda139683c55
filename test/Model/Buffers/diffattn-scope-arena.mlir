// RUN: diffattn-opt %s --diffattn-scope-arena | FileCheck %s
func.func private @use(memref<?xf32>)

// The loop's buffer dies in the loop, the function's at its end.
// CHECK-LABEL: func.func @nested(
// CHECK-NEXT:    %[[OUTER:.+]] = llvm.call @diffattn_rt_mark()
// CHECK:         scf.for
// CHECK-NEXT:      %[[INNER:.+]] = llvm.call @diffattn_rt_mark()
// CHECK:           llvm.call @diffattn_rt_release(%[[INNER]])
// CHECK-NEXT:    }
// CHECK:         llvm.call @diffattn_rt_release(%[[OUTER]])
// CHECK-NEXT:    return
func.func @nested(%n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %a = memref.alloc(%n) : memref<?xf32>
  scf.for %i = %c0 to %n step %c1 {
    %b = memref.alloc(%n) : memref<?xf32>
    func.call @use(%b) : (memref<?xf32>) -> ()
  }
  func.call @use(%a) : (memref<?xf32>) -> ()
  return
}

// What is returned or carried must live on; who allocates nothing needs no mark.
// CHECK-LABEL: func.func @returned(
// CHECK-NOT:     diffattn_rt
func.func @returned(%n: index, %init: memref<?xf32>) -> memref<?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%x = %init) -> memref<?xf32> {
    %b = memref.alloc(%n) : memref<?xf32>
    func.call @use(%b) : (memref<?xf32>) -> ()
    scf.yield %b : memref<?xf32>
  }
  return %r : memref<?xf32>
}
// CHECK-LABEL: func.func @nothing(
// CHECK-NOT:     diffattn_rt
func.func @nothing(%x: memref<?xf32>) {
  call @use(%x) : (memref<?xf32>) -> ()
  return
}
