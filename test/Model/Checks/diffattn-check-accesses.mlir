// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-check-accesses))" --split-input-file | FileCheck %s

// CHECK-LABEL: func.func @element(
// CHECK:         arith.cmpi ult, %arg1
// CHECK:         cf.assert %{{.+}}, "argument 0 of 'element': expected an index from 0 and below {1} on axis 0, but got {0}"
// CHECK-NOT:     cf.assert
// CHECK:         memref.store
func.func @element(%c: memref<?xf32>, %i: index, %x: f32) -> f32 {
  %y = memref.load %c[%i] : memref<?xf32>
  memref.store %x, %c[%i] : memref<?xf32>
  return %y : f32
}

// -----

// What follows from sizes, counters, minima and maxima needs no assertion.

// CHECK-LABEL: func.func @known(
// CHECK-NOT:     cf.assert
func.func @known(%c: memref<?x8xf32>, %i: index, %b: i8) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c7 = arith.constant 7 : index
  %c8 = arith.constant 8 : index
  %n = memref.dim %c, %c0 : memref<?x8xf32>
  %low = arith.maxsi %i, %c0 : index
  %near = arith.minsi %low, %c7 : index
  %rest = arith.remui %i, %c8 : index
  %table = memref.alloc() : memref<256xf32>
  %byte = arith.index_castui %b : i8 to index
  scf.for %k = %c0 to %n step %c1 {
    %x = memref.load %c[%k, %near] : memref<?x8xf32>
    memref.store %x, %c[%k, %rest] : memref<?x8xf32>
    memref.store %x, %table[%byte] : memref<256xf32>
  }
  %last = arith.subi %n, %c1 : index
  scf.for %k = %c0 to %last step %c1 {
    %next = arith.addi %k, %c1 : index
    %x = memref.load %c[%next, %c0] : memref<?x8xf32>
  }
  %half = memref.subview %c[0, 4] [%n, 4] [1, 1] : memref<?x8xf32> to memref<?x4xf32, strided<[8, 1], offset: 4>>
  return
}

// -----

// What the graph asserts itself is not asserted again, as far as it goes.

#id = affine_map<(i) -> (i)>

// CHECK-LABEL: func.func @asserted(
// CHECK-NOT:     linalg.generic {{.*}}reduction
// CHECK:         linalg.generic
// CHECK-COUNT-2:   cf.assert %{{.+}}, "by the graph"
// CHECK-NOT:       cf.assert
// CHECK:           memref.load
func.func @asserted(%ids: memref<8xi64>, %table: memref<?xf32>, %out: memref<8xf32>) {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0 : i64
  %n = memref.dim %table, %c0 : memref<?xf32>
  %end = arith.index_cast %n : index to i64
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%ids : memref<8xi64>) outs(%out : memref<8xf32>) {
  ^bb0(%id: i64, %o: f32):
    %low = arith.cmpi sge, %id, %zero : i64
    cf.assert %low, "by the graph"
    %high = arith.cmpi slt, %id, %end : i64
    cf.assert %high, "by the graph"
    %i = arith.index_cast %id : i64 to index
    %x = memref.load %table[%i] : memref<?xf32>
    linalg.yield %x : f32
  }
  return
}

// -----

// A size may be 0.

// CHECK-LABEL: func.func @first(
// CHECK:         cf.assert
func.func @first(%c: memref<?xf32>) -> f32 {
  %c0 = arith.constant 0 : index
  %x = memref.load %c[%c0] : memref<?xf32>
  return %x : f32
}

// -----

// Loops that an index does not run with are left behind, and those that it runs with too.

// CHECK-LABEL: func.func @loops(
// CHECK-COUNT-4: cf.assert
// CHECK:         scf.for
// CHECK-NOT:     cf.assert
func.func @loops(%c: memref<?x?xf32>, %n: index, %m: index, %o: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %n step %c1 {
    scf.for %k = %c0 to %m step %c1 {
      %at = arith.addi %k, %o : index
      %x = memref.load %c[%i, %at] : memref<?x?xf32>
    }
  }
  return
}

// -----

// Behind a condition it is asserted there.

