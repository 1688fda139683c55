// RUN: diffattn-opt %s --diffattn-emulate-amx --split-input-file | FileCheck %s
// RUN: diffattn-opt %s --diffattn-emulate-amx=missing-only --split-input-file | FileCheck %s --check-prefix=MISSING

// A tile is memory in the frame of the function, and so is what a loop hands on; rows are copied in loops, and a product is a call.
// CHECK-LABEL: func.func @carried(
// CHECK-COUNT-5: llvm.alloca {{.*}} : (i64) -> !llvm.ptr
// CHECK-NOT:   llvm.alloca
// CHECK:       scf.for
// CHECK:         llvm.store %{{.*}} : vector<16xf32>, !llvm.ptr
// CHECK:       %[[SUM:.*]] = scf.for {{.*}} iter_args(%[[CARRIED:.*]] = %{{.*}}) -> (!llvm.ptr)
// CHECK:         scf.for
// CHECK:           vector.load %arg0[{{.*}}] : memref<?x32xbf16>, vector<32xbf16>
// CHECK:           llvm.store {{.*}} : vector<32xi16>, !llvm.ptr
// CHECK:         scf.for
// CHECK:           vector.load %arg1[{{.*}}] : memref<?x32xbf16>, vector<32xbf16>
// CHECK:         llvm.call @diffattn_emulated_tdpbf16ps_16x16x32_16_generic(%[[NEXT:.*]], %[[CARRIED]], %{{.*}}, %{{.*}})
// CHECK:         scf.for
// CHECK:           llvm.getelementptr %[[NEXT]]
// CHECK:           llvm.getelementptr %[[HANDED:.*]][
// CHECK:         scf.yield %[[HANDED]] : !llvm.ptr
// CHECK:       scf.for
// CHECK:         llvm.getelementptr %[[SUM]]
// CHECK:         vector.store {{.*}} : memref<16x16xf32>, vector<16xf32>
// CHECK-NOT:   amx.
// The two chains of one element of the sum.
// CHECK:       llvm.func private @diffattn_emulated_tdpbf16ps_16x16x32_16_generic(
// CHECK:         scf.for {{.*}} iter_args(%{{.*}} = %[[ZERO:.*]], %{{.*}} = %[[ZERO]])
// CHECK-COUNT-2: math.fma
// CHECK-NOT:     math.fma
func.func @carried(%a: memref<?x32xbf16>, %b: memref<?x32xbf16>, %c: memref<16x16xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %zero = amx.tile_zero : !amx.tile<16x16xf32>
  %sum = scf.for %i = %c0 to %n step %c16 iter_args(%s = %zero) -> (!amx.tile<16x16xf32>) {
    %ta = amx.tile_load %a[%i, %c0] : memref<?x32xbf16> into !amx.tile<16x32xbf16>
    %tb = amx.tile_load %b[%i, %c0] : memref<?x32xbf16> into !amx.tile<16x32xbf16>
    %next = amx.tile_mulf %ta, %tb, %s : !amx.tile<16x32xbf16>, !amx.tile<16x32xbf16>, !amx.tile<16x16xf32>
    scf.yield %next : !amx.tile<16x16xf32>
  }
  amx.tile_store %c[%c0, %c0], %sum : memref<16x16xf32>, !amx.tile<16x16xf32>
  return
}

// -----

// The rows and bytes of a tile are kept; with a stride, rows are so far apart.
// CHECK-LABEL: func.func @small(
// CHECK-SAME:  %[[MEMORY:.*]]: memref<?xi8>, %[[STRIDE:.*]]: index
// CHECK:       scf.for %[[I:.*]] = %{{.*}} to %{{.*}} step
// CHECK:         %[[ROW:.*]] = arith.index_cast %[[I]] : i64 to index
// CHECK:         %[[OFFSET:.*]] = arith.muli %[[ROW]], %[[STRIDE]]
// CHECK:         %[[AT:.*]] = arith.addi %{{.*}}, %[[OFFSET]]
// CHECK:         vector.load %[[MEMORY]][%[[AT]]] : memref<?xi8>, vector<8xi8>
// CHECK:       llvm.call @diffattn_emulated_tdpbusd_2x4x8_4_generic(
// CHECK-LABEL: llvm.func private @diffattn_emulated_tdpbusd_2x4x8_4_generic(
// CHECK:       arith.extsi {{.*}} : vector<4xi8> to vector<4xi32>
// CHECK:       arith.extui {{.*}} : i8 to i32
func.func @small(%memory: memref<?xi8>, %stride: index, %c: memref<2x4xi32>) {
  %c0 = arith.constant 0 : index
  %a = amx.tile_load %memory[%c0], %stride : memref<?xi8> into !amx.tile<2x8xi8>
  %b = amx.tile_load %memory[%c0], %stride : memref<?xi8> into !amx.tile<2x16xi8>
  %s = amx.tile_load %c[%c0, %c0] : memref<2x4xi32> into !amx.tile<2x4xi32>
  %r = amx.tile_muli %a zext, %b, %s : !amx.tile<2x8xi8>, !amx.tile<2x16xi8>, !amx.tile<2x4xi32>
  amx.tile_store %c[%c0, %c0], %r : memref<2x4xi32>, !amx.tile<2x4xi32>
  return
}

// -----

// MISSING-LABEL: @has_tiles
// MISSING:       amx.tile_zero
// MISSING-LABEL: @has_vectors
// MISSING-NOT:   amx.
// MISSING:       llvm.call @diffattn_emulated_tdpbf16ps_16x16x32_16_avx2(
// MISSING-LABEL: llvm.func private @diffattn_emulated_tdpbf16ps_16x16x32_16_avx2(
// MISSING-SAME:  target_features = #llvm.target_features<["+avx2", "+fma", "+f16c"]>
llvm.func @has_tiles() attributes {target_features = #llvm.target_features<["+amx-bf16", "+amx-tile"]>} {
  %zero = amx.tile_zero : !amx.tile<16x16xf32>
  llvm.return
}
func.func @has_vectors(%a: memref<16x32xbf16>, %c: memref<16x16xf32>)
    attributes {target_features = #llvm.target_features<["+avx2", "+fma"]>} {
  %c0 = arith.constant 0 : index
  %x = amx.tile_load %a[%c0, %c0] : memref<16x32xbf16> into !amx.tile<16x32xbf16>
  %zero = amx.tile_zero : !amx.tile<16x16xf32>
  %r = amx.tile_mulf %x, %x, %zero : !amx.tile<16x32xbf16>, !amx.tile<16x32xbf16>, !amx.tile<16x16xf32>
  amx.tile_store %c[%c0, %c0], %r : memref<16x16xf32>, !amx.tile<16x16xf32>
  return
}
