// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-schedule{isa=avx512bf16},convert-diffattn-to-vector)" | FileCheck %s

// Values that three blocks of queries read are packed before them, in memory of
// the call whose address the blocks find in the context.

// CHECK-LABEL: func.func @many
// CHECK:         %[[MEMORY:.+]] = llvm.call @diffattn_rt_alloc
// CHECK:         llvm.store %[[MEMORY]]
// CHECK:         llvm.mlir.addressof @diffattn_attention_0_pack
// CHECK:         llvm.call @diffattn_rt_parallel_for
// CHECK:         llvm.mlir.addressof @diffattn_attention_0 :
// CHECK:         llvm.call @diffattn_rt_release
!q = memref<1x2x100x32xbf16>
!k = memref<1x2x300x32xbf16>
!v = memref<1x2x300x32xbf16>
func.func @many(%q: !q, %k: !k, %v: !v, %l: memref<f32>, %o: !q) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !k, !q, !k, !v) lambda(%l : memref<f32>) outs(%o : !q) {scale = 0.125 : f32}
  return
}

// One block packs what it meets.

// CHECK-LABEL: func.func @one
// CHECK-NOT:     llvm.call @diffattn_rt_alloc
// CHECK-NOT:     attention_1_pack
// CHECK:         llvm.call @diffattn_rt_parallel_for
// CHECK-NOT:   attention_1_pack
!few = memref<1x2x40x32xbf16>
func.func @one(%q: !few, %k: !k, %v: !v, %l: memref<f32>, %o: !few) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !few, !k, !few, !k, !v) lambda(%l : memref<f32>) outs(%o : !few) {scale = 0.125 : f32}
  return
}
