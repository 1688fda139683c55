// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=avx512" | FileCheck %s --check-prefixes=CHECK,TABLE
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=avx2" | FileCheck %s --check-prefixes=CHECK,SHIFT
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=avx512 batch-invariant=true" | FileCheck %s --check-prefix=ONE
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=amx threads=3" | FileCheck %s --check-prefixes=TILES,NATIVE
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=amx-emulated threads=3" | FileCheck %s --check-prefixes=TILES,EMULATED
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=amx batch-invariant=true" | FileCheck %s --check-prefix=ONE
// RUN: diffattn-opt %s --convert-diffattn-gemm-to-runtime="isa=avx512" --split-input-file | FileCheck %s --check-prefix=STATIC

// Up to 64 rows go to the kernel that widens in registers, more to the library by way of memory.
// CHECK-LABEL: func.func @int4(
// CHECK:       %[[MANY:.+]] = arith.constant 64 : i64
// CHECK:       %[[FEW:.+]] = arith.cmpi ule, %{{.+}}, %[[MANY]] : i64
// CHECK:       scf.if %[[FEW]] {
// CHECK-NEXT:    llvm.call @diffattn_quantized_gemm_bf16_i4g128_f32_
// CHECK-NEXT:  } else {
// CHECK-NEXT:    llvm.call @diffattn_widened_gemm_bf16_i4g128_f32_
// Where a row must not depend on the others the first takes all.
// ONE-LABEL:   func.func @int4(
// ONE-NOT:     scf.if
// ONE:         llvm.call @diffattn_quantized_gemm_bf16_i4g128_f32_16_a
// Where there are tiles they take more than 64 rows, with the integers as they lie: element types, bits, group,
// sizes, A, B with its scales, which tiles, C, what C is multiplied with, threads.
// TILES-LABEL: func.func @int4(
// TILES-DAG:   %[[COLUMNS:.+]] = arith.constant 96 : i64
// TILES-DAG:   %[[DEPTH:.+]] = arith.constant 256 : i64
// TILES-DAG:   %[[THREADS:.+]] = arith.constant 3 : i64
// TILES:       scf.if
// TILES-NEXT:    llvm.call @{{"?}}diffattn_quantized_gemm_bf16_i4g128_f32_{{[^(]*}}(%[[A:.+]], %[[LDA:.+]], %[[B:.+]], %[[SCALES:.+]], %[[C:.+]], %[[LDC:.+]], %[[ROWS:.+]], %[[COLUMNS]], %[[DEPTH]], %[[THREADS]])
// TILES-NEXT:  } else {
// TILES-DAG:     %[[BF16:.+]] = arith.constant 2 : i32
// TILES-DAG:     %[[F32:.+]] = arith.constant 0 : i32
// TILES-DAG:     %[[BITS:.+]] = arith.constant 4 : i32
// TILES-DAG:     %[[GROUP:.+]] = arith.constant 128 : i64
// NATIVE-DAG:    %[[FLAGS:.+]] = arith.constant 8 : i32
// EMULATED-DAG:  %[[FLAGS:.+]] = arith.constant 16 : i32
// TILES-DAG:     %[[BETA:.+]] = arith.constant 0.000000e+00 : f32
// TILES:         llvm.call @diffattn_rt_quantized_gemm(%[[BF16]], %[[F32]], %[[BITS]], %[[GROUP]], %[[ROWS]], %[[COLUMNS]], %[[DEPTH]], %[[A]], %[[LDA]], %[[B]], %[[SCALES]], %[[FLAGS]], %[[C]], %[[LDC]], %[[BETA]], %[[THREADS]])
// TILES-NOT:   widened_gemm
func.func @int4(%x: memref<?x256xbf16>, %w: memref<96x128xi8>, %s: memref<96x2xf32>, %y: memref<?x96xf32>) {
  diffattn.quantized_gemm ins(%x, %w, %s : memref<?x256xbf16>, memref<96x128xi8>, memref<96x2xf32>) outs(%y : memref<?x96xf32>) {bits = 4 : i64}
  return
}

// Four bits become f32 by a table in one instruction, or by shifts and a conversion.
// CHECK-LABEL: llvm.func private @diffattn_quantized_gemm_bf16_i4g128_f32_{{.*}}_item(
// CHECK:         arith.extsi {{.*}}xi8> to
// TABLE:         llvm.call_intrinsic "llvm.x86.avx512.permvar.sf.512"
// TABLE-NOT:     arith.sitofp
// SHIFT-NOT:     permvar
// SHIFT:         arith.shli
// SHIFT:         arith.sitofp
// CHECK:         vector.fma

// It reads a copy of A as f32, its even columns before its odd ones.
// CHECK-LABEL: llvm.func private @diffattn_quantized_gemm_bf16_i4g128_f32_
// CHECK:         llvm.call @diffattn_rt_mark
// CHECK:         llvm.call @diffattn_rt_alloc
// CHECK:         vector.shuffle {{.*}} [0, 2, 4, 6, 8,
// CHECK:         vector.shuffle {{.*}} [1, 3, 5, 7, 9,
// CHECK:         llvm.call @diffattn_rt_parallel_for
// CHECK:         llvm.call @diffattn_rt_release

// The library gets rows of B in the type of A, put in order again.
// CHECK-LABEL: llvm.func private @diffattn_widened_gemm_bf16_i4g128_f32_{{.*}}_item(
// CHECK:         vector.shuffle {{.*}} [0, {{8|16}}, 1, {{9|17}},
// CHECK-LABEL: llvm.func private @diffattn_widened_gemm_bf16_i4g128_f32_
// CHECK:         llvm.call @diffattn_rt_parallel_for
// CHECK:         llvm.call @diffattn_rt_gemm

// -----

// A known number of few rows needs no choice; views are copied, and sums are added to what is there.
// STATIC-LABEL: func.func @int8(
// STATIC-COUNT-2: memref.alloc
// STATIC-NOT:   scf.if
// STATIC:       llvm.call @diffattn_quantized_gemm_f32_i8g16_f32_add_16_avx512
func.func @int8(%x: memref<4x64xf32, strided<[1, 4]>>, %w: memref<96x64xi8, strided<[64, 1], offset: ?>>, %s: memref<96x4xf32>, %y: memref<4x96xf32>) {
  diffattn.quantized_gemm ins(%x, %w, %s : memref<4x64xf32, strided<[1, 4]>>, memref<96x64xi8, strided<[64, 1], offset: ?>>, memref<96x4xf32>)
    outs(%y : memref<4x96xf32>) {bits = 8 : i64, accumulate}
  return
}
