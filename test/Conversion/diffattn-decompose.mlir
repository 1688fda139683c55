// RUN: diffattn-opt %s --diffattn-decompose | FileCheck %s --check-prefixes=CHECK,SOME
// RUN: diffattn-opt %s --diffattn-decompose=all | FileCheck %s --check-prefixes=CHECK,ALL
// RUN: not diffattn-opt %s --diffattn-decompose=target=tpu 2>&1 | FileCheck %s --check-prefix=TARGET
// TARGET: error: expected target to be cpu, gpu or any, but got tpu
!q = tensor<?x2x?x4xf32>
!s = tensor<f32>

// CHECK-LABEL: func.func @unscheduled(
// CHECK-NOT:   diffattn.attention
// CHECK:       linalg.generic
func.func @unscheduled(%q: !q, %l: !s, %init: !q) -> !q {
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : !s)
         outs(%init : !q) {scale = 0.5 : f32} -> !q
  return %o : !q
}

// One map: a row of V by its own weights, and nothing is subtracted.
// CHECK-LABEL: func.func @one_map(
// CHECK:       arith.subf
// CHECK-NEXT:  math.exp
// CHECK-NOT:   math.exp
// CHECK-NOT:   arith.subf
// CHECK-NOT:   arith.andi
// CHECK:       return
func.func @one_map(%q: !q, %init: !q) -> !q {
  %o = diffattn.attention ins(%q, %q, %q : !q, !q, !q) outs(%init : !q) {scale = 0.5 : f32} -> !q
  return %o : !q
}

// CHECK-LABEL: func.func @linalg_schedule(
// CHECK-NOT:   diffattn.attention
// CHECK:       linalg.generic
func.func @linalg_schedule(%q: !q, %l: !s, %init: !q) -> !q {
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : !s)
         outs(%init : !q) {scale = 0.5 : f32, schedules = [#diffattn.linalg]} -> !q
  return %o : !q
}

// CHECK-LABEL: func.func @kernel_schedule(
// SOME:        diffattn.attention
// ALL-NOT:     diffattn.attention
// ALL:         linalg.generic
func.func @kernel_schedule(%q: !q, %l: !s, %init: !q) -> !q {
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : !s)
         outs(%init : !q)
         {scale = 0.5 : f32,
          schedules = [#diffattn.cpu_prefill<isa = "avx512", lanes = 16, q_block_size = 48,
            qk_tile = [8, 3, 4], pv_tile = [6, 4, 2], kv_block_size = 256,
            two_pass_keys = 16384>]} -> !q
  return %o : !q
}

