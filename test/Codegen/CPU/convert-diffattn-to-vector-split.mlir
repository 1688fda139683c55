// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512},convert-diffattn-to-vector)" | FileCheck %s

!q = memref<2x8x1x64xf32>
!k = memref<2x2x4096x64xf32>
!v = memref<2x2x4096x128xf32>

// One query: 2 batches x 2 groups of heads x 8 blocks of 512 keys, for each map in the first loop; and 16 rows.
// CHECK-LABEL: func.func @decode(
// CHECK-NOT:     diffattn.attention
// CHECK:         %[[MARK:.+]] = llvm.call @diffattn_rt_mark()
// CHECK:         %[[STATES:.+]] = llvm.call @diffattn_rt_alloc(
// CHECK:         %[[SCORES:.+]] = llvm.mlir.addressof @diffattn_attention_0_scores
// CHECK:         llvm.call @diffattn_rt_parallel_for(%[[SCORES]], %{{[^,]+}}, %c64_i64
// CHECK:         %[[FACTORS:.+]] = llvm.mlir.addressof @diffattn_attention_0_factors
// CHECK:         llvm.call @diffattn_rt_parallel_for(%[[FACTORS]], %{{[^,]+}}, %c16_i64
// CHECK:         %[[VALUES:.+]] = llvm.mlir.addressof @diffattn_attention_0_values
// CHECK:         llvm.call @diffattn_rt_parallel_for(%[[VALUES]], %{{[^,]+}}, %c32_i64
// CHECK:         %[[MERGE:.+]] = llvm.mlir.addressof @diffattn_attention_0_merge
// CHECK:         llvm.call @diffattn_rt_parallel_for(%[[MERGE]], %{{[^,]+}}, %c16_i64
// CHECK:         llvm.call @diffattn_rt_release(%[[MARK]])
// CHECK-NEXT:    return
func.func @decode(%q: !q, %k: !k, %v: !v, %l: memref<f32>, %o: memref<2x8x1x128xf32>) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !k, !q, !k, !v) lambda(%l : memref<f32>)
      outs(%o : memref<2x8x1x128xf32>) {scale = 0.125 : f32}
  return
}

// With an unknown number of queries both ways are there, and the number decides.
!qd = memref<?x8x?x64xf32>
// CHECK-LABEL: func.func @dynamic(
// CHECK:         scf.if
// CHECK:           llvm.mlir.addressof @diffattn_attention_1 :
// CHECK:         } else {
// CHECK:           llvm.mlir.addressof @diffattn_attention_1_scores
func.func @dynamic(%q: !qd, %l: memref<f32>, %o: !qd) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !qd, !qd, !qd, !qd, !qd) lambda(%l : memref<f32>)
      outs(%o : !qd) {scale = 0.125 : f32}
  return
}

// Where one map has fewer heads than the other each has a function of its own, in which their numbers are known.
!few = memref<2x2x1x64xf32>
// CHECK-LABEL: func.func @grouped(
func.func @grouped(%q: !q, %few: !few, %k: !k, %v: !v, %l: memref<f32>, %o: memref<2x8x1x128xf32>) {
  diffattn.attention ins(%q, %k, %few, %k, %v : !q, !k, !few, !k, !v) lambda(%l : memref<f32>)
      outs(%o : memref<2x8x1x128xf32>) {scale = 0.125 : f32}
  return
}

// One function makes the scores of either map: of the second one from item 32 on, whose operands lie one slot further on.
// CHECK-LABEL: llvm.func private @diffattn_attention_0_scores_of_map(
// CHECK-SAME:    %[[CONTEXT:[^:]+]]: !llvm.ptr, %[[INDEX:[^:]+]]: i64
// CHECK:         %[[IS_SECOND:.+]] = arith.cmpi sgt, %[[INDEX]], %c31_i64
// CHECK:         %[[SLOTS:.+]] = arith.select %[[IS_SECOND]], %c1_i64{{[^,]*}}, %c0_i64
// CHECK:         llvm.getelementptr %[[CONTEXT]][%[[SLOTS]]]

// Four heads share each head of K: a key's columns are loaded once, in the order of addresses, for all of them, and their
// 16 products of 4 keys are folded into one vector, first within four lanes.
// CHECK:         llvm.fence syncscope("singlethread") acq_rel
// CHECK-COUNT-4: vector.fma
// CHECK:         llvm.load
// CHECK-COUNT-4: vector.fma
// CHECK:         vector.shuffle {{.*}} [0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29]
// CHECK-COUNT-3: llvm.fence
// CHECK-NOT:     llvm.fence
// CHECK:         vector.extract_strided_slice {{.*}} {offsets = [12], sizes = [4], strides = [1]} : vector<16xf32> to vector<4xf32>
// Their scores become exponentials together: four maxima, then four sums.
// CHECK-COUNT-2: scf.for {{.*}} -> (vector<16xf32>, vector<16xf32>, vector<16xf32>, vector<16xf32>)
// CHECK:         scf.for {{.*}} -> (vector<16xf32>, vector<16xf32>, vector<16xf32>, vector<16xf32>)

