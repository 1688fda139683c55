// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="threads=3 isa=generic" | FileCheck %s
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="threads=3 isa=avx512bf16 batch-invariant=false" | FileCheck %s
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=avx512bf16" | FileCheck %s --check-prefix=AUTO
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=avx512 batch-invariant=true" | FileCheck %s --check-prefix=ALL
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=amx" | FileCheck %s --check-prefix=TILES
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=amx-emulated" | FileCheck %s --check-prefix=EMULATED
// RUN: not diffattn-opt %s --convert-diffattn-gemm-to-runtime="batch-invariant=maybe" 2>&1 | FileCheck %s --check-prefix=WRONG
// WRONG: batch-invariant option: expected one of auto, true, false, but got 'maybe'

module attributes {diffattn.weights = [#diffattn.weight<name = "w.{}", type = tensor<2xf32>, layers = 2>]} {
// CHECK: llvm.mlir.global external @diffattn_weights() {{.*}} : !llvm.array<2 x struct<(ptr, ptr, i64, i64, i32, i32)>>

// The weight's slot goes along.
// CHECK-LABEL: func.func @weight(
func.func @weight(%x: memref<?x64xbf16>, %y: memref<?x96xf32>, %layer: index) {
  // In one order (2), and pairs of bf16 (4), as transposed B (1) is: no kernel for few rows.
  // AUTO-NOT:   scf.if
  // AUTO:       %[[FLAGS:.+]] = arith.constant 7 : i32
  // AUTO:       llvm.call @diffattn_rt_gemm({{.*}}, %[[FLAGS]], {{.*}})
  // Without dot products of bf16 there are no pairs.
  // ALL-LABEL:  func.func @weight(
  // ALL-NOT:    scf.if
  // ALL:        arith.constant 3 : i32
  // ALL:        llvm.call @diffattn_rt_gemm

  // Tiles (8), or what they would compute (16), for any number of rows.
  // TILES-LABEL:    func.func @weight(
  // TILES-NOT:      scf.if
  // TILES:          arith.constant 11 : i32
  // TILES:          llvm.call @diffattn_rt_gemm
  // EMULATED-LABEL: func.func @weight(
  // EMULATED-NOT:   scf.if
  // EMULATED:       arith.constant 19 : i32
  // EMULATED:       llvm.call @diffattn_rt_gemm

  // At most eight rows go to an emitted kernel, the rest to the library.
  // CHECK:      %[[TABLE:.+]] = llvm.mlir.addressof @diffattn_weights
  // CHECK:      %[[SLOT:.+]] = llvm.getelementptr %[[TABLE]]
  // CHECK:      %[[FEW:.+]] = arith.cmpi ult
  // CHECK:      scf.if %[[FEW]]
  // CHECK:        llvm.call @[[$KERNEL:diffattn_gemv_bf16_bf16_f32_add[a-z_0-9]*]](
  // CHECK:      else
  // CHECK-DAG:  %[[BF16:.+]] = arith.constant 2 : i32
  // CHECK-DAG:  %[[F32:.+]] = arith.constant 0 : i32
  // CHECK-DAG:  %[[ONE:.+]] = arith.constant 1.000000e+00 : f32
  // CHECK:      %[[THREADS:.+]] = arith.constant 3 : i64
  // CHECK:      llvm.call @diffattn_rt_gemm(%[[BF16]], {{.*}}, %[[ONE]], %[[SLOT]], %[[THREADS]])
  %w = diffattn.weight %layer : memref<96x64xbf16>
  diffattn.gemm ins(%x, %w : memref<?x64xbf16>, memref<96x64xbf16>) outs(%y : memref<?x96xf32>) {transpose_b, accumulate}
  return
}

// What is an argument may change from call to call: it is packed in none, and its rows are only summed in one order when
// asked for.
// AUTO-LABEL: func.func @argument(
// AUTO:         scf.if
// AUTO:         arith.constant 1 : i32
// AUTO:         llvm.call @diffattn_rt_gemm
// ALL-LABEL:  func.func @argument(
// ALL-NOT:      scf.if
// ALL:          arith.constant 3 : i32
// ALL:          %[[NONE:.+]] = llvm.mlir.zero : !llvm.ptr
// ALL:          llvm.call @diffattn_rt_gemm({{.*}}, %[[NONE]], %{{[^,]+}})
func.func @argument(%x: memref<?x64xf32>, %w: memref<96x64xf32>, %y: memref<?x96xf32>) {
  diffattn.gemm ins(%x, %w : memref<?x64xf32>, memref<96x64xf32>) outs(%y : memref<?x96xf32>) {transpose_b}
  return
}

// A constant has a slot of its own, also behind views of all of it, one for all of its products.
// CHECK-LABEL: func.func @constant(
// CHECK:         %[[SLOT:.+]] = llvm.mlir.addressof @diffattn_slot_of_kernel
// CHECK:         llvm.call @diffattn_rt_gemm({{.*}}, %[[SLOT]], %{{[^,]+}})
// CHECK:         %[[AGAIN:.+]] = llvm.mlir.addressof @diffattn_slot_of_kernel
// CHECK:         llvm.call @diffattn_rt_gemm({{.*}}, %[[AGAIN]], %{{[^,]+}})
memref.global "private" constant @kernel : memref<8x6xf32> = dense<1.0>
func.func @constant(%x: memref<9x8xf32>, %y: memref<9x6xf32>) {
  %w = memref.get_global @kernel : memref<8x6xf32>
  diffattn.gemm ins(%x, %w : memref<9x8xf32>, memref<8x6xf32>) outs(%y : memref<9x6xf32>)
  %e = memref.expand_shape %w [[0, 1], [2]] output_shape [2, 4, 6] : memref<8x6xf32> into memref<2x4x6xf32>
  %c = memref.collapse_shape %e [[0, 1], [2]] : memref<2x4x6xf32> into memref<8x6xf32>
  diffattn.gemm ins(%x, %c : memref<9x8xf32>, memref<8x6xf32>) outs(%y : memref<9x6xf32>) {accumulate}
  return
}

// A global that can change is no constant.
// CHECK-LABEL: func.func @variable(
// CHECK-NOT:     diffattn_slot_of
// CHECK:         llvm.call @diffattn_rt_gemm
memref.global "private" @changing : memref<8x6xf32> = dense<1.0>
func.func @variable(%x: memref<9x8xf32>, %y: memref<9x6xf32>) {
  %w = memref.get_global @changing : memref<8x6xf32>
  diffattn.gemm ins(%x, %w : memref<9x8xf32>, memref<8x6xf32>) outs(%y : memref<9x6xf32>)
  return
}

// More rows than that are never few.
// CHECK-LABEL: func.func @many_rows(
// CHECK-NOT:   scf.if
func.func @many_rows(%x: memref<9x64xf32>, %w: memref<96x64xf32>, %y: memref<9x96xf32>) {
  diffattn.gemm ins(%x, %w : memref<9x64xf32>, memref<96x64xf32>) outs(%y : memref<9x96xf32>) {transpose_b}
  return
}

// A view with contiguous columns is read as transposed; nothing is copied.
// CHECK-LABEL: func.func @views(
// CHECK-NOT:   memref.alloc
// CHECK:       llvm.call @diffattn_rt_gemm
// CHECK-NOT:   memref.copy
func.func @views(%x: memref<4x8xf32, strided<[?, 1], offset: ?>>, %w: memref<8x6xf32, strided<[1, ?], offset: ?>>,
                 %y: memref<4x6xf32, strided<[100, 1]>>) {
  diffattn.gemm ins(%x, %w : memref<4x8xf32, strided<[?, 1], offset: ?>>, memref<8x6xf32, strided<[1, ?], offset: ?>>)
    outs(%y : memref<4x6xf32, strided<[100, 1]>>)
  return
}

// Neither rows nor columns are contiguous: a copy in, a copy out.
// CHECK-LABEL: func.func @bounce(
// CHECK:       memref.copy
// CHECK:       llvm.call @diffattn_rt_gemm
// CHECK:       memref.copy
func.func @bounce(%x: memref<4x8xf32>, %y: memref<8x6xf32>, %z: memref<4x6xf32, strided<[12, 2]>>) {
  diffattn.gemm ins(%x, %y : memref<4x8xf32>, memref<8x6xf32>) outs(%z : memref<4x6xf32, strided<[12, 2]>>) {accumulate}
  return
}

// Outer batches are a loop, the innermost one is the library's; B is shared.
// CHECK-LABEL: func.func @batches(
// CHECK:       scf.for
// CHECK:         llvm.call @diffattn_rt_batch_gemm
func.func @batches(%x: memref<2x3x4x8xf32>, %y: memref<8x6xf32>, %z: memref<2x3x4x6xf32>) {
  diffattn.gemm ins(%x, %y : memref<2x3x4x8xf32>, memref<8x6xf32>) outs(%z : memref<2x3x4x6xf32>)
  return
}
// CHECK-DAG: llvm.func private @[[$KERNEL]](
// CHECK-DAG: llvm.func @diffattn_release_constants()
}
