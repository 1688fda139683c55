// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-reuse-buffers))" | FileCheck %s
func.func private @use(memref<4xf32>)
func.func private @both(memref<4xf32>, memref<4xf32>)
func.func private @any(memref<?xf32>)

// A third value takes the place of the first, not of the second, which lives
// until it is made.
// CHECK-LABEL: func.func @chain(
// CHECK-NEXT:    %[[A:.+]] = memref.alloc() : memref<4xf32>
// CHECK-NEXT:    %[[B:.+]] = memref.alloc() : memref<4xf32>
// CHECK-NEXT:    call @use(%[[A]])
// CHECK-NEXT:    call @both(%[[A]], %[[B]])
// CHECK-NEXT:    call @both(%[[B]], %[[A]])
// CHECK-NEXT:    return
func.func @chain() {
  %a = memref.alloc() : memref<4xf32>
  %b = memref.alloc() : memref<4xf32>
  %c = memref.alloc() : memref<4xf32>
  call @use(%a) : (memref<4xf32>) -> ()
  call @both(%a, %b) : (memref<4xf32>, memref<4xf32>) -> ()
  call @both(%b, %c) : (memref<4xf32>, memref<4xf32>) -> ()
  return
}

// What a view of a buffer is used for, the buffer is used for, also in regions.
// CHECK-LABEL: func.func @views(
// CHECK-COUNT-2: memref.alloc
// CHECK-NOT:     memref.alloc
func.func @views(%n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %a = memref.alloc() : memref<4xf32>
  %view = memref.cast %a : memref<4xf32> to memref<?xf32>
  call @use(%a) : (memref<4xf32>) -> ()
  %b = memref.alloc() : memref<4xf32>
  call @use(%b) : (memref<4xf32>) -> ()
  scf.for %i = %c0 to %n step %c1 {
    memref.store %zero, %view[%c0] : memref<?xf32>
  }
  return
}

// A view is made early, and its buffer used late.
// CHECK-LABEL: func.func @earlyView(
// CHECK:         %[[A:.+]] = memref.alloc() : memref<4xf32>
// CHECK:         %[[VIEW:.+]] = memref.cast %[[A]]
// CHECK-NOT:     memref.alloc
// CHECK:         call @use(%[[A]])
// CHECK:         call @any(%[[VIEW]])
func.func @earlyView() {
  %a = memref.alloc() : memref<4xf32>
  %view = memref.cast %a : memref<4xf32> to memref<?xf32>
  %b = memref.alloc() : memref<4xf32>
  call @use(%b) : (memref<4xf32>) -> ()
  call @any(%view) : (memref<?xf32>) -> ()
  return
}

// Ops that hand on what they were given: the buffer lives as long as that.
// CHECK-LABEL: func.func @handedOn(
// CHECK-COUNT-3: memref.alloc
func.func @handedOn(%which: i1) {
  %a = memref.alloc() : memref<4xf32>
  %b = memref.alloc() : memref<4xf32>
  %one = scf.if %which -> memref<4xf32> {
    scf.yield %a : memref<4xf32>
  } else {
    scf.yield %b : memref<4xf32>
  }
  %c = memref.alloc() : memref<4xf32>
  call @use(%c) : (memref<4xf32>) -> ()
  call @use(%one) : (memref<4xf32>) -> ()
  return
}

// Sizes and types must be the same; what is returned stays.
// CHECK-LABEL: func.func @others(
// CHECK-SAME:    %[[N:.+]]: index, %[[M:.+]]: index
// CHECK:         %[[X:.+]] = memref.alloc(%[[N]])
// CHECK:         call @any(%[[X]])
// CHECK:         %[[Y:.+]] = memref.alloc(%[[M]])
// CHECK:         call @any(%[[Y]])
// CHECK-NOT:     memref.alloc
// CHECK:         call @any(%[[X]])
// CHECK:         %[[R:.+]] = memref.alloc(%[[N]])
// CHECK:         call @any(%[[R]])
// CHECK:         return %[[R]]
func.func @others(%n: index, %m: index) -> memref<?xf32> {
  %x = memref.alloc(%n) : memref<?xf32>
  call @any(%x) : (memref<?xf32>) -> ()
  %y = memref.alloc(%m) : memref<?xf32>
  call @any(%y) : (memref<?xf32>) -> ()
  %z = memref.alloc(%n) : memref<?xf32>
  call @any(%z) : (memref<?xf32>) -> ()
  %r = memref.alloc(%n) : memref<?xf32>
  call @any(%r) : (memref<?xf32>) -> ()
  return %r : memref<?xf32>
}

// A loop's body has buffers of its own.
// CHECK-LABEL: func.func @loop(
// CHECK:         scf.for
// CHECK-NEXT:      memref.alloc
// CHECK-NOT:       memref.alloc
// CHECK:         return
func.func @loop(%n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %n step %c1 {
    %a = memref.alloc() : memref<4xf32>
    func.call @use(%a) : (memref<4xf32>) -> ()
    %b = memref.alloc() : memref<4xf32>
    func.call @use(%b) : (memref<4xf32>) -> ()
  }
  return
}

// Who has the address of a buffer may use it at any time.
// CHECK-LABEL: func.func @address(
// CHECK-COUNT-2: memref.alloc
func.func @address() -> index {
  %a = memref.alloc() : memref<4xf32>
  %at = memref.extract_aligned_pointer_as_index %a : memref<4xf32> -> index
  %b = memref.alloc() : memref<4xf32>
  call @use(%b) : (memref<4xf32>) -> ()
  return %at : index
}