// Keys that both maps share are read once.
// CHECK-LABEL: llvm.func private @diffattn_attention_0_scores(
// CHECK:         %[[SHARED:.+]] = arith.cmpi eq
// CHECK:         scf.if
// CHECK:           llvm.call @diffattn_attention_0_scores_of_map(%[[CONTEXT:[^,]+]], %[[ITEM:[^,]+]],
// CHECK-NEXT:      scf.if %[[SHARED]] {
// CHECK-NEXT:        %[[SECOND:.+]] = arith.addi %[[ITEM]], %c32_i64
// CHECK-NEXT:        llvm.call @diffattn_attention_0_scores_of_map(%[[CONTEXT]], %[[SECOND]],
// CHECK:         } else {
// CHECK-NEXT:      scf.if %[[SHARED]] {
// CHECK-NEXT:      } else {
// CHECK:             llvm.call @diffattn_attention_0_scores_of_map(%[[CONTEXT]], %[[ITEM]],

// P is formed once, for 16 keys just before their values are read, eight at a time, and a value that is loaded serves two
// heads: 16 sums.
// CHECK-LABEL: llvm.func private @diffattn_attention_0_values(
// CHECK:         scf.for %[[FIRST:[^ ]+]] = {{.*}} to %{{[0-9]+}} step %c16_i64
// CHECK:         scf.for {{.*}} = %[[FIRST]] to %[[END:[^ ]+]] step %c16_i64
// CHECK:         %[[NOISE:.+]] = arith.mulf
// CHECK:         %[[P:.+]] = vector.fma %{{[^,]+}}, %{{[^,]+}}, %[[NOISE]]
// CHECK:         llvm.store %[[P]]
// CHECK:         scf.for {{.*}} = %[[FIRST]] to %[[END]] step %c8_i64
// CHECK:         scf.for {{.*}} iter_args({{(%arg[0-9]+ = [^ ]+ ?)+}}) -> ({{(vector<16xf32>, ){15}vector<16xf32>}})
// CHECK-COUNT-8:   llvm.load {{.*}} -> vector<16xf32>
// CHECK-NOT:       -> vector<16xf32>
// CHECK:           scf.yield

// CHECK-LABEL: llvm.func private @diffattn_attention_2_scores1(
// CHECK-LABEL: llvm.func private @diffattn_attention_2_scores2(
// CHECK-LABEL: llvm.func private @diffattn_attention_2_scores(
// CHECK:         llvm.call @diffattn_attention_2_scores1(
// CHECK:         llvm.call @diffattn_attention_2_scores2(

// With bf16 dot products, pairs of columns of K and pairs of keys of V are multiplied as they are.
// RUN: sed -e 's/f32>/bf16>/g' -e 's/memref<bf16>/memref<f32>/g' %s | diffattn-opt --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512bf16},convert-diffattn-to-vector)" | FileCheck %s --check-prefix=PAIRS
// PAIRS-LABEL: llvm.func private @diffattn_attention_0_scores_of_map(
// PAIRS-NOT:     vector.fma
// PAIRS:         llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"
// PAIRS-LABEL: llvm.func private @diffattn_attention_0_values(
// PAIRS:         vector.shuffle {{.*}} [0, 32, 1, 33,
// PAIRS:         llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"

// With tiles, 16 keys as they lie meet the four queries in one tile of sums, four wide. The function calls no other one, and
// the tiles of queries stay where they are.
// RUN: sed -e 's/f32>/bf16>/g' -e 's/memref<bf16>/memref<f32>/g' %s | diffattn-opt --pass-pipeline="builtin.module(diffattn-select-schedule{isa=amx},convert-diffattn-to-vector)" | FileCheck %s --check-prefix=TILES
// TILES-LABEL: llvm.func private @diffattn_attention_0_scores_of_map(
// TILES-NOT:     amx.
// TILES:         llvm.call @diffattn_tile_few_scores_4x64_bf16_ahead_16_amx(
// TILES-LABEL: llvm.func private @diffattn_tile_few_scores_4x64_bf16_ahead_16_amx(
// TILES-NOT:     llvm.call
// TILES-COUNT-2: amx.tile_load {{.*}} into !amx.tile<16x8xbf16>
// TILES-NOT:     llvm.call
// TILES:         scf.for {{.*}} to %arg4 step
// TILES-NOT:       into !amx.tile<16x8xbf16>
// TILES:           amx.tile_zero : !amx.tile<16x4xf32>
// TILES-COUNT-16:  llvm.intr.prefetch
// TILES:           amx.tile_load %{{.*}}, %{{.*}} : {{.*}} into !amx.tile<16x32xbf16>
// TILES:           amx.tile_mulf {{.*}} : !amx.tile<16x32xbf16>, !amx.tile<16x8xbf16>, !amx.tile<16x4xf32>
// TILES-COUNT-16:  llvm.intr.prefetch
// TILES:           amx.tile_load %{{.*}} : {{.*}} into !amx.tile<16x32xbf16>
// TILES:           amx.tile_mulf
// TILES-NOT:       amx.tile_mulf
// TILES:           amx.tile_store
// Sums are then [key][row], and become vectors of keys.
// TILES:         scf.for {{.*}} to %arg4 step
// TILES-COUNT-4:   llvm.load {{.*}} -> vector<16xf32>
// TILES-COUNT-8:   vector.shuffle
// TILES-NOT:       vector.shuffle
// TILES-COUNT-4:   llvm.store {{.*}} : vector<16xf32>
// TILES-NOT:     llvm.call
// TILES:         llvm.return
// Values are multiplied in f32.
// TILES-LABEL: llvm.func private @diffattn_attention_0_values(
// TILES:         vector.fma
