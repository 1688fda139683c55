// RUN: diffattn-opt %s --diffattn-decompose | FileCheck %s --check-prefixes=CHECK,SOME
// RUN: diffattn-opt %s --diffattn-decompose=all | FileCheck %s --check-prefixes=CHECK,ALL
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

// CHECK-LABEL: func.func @linalg_schedule(
// CHECK-NOT:   diffattn.attention
// CHECK:       linalg.generic
func.func @linalg_schedule(%q: !q, %l: !s, %init: !q) -> !q {
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : !s)
         outs(%init : !q) {scale = 0.5 : f32, schedule = #diffattn.schedule<path = linalg>} -> !q
  return %o : !q
}

// CHECK-LABEL: func.func @nest_schedule(
// SOME:        diffattn.attention
// ALL-NOT:     diffattn.attention
// ALL:         linalg.generic
func.func @nest_schedule(%q: !q, %l: !s, %init: !q) -> !q {
  %o = diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : !s)
         outs(%init : !q)
         {scale = 0.5 : f32,
          schedule = #diffattn.schedule<path = nest, isa = "avx512", lanes = 16, rows = 48,
            qk_tile = [8, 3, 8], pv_tile = [6, 4, 4], kv_block_size = 256,
            two_pass_keys = 16384, split_rows = 8, split_keys = 256>} -> !q
  return %o : !q
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
