// RUN: diffattn-opt %s --diffattn-split-kv --canonicalize --cse | FileCheck %s

// Two signal heads to a noise head, one value head to both: the second map has
// half of the states. All states of ranges lie in one allocation.
// CHECK-LABEL: func.func @few(
// CHECK:         %[[MEMORY:.+]] = gpu.alloc (%c37440) : memref<?xi8>
// CHECK:         %[[MAX1:.+]] = memref.view %[[MEMORY]][%c0][] : memref<?xi8> to memref<2x3x4x2xf32>
// CHECK:         %[[ACC1:.+]] = memref.view %[[MEMORY]][%c384][] : memref<?xi8> to memref<2x3x4x2x128xf32>
// CHECK:         memref.view %[[MEMORY]][%c24960][] : memref<?xi8> to memref<2x3x2x2xf32>
// CHECK:         memref.view %[[MEMORY]][%c25152][] : memref<?xi8> to memref<2x3x2x2x128xf32>
// CHECK:         diffattn.online_attention ins(%arg0, %arg1, %arg2, %arg3, %arg4 :
// CHECK-SAME:      outs(%[[MAX1]], %{{.+}}, %[[ACC1]],
// CHECK-SAME:      is_causal, kv_split_size = 512 : i64, scale = 1.250000e-01 : f32,
// CHECK-SAME:      schedule = #diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>
// CHECK-NEXT:    diffattn.merge ins(%[[MAX1]], %{{.+}}, %[[ACC1]] :
// CHECK-NEXT:    diffattn.merge
// CHECK-NEXT:    diffattn.finalize {{.*}} norm_weight(%arg6 : memref<128xf32>) outs(%arg7 :
// CHECK-SAME:      {norm = #diffattn.norm<rms>, out_scale = 8.000000e-01 : f32}
// CHECK:         gpu.dealloc %[[MEMORY]]
!q1 = memref<3x4x2x64xbf16>
!q2 = memref<3x2x2x64xbf16>
!k = memref<3x2x1000x64xbf16>
!v = memref<3x2x1000x128xbf16>
!o = memref<3x4x2x128xbf16>
func.func @few(%q1: !q1, %k1: !k, %q2: !q2, %k2: !k, %v: !v, %l: memref<4xf32>, %w: memref<128xf32>, %o: !o) {
  diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q1, !k, !q2, !k, !v) lambda(%l : memref<4xf32>)
    norm_weight(%w : memref<128xf32>) outs(%o : !o)
    {scale = 0.125 : f32, is_causal, norm = #diffattn.norm<rms>, out_scale = 0.8 : f32,
     schedules = [#diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>]}
  return
}

// One map has the first three states.
// CHECK-LABEL: func.func @one_map(
// CHECK:         %[[MEMORY:.+]] = gpu.alloc (%c24960) : memref<?xi8>
// CHECK:         %[[MAX:.+]] = memref.view %[[MEMORY]][%c0][] : memref<?xi8> to memref<2x3x4x2xf32>
// CHECK:         %[[ACC:.+]] = memref.view %[[MEMORY]][%c384][] : memref<?xi8> to memref<2x3x4x2x128xf32>
// CHECK-NOT:     memref.view
// CHECK:         diffattn.online_attention ins(%arg0, %arg1, %arg2 :
// CHECK-SAME:      outs(%[[MAX]], %{{.+}}, %[[ACC]] :
// CHECK-NEXT:    diffattn.merge ins(%[[MAX]], %{{.+}}, %[[ACC]] :
// CHECK-NEXT:    diffattn.finalize
// CHECK-NOT:     lambda
// CHECK:         gpu.dealloc %[[MEMORY]]
func.func @one_map(%q: !q1, %k: !k, %v: !v, %o: !o) {
  diffattn.attention ins(%q, %k, %v : !q1, !k, !v) outs(%o : !o)
    {scale = 0.125 : f32, schedules = [#diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>]}
  return
}

// Calls that take another schedule keep an attention, with what is left of the list.
// CHECK-LABEL: func.func @any_number(
// CHECK:         scf.if
// CHECK:           %[[MEMORY:.+]] = gpu.alloc (%{{.+}}) : memref<?xi8>
// CHECK:           diffattn.online_attention
// CHECK:           gpu.dealloc %[[MEMORY]]
// CHECK:         } else {
// CHECK:           diffattn.attention {{.*}} schedules = [#diffattn.when<unaligned = true : #diffattn.gpu_forward<placement = both, warps = 2, kv_block_size = 32>>, #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32>]
// CHECK-NOT:     diffattn.attention
!qn = memref<1x4x?x64xbf16>
func.func @any_number(%q: !qn, %k: !qn, %l: memref<f32>, %o: !qn) {
  diffattn.attention ins(%q, %k, %q, %k, %k : !qn, !qn, !qn, !qn, !qn) lambda(%l : memref<f32>) outs(%o : !qn)
    {scale = 0.125 : f32, schedules = [
       #diffattn.when<max_queries = 8 : #diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>>,
       #diffattn.when<unaligned = true : #diffattn.gpu_forward<placement = both, warps = 2, kv_block_size = 32>>,
       #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32>]}
  return
}

// Of packed sequences as many queries as the sequences have on average count, and of pages all keys that a row of the table has place for.
// CHECK-LABEL: func.func @sequences(
// CHECK:         %[[QUERIES:.+]] = memref.dim %arg0, %c2
// CHECK:         arith.cmpi ule, %[[QUERIES]], %c24
// CHECK:         %[[PAGES:.+]] = memref.dim %arg6, %c1
// CHECK:         %[[KEYS:.+]] = arith.muli %[[PAGES]], %c16
// CHECK:         arith.cmpi uge, %[[KEYS]], %c64
// CHECK:           diffattn.online_attention {{.*}} kv_len(%{{.+}} : memref<3xi64>) cu_seqlens_q(%{{.+}} : memref<4xi32>) block_table(%arg6 : memref<3x?xi32>)
func.func @sequences(%q: memref<1x2x?x64xbf16>, %k: memref<?x2x16x64xbf16>, %l: memref<f32>, %o: memref<1x2x?x64xbf16>, %len: memref<3xi64>,
    %bounds: memref<4xi32>, %table: memref<3x?xi32>) {
  diffattn.attention ins(%q, %k, %q, %k, %k : memref<1x2x?x64xbf16>, memref<?x2x16x64xbf16>, memref<1x2x?x64xbf16>, memref<?x2x16x64xbf16>,
    memref<?x2x16x64xbf16>) lambda(%l : memref<f32>) kv_len(%len : memref<3xi64>) cu_seqlens_q(%bounds : memref<4xi32>)
    block_table(%table : memref<3x?xi32>) outs(%o : memref<1x2x?x64xbf16>)
    {scale = 0.125 : f32, schedules = [#diffattn.when<max_queries = 8, min_keys = 64 : #diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>>,
     #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32>]}
  return
}