// CHECK-LABEL: func.func @condition(
// CHECK-NOT:     cf.assert
// CHECK:         scf.if
// CHECK-NEXT:      arith.constant
// CHECK-NEXT:      memref.dim
// CHECK:           cf.assert
// CHECK:           memref.load
func.func @condition(%c: memref<?xf32>, %n: index, %take: i1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %n step %c1 {
    scf.if %take {
      %x = memref.load %c[%i] : memref<?xf32>
    }
  }
  return
}

// -----

// The worst of the indices that are data is found along the loops that they depend on.

#row = affine_map<(i, j, k) -> (i)>
#all = affine_map<(i, j, k) -> (i, j, k)>

// CHECK-LABEL: func.func @rows(
// CHECK:         linalg.generic {{.*}}iterator_types = ["reduction"]{{.*}} ins(%arg0 : memref<?xi64>)
// CHECK:           arith.maxui
// CHECK:         cf.assert %{{.+}}, "argument 1 of 'rows': expected an index from 0 and below 10 on axis 0, but got {0}"
// CHECK:         linalg.generic
// CHECK-NOT:     cf.assert
func.func @rows(%ids: memref<?xi64>, %table: memref<10x4x2xf32>, %out: memref<?x4x2xf32>) {
  linalg.generic {indexing_maps = [#row, #all], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%ids : memref<?xi64>) outs(%out : memref<?x4x2xf32>) {
  ^bb0(%id: i64, %o: f32):
    %i = arith.index_cast %id : i64 to index
    %j = linalg.index 1 : index
    %k = linalg.index 2 : index
    %x = memref.load %table[%i, %j, %k] : memref<10x4x2xf32>
    linalg.yield %x : f32
  }
  return
}

// -----

// What a loop reads may not be what another loop before it finds there: it is asserted in the body.

#id = affine_map<(i) -> (i)>

// CHECK-LABEL: func.func @chase(
// CHECK-NOT:     cf.assert
// CHECK:         linalg.generic
// CHECK:           cf.assert
// CHECK:           memref.load
func.func @chase(%c: memref<8xi64>) {
  linalg.generic {indexing_maps = [#id], iterator_types = ["parallel"]} outs(%c : memref<8xi64>) {
  ^bb0(%o: i64):
    %i = arith.index_cast %o : i64 to index
    %x = memref.load %c[%i] : memref<8xi64>
    linalg.yield %x : i64
  }
  return
}

// -----

// CHECK-LABEL: func.func @slice(
// CHECK:         "argument 0 of 'slice': expected a slice of 0 to {1} elements on axis 0, but got {0}"
// CHECK:         "argument 0 of 'slice': expected a slice that begins from 0 to {1} on axis 0, but got {0}"
// CHECK:         memref.subview
func.func @slice(%c: memref<?xf32>, %o: index, %n: index) {
  %x = memref.subview %c[%o] [%n] [1] : memref<?xf32> to memref<?xf32, strided<[1], offset: ?>>
  return
}

// -----

// CHECK-LABEL: func.func @numbers(
// CHECK:         "divsi: expected a divisor other than 0 and a quotient that its type can hold"
// CHECK:         "remui: expected a divisor other than 0"
// CHECK:         "shli: expected a shift by less than the width of the type, 32 bits"
// CHECK-NOT:     cf.assert
// CHECK:         return
func.func @numbers(%a: i32, %b: i32, %i: index) {
  %c3 = arith.constant 3 : i32
  %q = arith.divsi %a, %b : i32
  %r = arith.remui %a, %b : i32
  %s = arith.shli %a, %b : i32
  %q3 = arith.divsi %a, %c3 : i32
  %s3 = arith.shrui %a, %c3 : i32
  return
}

// -----

// CHECK-LABEL: func.func @steps(
// CHECK:         "for: expected a step of 1 or more, but got {0}"
// CHECK:         "for: expected an end of at most {0}, so that the counter does not overflow, but got {1}"
// CHECK:         scf.for
// CHECK-NOT:     cf.assert
// CHECK:         scf.for
func.func @steps(%c: memref<?xf32>, %n: index, %s: index) {
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %size = memref.dim %c, %c0 : memref<?xf32>
  scf.for %i = %c0 to %n step %s {
  }
  scf.for %i = %c0 to %size step %c4 {
  }
  return
}

// -----

// CHECK-LABEL: func.func @stack(
// CHECK:         memref.alloca() : memref<8xf32>
// CHECK:         memref.alloc(%arg0)
// CHECK:         memref.alloc() {{.*}}: memref<100000xf32>
func.func @stack(%n: index) {
  %small = memref.alloca() : memref<8xf32>
  %any = memref.alloca(%n) : memref<?xf32>
  %large = memref.alloca() : memref<100000xf32>
  return
}

// -----

// Chains that use each value twice are read up to a limit.

// CHECK-LABEL: func.func @chain(
// CHECK:         cf.assert
func.func @chain(%c: memref<?xf32>, %i: index) -> f32 {
  %0 = arith.addi %i, %i : index
  %1 = arith.addi %0, %0 : index
  %2 = arith.addi %1, %1 : index
  %3 = arith.maxsi %2, %2 : index
  %4 = arith.addi %3, %3 : index
  %5 = arith.addi %4, %4 : index
  %6 = arith.addi %5, %5 : index
  %7 = arith.addi %6, %6 : index
  %8 = arith.addi %7, %7 : index
  %9 = arith.addi %8, %8 : index
  %10 = arith.addi %9, %9 : index
  %11 = arith.maxsi %10, %10 : index
  %12 = arith.addi %11, %11 : index
  %13 = arith.addi %12, %12 : index
  %14 = arith.addi %13, %13 : index
  %15 = arith.addi %14, %14 : index
  %16 = arith.addi %15, %15 : index
  %17 = arith.addi %16, %16 : index
  %18 = arith.addi %17, %17 : index
  %19 = arith.maxsi %18, %18 : index
  %20 = arith.addi %19, %19 : index
  %21 = arith.addi %20, %20 : index
  %22 = arith.addi %21, %21 : index
  %23 = arith.addi %22, %22 : index
  %24 = arith.addi %23, %23 : index
  %25 = arith.addi %24, %24 : index
  %26 = arith.addi %25, %25 : index
  %27 = arith.maxsi %26, %26 : index
  %28 = arith.addi %27, %27 : index
  %29 = arith.addi %28, %28 : index
  %30 = arith.addi %29, %29 : index
  %31 = arith.addi %30, %30 : index
  %32 = arith.addi %31, %31 : index
  %33 = arith.addi %32, %32 : index
  %34 = arith.addi %33, %33 : index
  %35 = arith.maxsi %34, %34 : index
  %36 = arith.addi %35, %35 : index
  %37 = arith.addi %36, %36 : index
  %38 = arith.addi %37, %37 : index
  %39 = arith.addi %38, %38 : index
  %x = memref.load %c[%39] : memref<?xf32>
  return %x : f32
}

// -----

// Where a branch is taken its condition holds, and in the other one it does not.

// CHECK-LABEL: func.func @branches(
// CHECK-NOT:     cf.assert
// CHECK:         return
func.func @branches(%a: memref<4xf32>, %b: memref<?xf32>, %out: memref<?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %m = memref.dim %b, %c0 : memref<?xf32>
  %end = arith.addi %m, %c4 : index
  scf.for %i = %c0 to %end step %c4 {
    %first = arith.cmpi ult, %i, %c4 : index
    %v = scf.if %first -> f32 {
      %x = memref.load %a[%i] : memref<4xf32>
      scf.yield %x : f32
    } else {
      %j = arith.subi %i, %c4 : index
      %x = memref.load %b[%j] : memref<?xf32>
      scf.yield %x : f32
    }
    %late = arith.cmpi sge, %i, %m : index
    scf.if %late {
    } else {
      memref.store %v, %b[%i] : memref<?xf32>
    }
  }
  return
}

// -----

// A sum with a number that may be any wraps around: its comparison says nothing of the number.

// CHECK-LABEL: func.func @wraps(
// CHECK:         cf.assert
// CHECK:         memref.load
func.func @wraps(%a: memref<4xf32>, %i: index) -> f32 {
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %zero = arith.constant 0.0 : f32
  %low = arith.maxsi %i, %c1 : index
  %next = arith.addi %low, %c1 : index
  %small = arith.cmpi slt, %next, %c4 : index
  %v = scf.if %small -> f32 {
    %x = memref.load %a[%low] : memref<4xf32>
    scf.yield %x : f32
  } else {
    scf.yield %zero : f32
  }
  return %v : f32
}