// Linalg for up to 8 queries: of 3 it is what every call takes, of 9 none does.
// CHECK-LABEL: func.func @few(
// CHECK-NOT:   diffattn.attention
// CHECK:       linalg.generic
!q3 = tensor<?x2x3x4xf32>
func.func @few(%q: !q3, %l: !s, %init: !q3) -> !q3 {
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !q3, !q3, !q3, !q3, !q3) lambda(%l : !s) outs(%init : !q3)
         {scale = 0.5 : f32, schedules = [#diffattn.when<max_queries = 8 : #diffattn.linalg>, #diffattn.gpu_plain<warps = 4>]} -> !q3
  return %o : !q3
}

// CHECK-LABEL: func.func @many(
// SOME:        diffattn.attention
// ALL-NOT:     diffattn.attention
!q9 = tensor<?x2x9x4xf32>
func.func @many(%q: !q9, %l: !s, %init: !q9) -> !q9 {
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !q9, !q9, !q9, !q9, !q9) lambda(%l : !s) outs(%init : !q9)
         {scale = 0.5 : f32, schedules = [#diffattn.when<max_queries = 8 : #diffattn.linalg>, #diffattn.gpu_plain<warps = 4>]} -> !q9
  return %o : !q9
}

// On memrefs every buffer that the pass makes is freed, and nothing else is.
// CHECK-LABEL: func.func @memrefs(
// CHECK-COUNT-9: memref.alloc
// CHECK-COUNT-9: memref.dealloc
// CHECK-NOT:     memref.dealloc
// CHECK:         return
func.func @memrefs(%q: memref<1x2x?x4xf16, strided<[?, ?, ?, 1]>>, %l: memref<f32>,
                   %o: memref<1x2x?x4xf16>) {
  diffattn.attention ins(%q, %q, %q, %q, %q : memref<1x2x?x4xf16, strided<[?, ?, ?, 1]>>,
         memref<1x2x?x4xf16, strided<[?, ?, ?, 1]>>, memref<1x2x?x4xf16, strided<[?, ?, ?, 1]>>,
         memref<1x2x?x4xf16, strided<[?, ?, ?, 1]>>, memref<1x2x?x4xf16, strided<[?, ?, ?, 1]>>)
         lambda(%l : memref<f32>) outs(%o : memref<1x2x?x4xf16>) {scale = 0.5 : f32}
  return
}

// X is rounded into its own destination, before the norm, in the axes of the output.
// CHECK-LABEL: func.func @saved(
// CHECK-SAME:    %[[O:[^ ]+]]: tensor<1x?x2x4xf16>, %[[X:[^ ]+]]: tensor<1x?x2x4xf32>)
// CHECK:         %[[ROWS:.+]] = linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "reduction", "parallel"]}
// CHECK:         %[[OUT:.+]] = linalg.generic {{.*}} outs(%[[O]] : tensor<1x?x2x4xf16>)
// CHECK:         %[[SAVED:.+]] = linalg.generic {{.*}} ins(%[[ROWS]] : {{.*}} outs(%[[X]] : tensor<1x?x2x4xf32>)
// CHECK:         return %[[OUT]], %[[SAVED]]
func.func @saved(%q: tensor<1x2x?x4xf16>, %l: tensor<f32>, %o: tensor<1x?x2x4xf16>, %x: tensor<1x?x2x4xf32>)
    -> (tensor<1x?x2x4xf16>, tensor<1x?x2x4xf32>) {
  %r:2 = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x2x?x4xf16>, tensor<1x2x?x4xf16>, tensor<1x2x?x4xf16>, tensor<1x2x?x4xf16>,
           tensor<1x2x?x4xf16>) lambda(%l : tensor<f32>) outs(%o : tensor<1x?x2x4xf16>) x(%x : tensor<1x?x2x4xf32>)
           {scale = 0.5 : f32, norm = #diffattn.norm<rms>, o_layout = #diffattn.layout<bthd>} -> tensor<1x?x2x4xf16>, tensor<1x?x2x4xf32>
  return %r#0, %r#1 : tensor<1x?x2x4xf16>, tensor<1x?x2x4xf32>
}

// A sink is in the maximum and in the sum that weights are divided by; a row whose scores are all -inf has no logarithm.
// CHECK-LABEL: func.func @sums(
// CHECK-SAME:    %[[SINK:[^ ]+]]: tensor<2xf32>, %[[O:[^ ]+]]: tensor<1x2x?x4xf32>, %[[LSE:[^ ]+]]: tensor<1x2x?xf32>)
// CHECK:         %[[TOP:.+]] = linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
// CHECK:         arith.maximumf
// CHECK:         %[[MAX:.+]] = linalg.generic {{.*}} ins(%[[TOP]], %[[SINK]] :
// CHECK:         arith.maximumf
// CHECK:         %[[FIRST:.+]] = linalg.generic {{.*}} ins(%[[MAX]], %[[SINK]] :
// CHECK:         math.exp
// CHECK:         %[[SUM:.+]] = linalg.generic {{.*}} outs(%[[FIRST]] :
// CHECK:         %[[LOG:.+]] = linalg.generic {{.*}} ins(%[[TOP]], %[[MAX]], %[[SUM]] : {{.*}} outs(%[[LSE]] :
// CHECK:         math.log
// CHECK:         arith.select
// CHECK:         return %{{.+}}, %[[LOG]]
func.func @sums(%q: tensor<1x2x?x4xf32>, %s: tensor<2xf32>, %o: tensor<1x2x?x4xf32>, %m: tensor<1x2x?xf32>)
    -> (tensor<1x2x?x4xf32>, tensor<1x2x?xf32>) {
  %r:2 = diffattn.attention ins(%q, %q, %q : tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>)
           sink(%s : tensor<2xf32>) outs(%o : tensor<1x2x?x4xf32>) lse1(%m : tensor<1x2x?xf32>) {scale = 0.5 : f32}
           -> tensor<1x2x?x4xf32>, tensor<1x2x?xf32>
  return %r#0, %r#1 : tensor<1x2x?x4xf32>, tensor<1x2x?xf32>
}
