// RUN: diffattn-opt %s --diffattn-decompose --remarks-filter=diffattn-schedule --remark-format=emitRemark 2>%t.remarks | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK <%t.remarks
// RUN: diffattn-opt %s --diffattn-decompose=all --remarks-filter=diffattn-schedule --remark-format=emitRemark 2>&1 >%t.all | FileCheck %s --check-prefix=QUIET --allow-empty
// RUN: FileCheck %s <%t.all
// REMARK-COUNT-4: [Missed] Decompose | Category:diffattn-schedule | Reason="no schedule names a kernel", Summary="the gradients of attention are computed by loops over maps of Tq x Tk in memory"
// REMARK-NOT: Decompose
// QUIET-NOT: Decompose

!q = tensor<2x4x?x8xf32>
!n = tensor<2x2x?x8xf32>
!v = tensor<2x2x?x16xf32>
!o = tensor<2x4x?x16xf32>
!s = tensor<f32>
!lse = tensor<2x4x?xf32>
!lsn = tensor<2x2x?xf32>

// Without masks nothing is selected away, and of d_v alone there are no
// gradients of scores: two products make the maps, one the sum over queries,
// and one adds up the heads that share a head of values.
// CHECK-LABEL: func.func @values(
// CHECK-NOT:     diffattn.
// CHECK-COUNT-2: iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]
// CHECK:         %[[OF_SIGNAL:.*]] = linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction", "parallel", "parallel"]
// CHECK:         %[[GROUP:.*]] = tensor.empty() : tensor<2xf32>
// CHECK:         linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%[[OF_SIGNAL]], %[[GROUP]] :
// CHECK-NOT:     reduction
// CHECK:         return
func.func @values(%q1: !q, %k1: !q, %q2: !n, %k2: !n, %v: !v, %d: !o, %l: !s) -> !v {
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : !q, !q, !n, !n, !v) d_out(%d : !o) lambda(%l : !s)
         outs(d_v(%v : !v)) {scale = 0.5 : f32} -> !v
  return %r : !v
}

// What a forward pass kept is not read, and a bias that may have one head is
// added up over what turns out to share it.
// CHECK-LABEL: func.func @bias(
// CHECK-SAME:    %[[LSE1:[^:]*]]: tensor<2x4x?xf32>, %[[LSE2:[^:]*]]: tensor<2x2x?xf32>, %[[X:[^:]*]]: tensor<2x4x?x16xf32>, %[[O2:[^:]*]]: tensor<2x4x?x16xf32>)
// CHECK-NOT:     %[[LSE1]]
// CHECK-NOT:     %[[LSE2]]
// CHECK-NOT:     %[[X]]
// CHECK-NOT:     %[[O2]]
// CHECK:         %[[ONE:.*]] = arith.cmpi eq, %{{.*}}, %{{.*}} : index
// CHECK:         arith.select %[[ONE]]
// CHECK:         return
func.func @bias(%q1: !q, %k1: !q, %q2: !n, %k2: !n, %v: !v, %d: !o, %l: !s, %m: tensor<1x?x?x?xf32>, %lse1: !lse, %lse2: !lsn, %x: !o, %o2: !o)
    -> tensor<1x?x?x?xf32> {
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : !q, !q, !n, !n, !v) d_out(%d : !o) lambda(%l : !s)
         bias(%m : tensor<1x?x?x?xf32>) lse1(%lse1 : !lse) lse2(%lse2 : !lsn) x(%x : !o) o2(%o2 : !o)
         outs(d_bias(%m : tensor<1x?x?x?xf32>)) {scale = 0.5 : f32, norm = #diffattn.norm<rms>} -> tensor<1x?x?x?xf32>
  return %r : tensor<1x?x?x?xf32>
}

// Softcap's slope is in powers of e, which do not cancel.
// CHECK-LABEL: func.func @softcap(
// CHECK-COUNT-2: math.tanh
// CHECK-NOT:     math.tanh
// CHECK:         %[[U:.*]] = math.absf
// CHECK:         arith.addf %[[U]], %[[U]]
// CHECK:         math.exp
// CHECK-NOT:     math.tanh
// CHECK:         return
func.func @softcap(%q1: !q, %k1: !q, %q2: !n, %k2: !n, %v: !v, %d: !o, %l: !s) -> !q {
  %r = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : !q, !q, !n, !n, !v) d_out(%d : !o) lambda(%l : !s)
         outs(d_q1(%q1 : !q)) {scale = 0.5 : f32, softcap = 2.0 : f32} -> !q
  return %r : !q
}

// On memrefs every buffer that the pass makes is freed, and nothing else is.
// Where k2 is k1 the last step adds both maps' gradients, and rounds once.
// CHECK-LABEL: func.func @memrefs(
// CHECK-COUNT-19: memref.alloc
// CHECK:         linalg.generic {{.*}} outs(%arg6 : memref<1x2x?x4xf16, strided<[?, ?, ?, 1]>>)
// CHECK-NEXT:    ^bb0(%[[A:.*]]: f32, %[[B:.*]]: f32, %{{.*}}: f16)
// CHECK-NEXT:      %[[SUM:.*]] = arith.addf %[[A]], %[[B]] : f32
// CHECK-NEXT:      %[[ROUNDED:.*]] = arith.truncf %[[SUM]] : f32 to f16
// CHECK-NEXT:      linalg.yield %[[ROUNDED]]
// CHECK-COUNT-19: memref.dealloc
// CHECK-NOT:     memref.dealloc
// CHECK:         return
!b = memref<1x2x?x4xf16, strided<[?, ?, ?, 1]>>
func.func @memrefs(%q1: !b, %k: !b, %q2: !b, %v: !b, %d: !b, %l: memref<f32>, %dk: !b) {
  diffattn.attention_backward ins(%q1, %k, %q2, %k, %v : !b, !b, !b, !b, !b) d_out(%d : !b) lambda(%l : memref<f32>)
         outs(d_k1(%dk : !b)) {scale = 0.5 : f32, is_causal}
  return
}
